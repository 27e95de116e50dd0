/// Fused attention of GATv2, forward: as attention_forward.cu, with logits that see whole rows.
///
/// The rows of z of a batch of edges are read for the logits and again, from a cache, for the sums.
#include "attention_v2.cuh"

namespace hpcgnn {

struct AttentionV2Forward {
  AttentionBlock block;  ///< source: the vector (num_heads, head_width); target as wide as z
  AttentionState state;
  AttentionState pieces;
};

/// The tile computes the logits of a batch one after the other; each thread keeps that of its edge.
template <class X, int V, int K>
struct RowLogits {
  using T = Accumulator<X>;
  const AttentionBlock& b;
  int64 offset = 0;
  HeadWindow<X, V, K> window{};
  HeadPair<X, V, K> pair{};

  HPCGNN_DEVICE void begin(const Tile& tile, int64 row, int64 head) {
    offset = head * b.head_width;
    window.base = 0, window.width = b.head_width, window.slope = static_cast<T>(b.slope);
    window.vector_row = static_cast<const T*>(b.source) + offset;
    pair.target_row = static_cast<const T*>(b.target) + row * b.num_heads * b.head_width + offset;
    window.read(tile, window.vector_row, window.vector);
    window.read(tile, pair.target_row, pair.target);
  }
  HPCGNN_DEVICE T operator()(const Tile& tile, int64 column, int count) {
    T mine = 0, unused;
    for (int k = 0; k < count; ++k) {
      const int64 start = shuffle(tile, column, k) * b.num_heads * b.head_width + offset;
      pair.z_row = static_cast<const X*>(b.z) + start;
      window.read(tile, pair.z_row, pair.z);
      const T logit = window.template logit<false>(tile, pair, unused);
      if (tile.lane == k) mine = logit;
    }
    return mine;
  }
};

template <class X, int V, int K>
HPCGNN_DEVICE void attention_v2_forward(const AttentionV2Forward& a) {
  attend<X, V, K>(a.block, a.state, a.pieces, RowLogits<X, V, K>{a.block});
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_FORWARD(x, X, v, k)                                          \
  HPCGNN_KERNEL(attention_v2_forward_##x##_v##v##_k##k, AttentionV2Forward, \
                attention_v2_forward<X, v, k>)

HPCGNN_FORWARD(f32, float, 4, 1)
HPCGNN_FORWARD(f32, float, 4, 2)
HPCGNN_FORWARD(f32, float, 1, 1)
HPCGNN_FORWARD(f32, float, 1, 2)
HPCGNN_FORWARD(f64, double, 2, 1)
HPCGNN_FORWARD(f64, double, 2, 2)
HPCGNN_FORWARD(f64, double, 1, 1)
HPCGNN_FORWARD(f64, double, 1, 2)
HPCGNN_FORWARD(bf16, BFloat16, 4, 1)
HPCGNN_FORWARD(bf16, BFloat16, 4, 2)
HPCGNN_FORWARD(bf16, BFloat16, 1, 1)
HPCGNN_FORWARD(bf16, BFloat16, 1, 2)
HPCGNN_FORWARD(f16, Float16, 4, 1)
HPCGNN_FORWARD(f16, Float16, 4, 2)
HPCGNN_FORWARD(f16, Float16, 1, 1)
HPCGNN_FORWARD(f16, Float16, 1, 2)
