/// Prefetches of addresses that may lie behind the end of an array.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

/// The address of an element, which pointer arithmetic may compute only within an array.
template <class T>
HPCGNN_INLINE const void* far_address(const T* array, std::int64_t element) {
  const auto address = reinterpret_cast<std::uintptr_t>(array);
  return reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(element) * sizeof(T));
}

/// Prefetch the line of an element for a read.
template <class T>
HPCGNN_INLINE void prefetch_far(const T* array, std::int64_t element) {
  __builtin_prefetch(far_address(array, element));
}

/// The pointer, of which the compiler knows nothing: it derives no other pointers from it.
template <class T>
HPCGNN_INLINE T* opaque(T* pointer) {
  asm("" : "+r"(pointer));
  return pointer;
}

/// Prefetch the line of an element for a write.
template <class T>
HPCGNN_INLINE void prefetch_far_to_write(const T* array, std::int64_t element) {
  __builtin_prefetch(far_address(array, element), 1);
}

}  // namespace hpcgnn::kernels
