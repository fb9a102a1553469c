# fovea::embedded, the header-only edition: an include path, and xsimd's.
add_library(fovea_embedded INTERFACE)
add_library(fovea::embedded ALIAS fovea_embedded)
set_target_properties(fovea_embedded PROPERTIES EXPORT_NAME embedded)
target_compile_features(fovea_embedded INTERFACE cxx_std_17)
target_include_directories(fovea_embedded INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_include_directories(fovea_embedded SYSTEM INTERFACE $<BUILD_INTERFACE:${xsimd_INCLUDE_DIRS}>)
target_link_libraries(fovea_embedded INTERFACE $<INSTALL_INTERFACE:fovea::xsimd>)

# Each instruction set that the tests and benchmarks compile the header for: its name, and FOVEA_EMBEDDED_FLAGS_<name>.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(FOVEA_EMBEDDED_ISAS Sse2 Avx2 Avx512)
  set(FOVEA_EMBEDDED_FLAGS_Avx2 -march=haswell)
  set(FOVEA_EMBEDDED_FLAGS_Avx512 -march=skylake-avx512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC's own headers use an undefined vector as an operand that is masked away, and it warns of it (bug 105593). To be deleted with GCC 12.
    list(APPEND FOVEA_EMBEDDED_FLAGS_Avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(FOVEA_EMBEDDED_ISAS Neon)
endif()
