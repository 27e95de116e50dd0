// Covers against a plain matching by augmenting paths, on small, extreme and random blocks.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cover/cover.h"

namespace {

using Entries = std::vector<std::pair<int, int>>;
using Counts = std::vector<std::int64_t>;

constexpr std::int64_t kExact = std::int64_t{1} << 40;

void check(bool condition, const char* name, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", name, what);
  std::exit(1);
}

struct Case {
  const char* name;
  int num_rows;
  Counts column_starts;
  Entries entries;

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(column_starts.size()) - 1; }
};

struct Cover {
  std::vector<std::uint8_t> fetched, pushed;
  Counts fetched_rows, pushed_rows, lower_bound;
  bool operator==(const Cover&) const = default;
};

Cover cover(const Case& c, std::int64_t limit, int threads) {
  Counts indptr(static_cast<std::size_t>(c.num_rows) + 1, 0);
  for (const auto& [row, column] : c.entries) ++indptr[static_cast<std::size_t>(row) + 1];
  std::partial_sum(indptr.begin(), indptr.end(), indptr.begin());
  Counts cursor(indptr);
  std::vector<std::int32_t> columns(c.entries.size());
  for (const auto& [row, column] : c.entries)
    columns[static_cast<std::size_t>(cursor[static_cast<std::size_t>(row)]++)] = column;
  const auto num_columns = static_cast<std::size_t>(c.column_starts.back());
  const auto fetched = std::make_unique<bool[]>(num_columns);
  const auto pushed = std::make_unique<bool[]>(columns.size());
  const Counts zeros(static_cast<std::size_t>(c.num_blocks()), 0);
  Cover found{{}, {}, zeros, zeros, zeros};
  hpcgnn::kernels::vertex_cover({indptr.data(), columns.data(), c.num_rows, c.column_starts.back()},
                                c.column_starts.data(), c.num_blocks(), limit, threads,
                                {fetched.get(), pushed.get(), found.fetched_rows.data(),
                                 found.pushed_rows.data(), found.lower_bound.data()});
  found.fetched.assign(fetched.get(), fetched.get() + num_columns);
  found.pushed.assign(pushed.get(), pushed.get() + columns.size());
  for (std::size_t e = 0; e < columns.size(); ++e)
    check(found.pushed[e] != found.fetched[static_cast<std::size_t>(columns[e])], c.name,
          "an entry is neither fetched nor pushed, or both");
  return found;
}

using Adjacency = std::vector<std::vector<int>>;

bool augment(const Adjacency& rows_of, std::vector<int>& mate, std::vector<bool>& seen,
             int column) {
  for (const int row : rows_of[static_cast<std::size_t>(column)]) {
    const auto r = static_cast<std::size_t>(row);
    if (seen[r]) continue;
    seen[r] = true;
    if (mate[r] < 0 || augment(rows_of, mate, seen, mate[r])) {
      mate[r] = column;
      return true;
    }
  }
  return false;
}

std::int64_t matching_size(const Case& c, std::int64_t first, std::int64_t last) {
  Adjacency rows_of(static_cast<std::size_t>(last - first));
  for (const auto& [row, column] : c.entries)
    if (column >= first && column < last)
      rows_of[static_cast<std::size_t>(column - first)].push_back(row);
  std::vector<int> mate(static_cast<std::size_t>(c.num_rows), -1);
  std::int64_t size = 0;
  for (int column = 0; column < static_cast<int>(last - first); ++column) {
    std::vector<bool> seen(mate.size(), false);
    size += augment(rows_of, mate, seen, column);
  }
  return size;
}

/// Check the counts of block q against the masks and against the reference.
void check_block(const Case& c, const Cover& found, std::size_t q, bool exact) {
  const std::int64_t first = c.column_starts[q], last = c.column_starts[q + 1];
  std::set<int> columns, used, rows;
  for (const auto& [row, column] : c.entries) {
    if (column < first || column >= last) continue;
    used.insert(column);
    if (found.fetched[static_cast<std::size_t>(column)])
      columns.insert(column);
    else
      rows.insert(row);
  }
  const std::int64_t optimum = matching_size(c, first, last);
  const std::int64_t size = found.fetched_rows[q] + found.pushed_rows[q];
  check(std::ssize(columns) == found.fetched_rows[q], c.name, "fetched_rows is wrong");
  check(std::ssize(rows) == found.pushed_rows[q], c.name, "pushed_rows is wrong");
  check(size <= std::ssize(used), c.name, "more rows than by fetching alone");
  check(size < std::ssize(used) || rows.empty(), c.name, "pushes where nothing is saved");
  check(found.lower_bound[q] <= optimum, c.name, "the lower bound is above the optimum");
  check(2 * found.lower_bound[q] >= optimum, c.name, "the matching is not maximal");
  check(!exact || (size == optimum && found.lower_bound[q] == optimum), c.name, "not minimum");
}

void run(const Case& c) {
  for (const std::int64_t limit : {kExact, std::int64_t{0}}) {
    const Cover found = cover(c, limit, 1);
    for (std::size_t q = 0; q + 1 < c.column_starts.size(); ++q)
      check_block(c, found, q, limit == kExact);
    for (const int threads : {0, 2, 5})
      check(cover(c, limit, threads) == found, c.name, "depends on the number of threads");
  }
}

int draw(std::mt19937& random, int count) {
  return static_cast<int>(random() % static_cast<std::uint32_t>(count));
}

Case random_case(const char* name, std::uint32_t seed, int num_rows, int num_blocks, int width,
                 int per_row) {
  std::mt19937 random(seed);
  Case c{name, num_rows, {0}, {}};
  for (int q = 0; q < num_blocks; ++q)
    c.column_starts.push_back(c.column_starts.back() + draw(random, width + 1));
  std::set<std::pair<int, int>> entries;
  for (int i = 0; i < num_rows * per_row && c.column_starts.back() > 0; ++i)
    entries.emplace(draw(random, num_rows), draw(random, static_cast<int>(c.column_starts.back())));
  c.entries.assign(entries.begin(), entries.end());
  return c;
}

Entries path(int length) {
  Entries entries;
  for (int i = 0; i < length; ++i) entries.insert(entries.end(), {{i, i}, {i + 1, i}});
  return entries;
}

Entries complete(int num_rows, int num_columns) {
  Entries entries;
  for (int r = 0; r < num_rows; ++r)
    for (int c = 0; c < num_columns; ++c) entries.emplace_back(r, c);
  return entries;
}

}  // namespace

int test_cover(int, char*[]) {
  run({"no rows", 0, {0}, {}});
  run({"no columns", 3, {0, 0, 0}, {}});
  run({"no entries", 5, {0, 2, 2, 7}, {}});
  run({"one entry", 1, {0, 0, 1, 1}, {{0, 0}}});
  run({"row star", 1, {0, 31}, complete(1, 31)});
  run({"column star", 31, {0, 1}, complete(31, 1)});
  run({"complete, wide", 5, {0, 9}, complete(5, 9)});
  run({"complete, tall", 9, {0, 5}, complete(9, 5)});
  run({"complete, two blocks", 7, {0, 3, 11}, complete(7, 11)});
  run({"path", 102, {0, 101}, path(101)});
  run({"repeated entries", 2, {0, 2}, {{0, 0}, {0, 0}, {0, 1}, {0, 1}, {1, 1}, {1, 1}}});
  for (std::uint32_t seed = 1; seed <= 40; ++seed)
    run(random_case("random", seed, 1 + static_cast<int>(seed) % 17, 5, 9, 1 + seed % 4));
  for (std::uint32_t seed = 1; seed <= 4; ++seed)
    run(random_case("sparse", seed, 1500, 2, 1500, 6));
  run(random_case("dense", 2003, 200, 7, 90, 40));
  const int length = 300'001;
  const Case chain{"long path", length + 1, {0, length}, path(length)};
  check(cover(chain, kExact, 1).fetched_rows[0] == length, chain.name, "not covered by columns");
  return 0;
}
