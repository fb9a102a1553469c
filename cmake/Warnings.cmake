# Flags of Fovea's own targets: those added after this point. Never an instruction set: the library dispatches at run time.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wcast-align -Wvla "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>"
  # GCC's note that it passes vectors differently since 4.6: none of ours crosses a boundary between compilers.
  -Wno-psabi
  # Only multiply-adds written as such: all instances of a template must round alike, whatever the compiler would fuse.
  -ffp-contract=off)
if(FOVEA_WERROR)
  add_compile_options(-Werror)
endif()
