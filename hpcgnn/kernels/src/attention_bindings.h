/// Checks shared by the bindings of the attention kernels.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>

#include "attention.h"
#include "bindings.h"
#include "isa.h"
#include "pattern.h"

namespace hpcgnn::kernels {

/// key of weight dropout, its p, names of rows and columns, key of edge dropout, its p.
using Dropout = std::tuple<std::uint64_t, double, Offsets, Offsets, std::uint64_t, double>;

/// What forward and backward pass alike.
struct Operands {
  const Offsets& indptr;
  const Indices& indices;
  const AnyMatrix& z;
  const AnyMatrix& target;
  const std::optional<Indices>& rows;
  const std::optional<Dropout>& dropout;
};

inline void require_shape(const auto& array, std::int64_t num_rows, std::int64_t num_columns,
                          Storage storage, const char* message) {
  if (storage_of(array.dtype(), "") != storage)
    throw nb::type_error("states and gradients must be float64 when z is, else float32");
  require(extent(array, 0) == num_rows && extent(array, 1) == num_columns, message);
}

inline void take_dropout(const std::optional<Dropout>& dropout, AttentionBlock& block) {
  if (!dropout) return;
  const auto& [key, p, row_ids, column_ids, edge_key, edge_p] = *dropout;
  require(p >= 0 && p <= 1 && edge_p >= 0 && edge_p <= 1, "p must be in [0, 1]");
  require(extent(row_ids, 0) == block.num_rows, "row_ids must have one entry for each row");
  require(extent(column_ids, 0) == block.num_columns,
          "column_ids must have one entry for each column");
  block.row_ids = row_ids.data();
  block.column_ids = column_ids.data();
  block.weight_dropout = {key, p};
  block.edge_dropout = {edge_key, edge_p};
}

/// A block without `source`.
/// @param num_rows rows of the block, whichever way its pattern is handed over.
inline AttentionBlock checked_block(const Operands& operands, std::int64_t num_rows,
                                    std::int64_t heads, double slope, int threads,
                                    const std::string& half, const std::string& isa) {
  const std::int64_t width = extent(operands.z, 1);
  require(heads > 0, "there must be a head");
  require(width > 0 && width % heads == 0, "z must have equally many columns for each head");
  const Storage storage = storage_of(operands.z.dtype(), half);
  AttentionBlock block{.indptr = operands.indptr.data(),
                       .indices = operands.indices.data(),
                       .rows = checked_subset(operands.rows, num_rows, extent(operands.target, 0)),
                       .row_ids = nullptr,
                       .column_ids = nullptr,
                       .z = operands.z.data(),
                       .source = nullptr,
                       .target = operands.target.data(),
                       .num_rows = num_rows,
                       .num_columns = extent(operands.z, 0),
                       .num_nonzeros = extent(operands.indices, 0),
                       .num_targets = extent(operands.target, 0),
                       .num_heads = heads,
                       .head_width = width / heads,
                       .weight_dropout = {0, 0},
                       .edge_dropout = {0, 0},
                       .slope = slope,
                       .storage = storage,
                       .num_threads = threads,
                       .isa = parse_isa(isa)};
  require(operands.rows || block.num_targets == num_rows,
          "target must have one row for each row of the block");
  take_dropout(operands.dropout, block);
  return block;
}

}  // namespace hpcgnn::kernels
