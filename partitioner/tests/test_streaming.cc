#include <cstdint>
#include <stdexcept>
#include <vector>

#include "support.h"
#include "volpart/streaming.h"

using namespace hpcgnn::volpart;

namespace {

/// Two cliques of four vertices whose numbers alternate, and a vertex without neighbours.
struct Cliques {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> columns;

  Cliques() {
    for (std::int32_t v = 0; v < 8; ++v) {
      for (std::int32_t other = v % 2; other < 8; other += 2)
        if (other != v) columns.push_back(other);
      indptr.push_back(static_cast<std::int64_t>(columns.size()));
    }
    indptr.push_back(indptr.back());
  }

  StreamedRows<std::int32_t> rows() const { return {0, indptr, columns}; }
};

void cliques_stay_together() {
  const Cliques cliques;
  std::vector<std::int32_t> part(9, -1);
  std::vector<std::int64_t> load(2, 0);
  const std::vector<std::int64_t> work{3, 3, 3, 3, 3, 3, 3, 3, 1};
  CHECK(assign_rows(cliques.rows(), work, part, load, 14.0) == 9);
  for (std::size_t v = 2; v < 8; ++v) CHECK(part[v] == part[v % 2]);
  CHECK(part[0] != part[1]);
  CHECK(load[0] + load[1] == 25);
  CHECK(assign_rows(cliques.rows(), work, part, load, 14.0) == 0);
}

void readers_of_other_parts_count_once() {
  const Cliques cliques;
  const std::vector<std::int32_t> part{0, 70, 0, 70, 0, 70, 66, 70, 66};
  std::vector<std::uint64_t> readers(9, 0);
  std::vector<std::int64_t> vertices(cliques.columns.begin(), cliques.columns.end());
  std::vector<std::int32_t> reader;
  for (std::size_t v = 0; v < part.size(); ++v)
    reader.resize(static_cast<std::size_t>(cliques.indptr[v + 1]), part[v]);
  mark_readers(vertices, reader, 64, readers);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(kMarked) * 71, 0);
  count_readers(readers, part, 64, counts);
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  // Vertex 6 is of part 66 and reads three of part 0.
  CHECK(sum == 3 && counts[2] == 3);
}

void rows_that_do_not_fit_are_refused() {
  const Cliques cliques;
  cliques.rows().check(9);
  bool refused = false;
  try {
    cliques.rows().check(8);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
  std::vector<std::uint64_t> readers(9, 0);
  const std::vector<std::int32_t> part{0};
  for (const std::int64_t vertex : {-1, 9}) {
    refused = false;
    try {
      mark_readers(std::vector<std::int64_t>{vertex}, part, 0, readers);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

}  // namespace

int test_streaming(int, char*[]) {
  cliques_stay_together();
  readers_of_other_parts_count_once();
  rows_that_do_not_fit_are_refused();
  return 0;
}
