/// Scratch memory for operands that are read at random.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace hpcgnn::kernels {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

/// Memory that begins on a page, uninitialised; released with std::free.
using Pages = std::unique_ptr<std::byte[], Free>;

/// Allocate at least `bytes`, on huge pages where the system grants them: a core can address only
/// few small pages without a look-up in the page tables.
/// @throws std::bad_alloc when there is no memory.
inline Pages allocate_pages(std::size_t bytes) {
  constexpr std::size_t kHugePage = 2 << 20;
  const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  Pages pages(static_cast<std::byte*>(std::aligned_alloc(kHugePage, whole)));
  if (whole > 0 && !pages) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Advice only: without huge pages the product is slower, not wrong.
  static_cast<void>(madvise(pages.get(), whole, MADV_HUGEPAGE));
#endif
  return pages;
}

}  // namespace hpcgnn::kernels
