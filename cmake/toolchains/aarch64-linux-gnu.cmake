# Cross-compiling for 64-bit Arm with Debian's cross compiler, or with the Clang that CMAKE_C_COMPILER and CMAKE_CXX_COMPILER name, on the libraries of the
# former; programs run under qemu's user emulation.
set(machine aarch64-linux-gnu)
set(processor aarch64)
set(qemu qemu-aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/debian-cross.cmake)
