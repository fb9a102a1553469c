// What Debian's C++ library for WASI lacks, for programs that are compiled with
// -fignore-exceptions: what throws ends the program.
#include <cstddef>
#include <cstdlib>

extern "C" {
[[noreturn]] void* __cxa_allocate_exception(size_t) { std::abort(); }
[[noreturn]] void __cxa_throw(void*, void*, void (*)(void*)) { std::abort(); }
}
