// Memory from the caller's allocator, for single objects and for vectors.
#ifndef FOVEA_SRC_MEMORY_H_
#define FOVEA_SRC_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "fovea/allocator.h"

namespace fovea {

// Null when there is no memory.
inline void* Allocate(const Allocator& allocator, size_t bytes) noexcept {
  return allocator.allocate == nullptr ? std::malloc(bytes)
                                       : allocator.allocate(allocator.context, bytes);
}

inline void Release(const Allocator& allocator, void* memory, size_t bytes) noexcept {
  if (memory == nullptr) return;
  if (allocator.release == nullptr) {
    std::free(memory);
  } else {
    allocator.release(allocator.context, memory, bytes);
  }
}

// Room for an object that is made later, if at all. Unlike an optional's it is not written before:
// compilers fill those whole with zeros.
template <class T>
class Later {
 public:
  Later() noexcept {}
  ~Later() {
    if (object_ != nullptr) object_->~T();
  }
  Later(const Later&) = delete;
  Later& operator=(const Later&) = delete;

  // Once.
  template <class... Arguments>
  T* Make(Arguments&&... arguments) {
    return object_ = new (bytes_) T(std::forward<Arguments>(arguments)...);
  }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
  alignas(T) unsigned char bytes_[sizeof(T)];
};

// The same as the standard library's containers want it.
template <class T>
class ContainerAllocator {
 public:
  using value_type = T;
  static_assert(alignof(T) <= alignof(std::max_align_t));

  explicit ContainerAllocator(const Allocator& allocator) noexcept : allocator_(allocator) {}
  template <class U>
  ContainerAllocator(const ContainerAllocator<U>& other) noexcept : allocator_(other.allocator()) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* const memory = Allocate(allocator_, count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) noexcept {
    Release(allocator_, memory, count * sizeof(T));
  }

  const Allocator& allocator() const noexcept { return allocator_; }
  template <class U>
  bool operator==(const ContainerAllocator<U>& other) const noexcept {
    return allocator_.allocate == other.allocator().allocate &&
           allocator_.release == other.allocator().release &&
           allocator_.context == other.allocator().context;
  }
  template <class U>
  bool operator!=(const ContainerAllocator<U>& other) const noexcept {
    return !(*this == other);
  }

 private:
  Allocator allocator_;
};

template <class T>
using Vector = std::vector<T, ContainerAllocator<T>>;

}  // namespace fovea

#endif  // FOVEA_SRC_MEMORY_H_
