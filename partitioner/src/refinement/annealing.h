/// Refinement by simulated annealing over the boundary.
#pragma once

#include <optional>
#include <vector>

#include "deadline.h"
#include "random.h"
#include "refinement/potential.h"
#include "state/balance.h"
#include "state/state.h"

namespace hpcgnn::volpart {

/// Proposes moves of boundary vertices to parts that they are connected with, and occasionally to
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

  /// Visit each boundary vertex once, in random order, and propose up to `proposals` moves of it,
  /// fewer if it has many nets. A move that raises the potential by d is made with probability
  /// exp(-d / temperature), one that lowers it always. A move that the weight limit forbids is
  /// tried together with one that makes room. Ends early when the deadline passes.
  void sweep(double temperature, int proposals);
  /// Move vertices out of parts above their limit: first the cheapest of a sample of their
  /// boundary, then any vertices if that is not enough.
  void rebalance();

 private:
  struct Refused {
    Vertex v;
    Part to;
    double change;
  };

  struct WayOut {
    Part to;
    double change;
  };

  void list_boundary();
  Part propose(Vertex v);
  void visit(Vertex v, int proposals, double temperature);
  void move(Vertex v, Part q);
  void try_move(Vertex v, Part q, double limit);
  void try_exchange(Vertex v, Part q, double limit);
  /// The cheapest of a few proposals that the weight limits allow; v's own part if there is none.
  WayOut best_way_out(Vertex v);
  bool relieve(Vertex v);
  /// Move vertices with the least cost per weight, of a sample of the boundary of overweight parts.
  void shed_cheapest();

  State& _state;
  const Balance& _balance;
  Potential& _potential;
  const Deadline& _deadline;
  Random _random;
  MoveEffect _effect;
  /// For each part, a move out of it that was refused only for its cost: half of an exchange.
  std::vector<std::optional<Refused>> _refused;
  std::vector<Vertex> _boundary;
  std::vector<Part> _candidates;
};

}  // namespace hpcgnn::volpart
