#include "state/state.h"

#include <utility>

namespace hpcgnn::volpart {
namespace {

/// Distance in nets between prefetching a net's data and reading it.
constexpr std::size_t kAhead = 8;

}  // namespace

State::State(const Hypergraph& graph, int num_parts, std::vector<Part> part, Surroundings* around)
    : _graph(&graph),
      _around(around),
      _part(std::move(part)),
      _connectivity(graph, around ? around->num_own : num_parts, _part),
      _weight(static_cast<std::size_t>(num_parts)),
      _load(static_cast<std::size_t>(num_parts)) {
  for (Vertex v = 0; v < graph.num_vertices(); ++v) _weight[_part[v]] += graph.vertex_weight[v];
  for (Net net = 0; net < graph.num_nets(); ++net) {
    const Part owner = _connectivity.owner_part(net);
    const Weight weight = _connectivity.weight(net);
    const bool push = _connectivity.is_push(net);
    _connectivity.for_each_part(net, [&](Part other) {
      if (other == owner) return;
      _load[push ? other : owner].send += weight;
      _load[push ? owner : other].recv += weight;
    });
  }
  for (std::size_t v = 0; v < graph.outside_load.size(); ++v) {
    _load[_part[v]].send += graph.outside_load[v].send;
    _load[_part[v]].recv += graph.outside_load[v].recv;
  }
  if (_around)
    for (std::size_t p = 0; p < _load.size(); ++p) {
      _load[p].send += _around->load[p].send;
      _load[p].recv += _around->load[p].recv;
    }
  for (const Load& load : _load) _total += load.send;
}

std::vector<Load> State::own_load() const {
  std::vector<Load> own = _load;
  for (std::size_t p = 0; _around && p < own.size(); ++p) {
    own[p].send -= _around->load[p].send;
    own[p].recv -= _around->load[p].recv;
  }
  return own;
}

void State::surround(std::vector<Load> load) {
  const std::vector<Load> own = own_load();
  _around->load = std::move(load);
  _total = 0;
  for (std::size_t p = 0; p < own.size(); ++p) {
    _load[p].send = own[p].send + _around->load[p].send;
    _load[p].recv = own[p].recv + _around->load[p].recv;
    _total += _load[p].send;
  }
}

bool State::exchange_loads() {
  if (!_around) return false;
  surround(_around->exchange(own_load()));
  return true;
}

bool State::is_cut(Net net) const {
  // No move inside the share brings its pins to an outside owner.
  const Part owner = _connectivity.owner_part(net);
  return _connectivity.num_parts(net) > 1 ||
         (owner < num_own() && _connectivity.count(net, owner) == 0);
}

bool State::on_boundary(Vertex v) const {
  for (Net net = _graph->owned_begin[v]; net < _graph->owned_begin[v + 1]; ++net)
    if (is_cut(net)) return true;
  for (const Net net : _graph->nets_of(v))
    if (is_cut(net)) return true;
  return false;
}

void State::evaluate(Vertex v, Part q, MoveEffect& effect) const {
  effect.clear();
  const Part p = _part[v];
  // Nets of a vertex are scattered in memory: without prefetching, cache misses would dominate.
  const Packed::List nets = _graph->nets_of(v);
  for (std::size_t k = 0; k < nets.size() + 2 * kAhead; ++k) {
    if (k < nets.size()) _connectivity.prefetch_record(nets[k]);
    if (k >= kAhead && k < nets.size() + kAhead) {
      _connectivity.prefetch_slot(nets[k - kAhead], p);
      _connectivity.prefetch_slot(nets[k - kAhead], q);
    }
    if (k >= 2 * kAhead) evaluate_pin(nets[k - 2 * kAhead], p, q, effect);
  }
  for (Net net = _graph->owned_begin[v]; net < _graph->owned_begin[v + 1]; ++net)
    evaluate_owned(net, p, q, effect);
  if (_graph->outside_load.empty()) return;
  const Load& outside = _graph->outside_load[v];
  effect.add(p, -outside.send, -outside.recv);
  effect.add(q, outside.send, outside.recv);
}

// A gain cache would hold num_parts numbers per vertex; the pin counts give the same change in O(1)
// per net. A part is touched only if it gets its first pin of a net or loses its last.
void State::evaluate_pin(Net net, Part p, Part q, MoveEffect& effect) const {
  const Part owner = _connectivity.owner_part(net);
  const bool leaves = p != owner && _connectivity.count(net, p) == 1;
  const bool enters = q != owner && _connectivity.count(net, q) == 0;
  if (!leaves && !enters) return;
  const Weight weight = _connectivity.weight(net);
  const Weight change = weight * (static_cast<Weight>(enters) - static_cast<Weight>(leaves));
  if (_connectivity.is_push(net)) {
    if (leaves) effect.add(p, -weight, 0);
    if (enters) effect.add(q, weight, 0);
    if (change != 0) effect.add(owner, 0, change);
  } else {
    if (leaves) effect.add(p, 0, -weight);
    if (enters) effect.add(q, 0, weight);
    if (change != 0) effect.add(owner, change, 0);
  }
}

// The owner's part does not receive its own rows: a net reaches all its parts except that one.
void State::evaluate_owned(Net net, Part p, Part q, MoveEffect& effect) const {
  const bool in_p = _connectivity.count(net, p) != 0;
  const bool in_q = _connectivity.count(net, q) != 0;
  const Weight weight = _connectivity.weight(net);
  const Weight num_parts = _connectivity.num_parts(net);
  const Weight before = weight * (num_parts - static_cast<Weight>(in_p));
  const Weight after = weight * (num_parts - static_cast<Weight>(in_q));
  const Weight gained = in_p ? weight : 0, lost = in_q ? weight : 0;
  if (_connectivity.is_push(net)) {
    effect.add(p, gained, -before);
    effect.add(q, -lost, after);
  } else {
    effect.add(p, -before, gained);
    effect.add(q, after, -lost);
  }
}

void State::apply(Vertex v, Part q, const MoveEffect& effect) {
  const Part p = _part[v];
  for (const Net net : _graph->nets_of(v)) {
    _connectivity.remove(net, p);
    _connectivity.add(net, q);
  }
  for (Net net = _graph->owned_begin[v]; net < _graph->owned_begin[v + 1]; ++net)
    _connectivity.move_owner(net, q);
  for (const Part part : effect.touched()) {
    const Load& change = effect.at(part);
    _load[part].send += change.send;
    _load[part].recv += change.recv;
    _total += change.send;
  }
  _weight[p] -= _graph->vertex_weight[v];
  _weight[q] += _graph->vertex_weight[v];
  _part[v] = q;
}

}  // namespace hpcgnn::volpart
