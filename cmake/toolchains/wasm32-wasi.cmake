# Cross-compiling for WebAssembly with 128-bit SIMD and WASI's C library, as Debian packages them (clang-19, lld-19, wasi-libc, libc++-19-dev-wasm32,
# libclang-rt-19-dev-wasm32); programs run under node. There are no threads, and no exceptions: what would throw, for want of memory, ends the program.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_C_COMPILER clang-19)
  set(CMAKE_CXX_COMPILER clang++-19)
endif()
set(CMAKE_C_COMPILER_TARGET wasm32-wasi)
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
set(CMAKE_C_FLAGS_INIT -msimd128)
set(CMAKE_CXX_FLAGS_INIT "-msimd128 -fexceptions -fignore-exceptions")
foreach(feature DEATH_TEST PTHREAD STREAM_REDIRECTION)
  string(APPEND CMAKE_CXX_FLAGS_INIT " -DGTEST_HAS_${feature}=0")  # GoogleTest
endforeach()
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-z,stack-size=1048576")
set(CMAKE_CROSSCOMPILING_EMULATOR node --no-warnings ${CMAKE_CURRENT_LIST_DIR}/run_wasm.mjs)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
