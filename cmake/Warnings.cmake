# Flags of Fovea's own targets: those added after this point. Never an instruction set: the library dispatches at run time.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wcast-align -Wvla "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>"
  # GCC's note that it passes vectors differently since 4.6: none of ours crosses a boundary between compilers.
  -Wno-psabi
  # Arithmetic as it is written: −inf, NaN and compensated sums mean something here, whatever a host has in CMAKE_CXX_FLAGS, which stand before these.
  # Each part by itself too: it may have been asked for alone.
  -fno-fast-math -fno-unsafe-math-optimizations -fno-associative-math -fno-reciprocal-math -fno-finite-math-only -fsigned-zeros
  # Only multiply-adds written as such: all instances of a template must round alike, whatever the compiler would fuse. Behind -fno-fast-math, which with
  # Clang sets it too.
  -ffp-contract=off)
if(FOVEA_WERROR)
  add_compile_options(-Werror)
endif()
