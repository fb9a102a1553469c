# What the whole build shares, the dependencies built with it included.
if(FOVEA_SANITIZE)
  add_compile_options(-fsanitize=${FOVEA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FOVEA_SANITIZE})
endif()
if(FOVEA_COMPILE_ONLY_EMU128)
  add_compile_definitions(HWY_COMPILE_ONLY_EMU128)
endif()
