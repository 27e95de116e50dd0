#include "support.h"
#include "volpart/packed.h"

using namespace hpcgnn::volpart;
using namespace hpcgnn::volpart::testing;

namespace {

/// Numbers are what was set, in any order of setting, and their neighbours stay.
void numbers_come_back(std::uint64_t limit, std::size_t size) {
  Random random(limit + size);
  std::vector<std::uint32_t> numbers(size), order(size);
  for (std::size_t k = 0; k < size; ++k) {
    numbers[k] = random.below(limit);
    order[k] = static_cast<std::uint32_t>(k);
  }
  numbers[0] = static_cast<std::uint32_t>(limit - 1);
  random.shuffle(order);
  std::vector<std::uint8_t> memory(Packed::bytes_of(limit, size), 0xFF);
  Packed set(limit, size), there = Packed::over(memory.data(), limit, size), pushed(limit);
  for (const std::size_t k : order) {
    set.set(k, numbers[k]);
    there.set(k, numbers[k]);
  }
  pushed.reserve(size / 2);
  for (const std::uint32_t number : numbers) pushed.push_back(number);
  const Packed moved = std::move(set);
  const Packed borrowed = there.borrowed();
  for (const Packed* const packed :
       std::initializer_list<const Packed*>{&moved, &borrowed, &pushed}) {
    CHECK(packed->size() == size);
    std::size_t k = 0;
    for (const std::uint32_t number : packed->list(0, size)) CHECK(number == numbers[k++]);
    CHECK(k == size);
    CHECK(packed->list(size / 2, size)[0] == numbers[size / 2]);
  }
}

}  // namespace

int test_packed(int, char*[]) {
  for (const std::uint64_t limit :
       {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{5}, std::uint64_t{256},
        std::uint64_t{200'001}, std::uint64_t{1} << 31, (std::uint64_t{1} << 32) - 1})
    for (const std::size_t size : {1, 7, 64, 30'000}) numbers_come_back(limit, size);
  CHECK(Packed::bytes_of(1 << 18, 1'000) == 2'250 + Packed::kSlack);
  return 0;
}
