#include "pages.h"

#include <sys/mman.h>

#include <new>

namespace hpcgnn::kernels {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

}  // namespace

Pages allocate_pages(std::size_t bytes) {
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
