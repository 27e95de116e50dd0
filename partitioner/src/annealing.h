/// Refinement by simulated annealing over the boundary.
#pragma once

#include <vector>

#include "balance.h"
#include "deadline.h"
#include "potential.h"
#include "random.h"
#include "state.h"

namespace hpcgnn::volpart {

/// Proposes moves of boundary vertices to parts that they are connected with, and now and then to
/// any part (leaves of a full hub part have no other way out).
class Annealer {
 public:
  Annealer(State& state, const Balance& balance, Potential& potential, const Deadline& deadline,
           Random random)
      : _state(state),
        _balance(balance),
        _potential(potential),
        _deadline(deadline),
        _random(random),
        _effect(state.num_parts()) {}

  /// Propose about `proposals` moves for each boundary vertex; a move that raises the potential by
  /// d is made with probability exp(-d / temperature), one that lowers it always. Ends early when
  /// the deadline passes.
  void sweep(double temperature, double proposals);
  /// Move vertices out of parts above their limit, each the cheapest way found.
  void rebalance();

 private:
  void list_boundary();
  Part propose(Vertex v);
  void move(Vertex v, Part q);
  bool relieve(Vertex v);

  State& _state;
  const Balance& _balance;
  Potential& _potential;
  const Deadline& _deadline;
  Random _random;
  MoveEffect _effect;
  std::vector<Vertex> _boundary;
};

}  // namespace hpcgnn::volpart
