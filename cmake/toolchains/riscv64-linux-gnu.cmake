# Cross-compiling for 64-bit RISC-V.
set(machine riscv64-linux-gnu)
set(processor riscv64)
set(qemu qemu-riscv64)
include(${CMAKE_CURRENT_LIST_DIR}/debian-cross.cmake)
