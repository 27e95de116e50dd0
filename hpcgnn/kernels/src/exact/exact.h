/// Sums that do not depend on their order, and dense products in a fixed order.
///
/// Numbers of a column are scaled by a power of two, so that no number of any rank exceeds a limit,
/// and split into integers; these are summed without rounding, by any number of threads. The caller
/// adds up the sums of ranks, also in any order.
#pragma once

#include <cstdint>

#include "types.h"

namespace hpcgnn::kernels {

// A number below 2^51 plus this has its nearest integer in the last bits of the sum.
inline constexpr double kRounder = 0x1.8p52;

/// Rows of numbers, row-major; each is multiplied by the factor of its row; null = no factors.
struct ExactRows {
  const void* data;
  const double* factors;
  std::int64_t num_rows;
  std::int64_t width;
  Storage storage;  ///< float32 or float64
  int num_threads;  ///< 0 = OpenMP default
  Isa isa;
};

/// A sum of integers is upper 2^25 + lower.
inline constexpr int kLimbBits = 25;

/// sums[0, c] 2^25 + sums[1, c] is 2^25 times the sum of column c times scale[c]; each number is
/// rounded once, to a multiple of 2^-25.
struct ExactTotal {
  ExactRows rows;  ///< no factors
  const double* scale;
  std::int64_t* sums;  ///< 2 by width
};

/// The product of the transpose of one matrix with another.
///
/// With two or three digits of 22 bits, level l has the products of digits with weight 2^-22l; the
/// product of the second digits is left out if there are only two. With one digit, for float32
/// only, each product is rounded down to an integer.
struct ExactContract {
  ExactRows left, right;  ///< of equal length, no factors
  const double* left_scale;
  const double* right_scale;  ///< no scaled number reaches 2^22
  int digits;
  std::int64_t* sums;  ///< digits by 2 by left.width by right.width, zeros
};

/// Digits of rows as int32: column d width + c of `out` is digit d of column c.
struct ExactDigits {
  ExactRows rows;
  const double* scale;  ///< no scaled number reaches 2^bits
  std::int32_t* out;    ///< num_rows by digits width
  int bits;
  int digits;
};

/// The values of sums of digits: out = factor sum over d of 2^(-bits d) digit d times unit.
struct ExactJoin {
  ExactRows rows;       ///< the result, multiplied by its factors last; `data` is not read
  const double* sums;   ///< num_rows by digits width
  const double* units;  ///< by column
  void* out;
  int bits;
  int digits;
};

/// out (+)= rows matrix: each number is a chain of multiply-adds in the order of the columns.
struct OrderedProduct {
  ExactRows rows;      ///< no factors
  const void* matrix;  ///< rows.width by width, of their type
  void* out;
  std::int64_t width;
  bool accumulate;
};

/// The largest magnitude of each column; infinity if a number is not finite.
void column_largest(const ExactRows& rows, double* largest);

void exact_total(const ExactTotal& arguments);
void exact_contract(const ExactContract& arguments);
void exact_digits(const ExactDigits& arguments);
void exact_join(const ExactJoin& arguments);
void ordered_product(const OrderedProduct& arguments);

/// Rows of a contraction whose products are summed in registers.
inline constexpr std::int64_t kContractRows = 128;
/// Columns of the left matrix, or rows, in a tile.
inline constexpr int kTileRows = 4;

/// Kernels for rows [first, last), by storage type; null where it is not offered.
struct ExactTable {
  void (*largest[kNumStorages])(const ExactRows&, std::int64_t, std::int64_t, double*);
  void (*total[kNumStorages])(const ExactTotal&, std::int64_t, std::int64_t, std::int64_t* sums);
  /// `room` has space for contract_room numbers.
  void (*contract[kNumStorages])(const ExactContract&, std::int64_t, std::int64_t, double* room,
                                 std::int64_t* sums);
  void (*digits[kNumStorages])(const ExactDigits&, std::int64_t, std::int64_t);
  void (*join[kNumStorages])(const ExactJoin&, std::int64_t, std::int64_t);
  void (*product[kNumStorages])(const OrderedProduct&, std::int64_t, std::int64_t);

  static const ExactTable portable, avx2, avx512;  ///< see table_of
};

}  // namespace hpcgnn::kernels
