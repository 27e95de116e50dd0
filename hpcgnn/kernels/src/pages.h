/// Scratch memory for operands that are read at random.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace hpcgnn::kernels {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

/// Memory that begins on a page, uninitialised; released with std::free.
using Pages = std::unique_ptr<std::byte[], Free>;

/// Allocate at least `bytes`, on huge pages where the system grants them: a core can address few
/// small pages without looking up where they lie.
/// @throws std::bad_alloc when there is no memory.
Pages allocate_pages(std::size_t bytes);

}  // namespace hpcgnn::kernels
