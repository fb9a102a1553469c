#include "support/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define FOVEA_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FOVEA_TEST_SANITIZED 1
#endif

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

namespace fovea::test {
int64_t Allocations() { return allocations.load(); }
}  // namespace fovea::test

#if defined(__GLIBC__) && !defined(FOVEA_TEST_SANITIZED)

// glibc's operator new, aligned_alloc and the rest end here, in code that the whole process shares.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

// Shared libraries must find these too, whatever the visibility that the build sets.
#define VISIBLE __attribute__((visibility("default")))
VISIBLE void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
VISIBLE void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
VISIBLE void* realloc(void* block, size_t size) {
  ++allocations;
  return __libc_realloc(block, size);
}
VISIBLE void* memalign(size_t alignment, size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
VISIBLE void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
VISIBLE int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block == nullptr ? ENOMEM : 0;
}
}

namespace fovea::test {
bool CountsMalloc() { return true; }
}  // namespace fovea::test

#else

namespace {
void* Allocate(size_t size, size_t alignment) {
  ++allocations;
  void* block = nullptr;
  if (posix_memalign(&block, alignment < sizeof(void*) ? sizeof(void*) : alignment,
                     size == 0 ? 1 : size) != 0)
    std::abort();
  return block;
}
}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new[](size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Allocate(size, alignof(std::max_align_t));
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return Allocate(size, alignof(std::max_align_t));
}
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { std::free(block); }

namespace fovea::test {
bool CountsMalloc() { return false; }
}  // namespace fovea::test

#endif
