#include "exact/exact.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.h"
#include "simd/isa.h"

namespace hpcgnn::kernels {
namespace {

// Most padding of a panel's columns: tiles have no more rows, and registers no more lanes.
constexpr std::int64_t kPad = 16;

/// Run `body(first, last, share)` for equal shares of the rows, each with its own `size` numbers,
/// initially zeros; then `join(number, of_share)` for the numbers of all shares.
template <class T, class Body, class Join>
void for_shares(const ExactRows& a, std::int64_t work, std::int64_t size, const Body& body,
                const Join& join) {
  const std::int64_t shares = work < kSerialElements ? 1 : resolve_threads(a.num_threads);
  std::vector<T> own(static_cast<std::size_t>(shares * size));
  parallel_tasks(static_cast<int>(shares), shares, [&](std::int64_t share) {
    body(a.num_rows * share / shares, a.num_rows * (share + 1) / shares, own.data() + share * size);
  });
  for (std::int64_t i = 0; i < shares * size; ++i) join(i % size, own[static_cast<std::size_t>(i)]);
}

}  // namespace

void column_largest(const ExactRows& a, double* largest) {
  const auto kernel = table_of<ExactTable>(a.isa).largest[static_cast<int>(a.storage)];
  std::fill_n(largest, a.width, 0.0);
  for_shares<double>(
      a, a.num_rows * a.width, a.width,
      [&](std::int64_t first, std::int64_t last, double* top) { kernel(a, first, last, top); },
      [&](std::int64_t c, double top) {
        // By their bits, NaNs are the largest numbers of a share.
        const double found = std::isnan(top) ? std::numeric_limits<double>::infinity() : top;
        largest[c] = std::max(largest[c], found);
      });
}

void exact_total(const ExactTotal& a) {
  const auto kernel = table_of<ExactTable>(a.rows.isa).total[static_cast<int>(a.rows.storage)];
  const std::int64_t size = 2 * a.rows.width;
  std::fill_n(a.sums, size, 0);
  for_shares<std::int64_t>(
      a.rows, a.rows.num_rows * a.rows.width, size,
      [&](std::int64_t first, std::int64_t last, std::int64_t* sums) {
        kernel(a, first, last, sums);
      },
      [&](std::int64_t number, std::int64_t sum) { a.sums[number] += sum; });
}

void exact_contract(const ExactContract& a) {
  const auto kernel = table_of<ExactTable>(a.left.isa).contract[static_cast<int>(a.left.storage)];
  const std::int64_t product = a.left.width * a.right.width, size = 2 * a.digits * product;
  const std::int64_t room = (a.left.width + a.right.width + 2 * kPad) * kContractRows * a.digits;
  std::fill_n(a.sums, size, 0);
  for_shares<std::int64_t>(
      a.left, a.left.num_rows * product, size,
      [&](std::int64_t first, std::int64_t last, std::int64_t* sums) {
        std::vector<double> panels(static_cast<std::size_t>(room));
        const int before = std::fegetround();
        // Rounded down, a product gives the same integer whatever it is added to; rounding one half
        // to nearest would depend on the sum.
        if (a.digits == 1) std::fesetround(FE_DOWNWARD);
        kernel(a, first, last, panels.data(), sums);
        std::fesetround(before);
      },
      [&](std::int64_t number, std::int64_t sum) { a.sums[number] += sum; });
}

void exact_digits(const ExactDigits& a) {
  const auto kernel = table_of<ExactTable>(a.rows.isa).digits[static_cast<int>(a.rows.storage)];
  RowChunks(a.rows.num_rows, a.rows.width, a.rows.num_threads).run(kernel, a);
}

void exact_join(const ExactJoin& a) {
  const auto kernel = table_of<ExactTable>(a.rows.isa).join[static_cast<int>(a.rows.storage)];
  RowChunks(a.rows.num_rows, a.rows.width, a.rows.num_threads).run(kernel, a);
}

void ordered_product(const OrderedProduct& a) {
  const auto kernel = table_of<ExactTable>(a.rows.isa).product[static_cast<int>(a.rows.storage)];
  RowChunks(a.rows.num_rows, a.rows.width + a.width, a.rows.num_threads).run(kernel, a);
}

}  // namespace hpcgnn::kernels
