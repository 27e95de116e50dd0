/// Fused attention, forward: edges join the softmax state of their rows; no tensor of edges exists.
///
/// A tile takes a group of edges and one head. Its threads first hold an edge each, for the logits
/// and their maximum; then columns of z, which they sum, an edge after the other. A group alone on
/// its row updates the state; pieces of a split row leave states of their own, which
/// `attention_merge` joins in order: the result is the same every time.
#include "attention.cuh"

namespace hpcgnn {

struct AttentionForward {
  AttentionBlock block;
  AttentionState state;
  AttentionState pieces;
};

/// L(target + source), each thread that of its own edge.
template <class T>
struct TermLogits {
  const AttentionBlock& b;
  int64 head = 0;
  T target = 0;

  HPCGNN_DEVICE void begin(const Tile&, int64 row, int64 of_head) {
    head = of_head;
    target = static_cast<const T*>(b.target)[row * b.num_heads + head];
  }
  HPCGNN_DEVICE T operator()(const Tile& tile, int64 column, int count) const {
    if (tile.lane >= count) return 0;
    const T source = static_cast<const T*>(b.source)[column * b.num_heads + head];
    return rectified(target + source, static_cast<T>(b.slope));
  }
};

template <class X, int V, int K>
HPCGNN_DEVICE void attention_forward(const AttentionForward& a) {
  attend<X, V, K>(a.block, a.state, a.pieces, TermLogits<Accumulator<X>>{a.block});
}

}  // namespace hpcgnn

using namespace hpcgnn;

#define HPCGNN_FORWARD(x, X, v, k) \
  HPCGNN_KERNEL(attention_forward_##x##_v##v##_k##k, AttentionForward, attention_forward<X, v, k>)

HPCGNN_FORWARD(f32, float, 4, 1)
HPCGNN_FORWARD(f32, float, 4, 2)
HPCGNN_FORWARD(f32, float, 1, 1)
HPCGNN_FORWARD(f32, float, 1, 2)
HPCGNN_FORWARD(f64, double, 2, 1)
HPCGNN_FORWARD(f64, double, 2, 2)
HPCGNN_FORWARD(f64, double, 1, 1)
HPCGNN_FORWARD(f64, double, 1, 2)
HPCGNN_FORWARD(bf16, BFloat16, 8, 1)
HPCGNN_FORWARD(bf16, BFloat16, 8, 2)
HPCGNN_FORWARD(bf16, BFloat16, 1, 1)
HPCGNN_FORWARD(bf16, BFloat16, 1, 2)
HPCGNN_FORWARD(f16, Float16, 8, 1)
HPCGNN_FORWARD(f16, Float16, 8, 2)
HPCGNN_FORWARD(f16, Float16, 1, 1)
HPCGNN_FORWARD(f16, Float16, 1, 2)
