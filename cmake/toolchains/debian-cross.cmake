# What the tool chains of Debian's cross compilers share: `machine` is GNU's name, `processor` CMake's, `qemu` the emulator that runs programs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${processor})
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_C_COMPILER ${machine}-gcc)
  set(CMAKE_CXX_COMPILER ${machine}-g++)
endif()
set(CMAKE_C_COMPILER_TARGET ${machine})  # Clang's
set(CMAKE_CXX_COMPILER_TARGET ${machine})
set(CMAKE_LIBRARY_ARCHITECTURE ${machine})
set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu} -L /usr/${machine})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
