/// Shared by the tests of the kernels: a check, random CSR matrices, and the instruction sets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "simd/isa.h"
#include "types.h"

namespace hpcgnn::kernels::testing {

inline void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

template <class T>
inline constexpr Storage kStorage =
    std::is_same_v<T, float> ? Storage::kFloat32 : Storage::kFloat64;
template <class T>
inline constexpr double kTolerance = std::is_same_v<T, float> ? 2e-5 : 1e-12;

inline std::size_t at(std::int64_t row, std::int64_t column, std::int64_t width) {
  return static_cast<std::size_t>(row * width + column);
}

/// Sorted rows of the given lengths.
struct Csr {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
  std::vector<double> values;
  std::int64_t num_columns = 0;

  std::int64_t num_rows() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::int64_t num_nonzeros() const { return static_cast<std::int64_t>(indices.size()); }
};

inline Csr random_csr(const std::vector<int>& lengths, std::int64_t num_columns, unsigned seed) {
  std::mt19937 random(seed);
  Csr a;
  a.num_columns = num_columns;
  for (const int length : lengths) {
    std::set<std::int32_t> row;
    while (static_cast<int>(row.size()) < length)
      row.insert(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(num_columns)));
    a.indices.insert(a.indices.end(), row.begin(), row.end());
    a.indptr.push_back(a.num_nonzeros());
  }
  for (std::int64_t e = 0; e < a.num_nonzeros(); ++e)
    a.values.push_back(static_cast<double>(random() % 2001) / 1000 - 1);
  return a;
}

/// Empty rows, short rows, and hubs longer than a segment.
inline std::vector<Csr> ugly_matrices() {
  std::mt19937 random(211);
  std::vector<int> short_rows(500), hubs(60, 2);
  for (int& length : short_rows) length = static_cast<int>(random() % 3 * (random() % 30));
  hubs[0] = 9001;
  hubs[31] = 16500;
  hubs[59] = 8193;
  return {random_csr({}, 3, 5), random_csr({0, 0, 0}, 2, 7), random_csr({1}, 1, 11),
          random_csr(short_rows, 97, 13), random_csr(hubs, 16501, 17)};
}

/// Hubs take nearly all of the seconds of a test, so that each case of them is one of a few.
inline bool has_hubs(const Csr& a) { return a.num_nonzeros() > 1 << 14; }

inline std::vector<Isa> isas() {
  std::vector<Isa> result;
  for (const std::string& name : available_isas()) result.push_back(parse_isa(name));
  return result;
}

template <class T>
std::vector<T> random_dense(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> x(static_cast<std::size_t>(size));
  for (T& value : x) value = static_cast<T>(static_cast<int>(random() % 2001) - 1000) / T(512);
  return x;
}

}  // namespace hpcgnn::kernels::testing
