# Cross-compiling for 64-bit little-endian Power, POWER8 and up.
set(machine powerpc64le-linux-gnu)
set(processor ppc64le)
set(qemu qemu-ppc64le)
include(${CMAKE_CURRENT_LIST_DIR}/debian-cross.cmake)
