#include "volpart/share.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "checks.h"
#include "coarsening/hierarchy.h"
#include "deadline.h"
#include "refinement/annealing.h"
#include "refinement/receive_bound.h"
#include "refinement/schedule.h"
#include "refinement/uncoarsening.h"
#include "state/balance.h"
#include "state/score.h"
#include "state/state.h"
#include "volpart/metrics.h"

namespace hpcgnn::volpart {
namespace {

/// The vertices sorted by own part, and the begin of each part.
std::pair<std::vector<std::int32_t>, std::vector<std::size_t>> by_part(const Share& share) {
  std::vector<std::size_t> begin(at(share.num_own) + 1);
  for (const std::int32_t p : share.part) ++begin[at(p) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int32_t> order(share.num_vertices());
  std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
  for (std::size_t v = 0; v < order.size(); ++v)
    order[next[at(share.part[v])]++] = static_cast<std::int32_t>(v);
  return {std::move(order), std::move(begin)};
}

/// The hypergraph of a share. Its nets are those of the share in the order of their owners, without
/// those that no move changes. They use the memory of the share's nets, which are restored in the
/// end.
class ShareGraph {
 public:
  ShareGraph(Share& share, std::span<const std::int64_t> outside_load) : _share(share) {
    add_vertices(outside_load);
    number_nets();
    add_pins();
  }
  Hypergraph& graph() { return _graph; }

  /// Give the share its nets back.
  void restore_nets() {
    std::size_t settled = _settled.size();
    for (std::size_t v = _share.num_vertices(); v-- > 0;) {
      // Move lists to the back, last one first, so that none is overwritten before it is read.
      auto place = at(_share.indptr[v + 1]);
      const auto begin = at(_share.indptr[v]);
      const std::size_t first = _graph.nets_begin[v], last = _graph.nets_begin[v + 1];
      while (place > begin + (last - first)) _share.nets.set(--place, _settled[--settled]);
      for (std::size_t k = last; k-- > first;) _share.nets.set(--place, _name[_share.nets[k]]);
    }
  }

 private:
  void add_vertices(std::span<const std::int64_t> outside_load) {
    const std::size_t num_inside = _share.num_vertices();
    _graph.num_outside = static_cast<Vertex>(_share.num_parts - _share.num_own);
    const std::size_t num_vertices = num_inside + _graph.num_outside;
    _graph.vertex_weight.reserve(num_vertices);
    _graph.vertex_weight.assign(_share.weights.begin(), _share.weights.end());
    _graph.vertex_weight.resize(num_vertices);
    _graph.outside_load.resize(num_vertices);
    for (std::size_t v = 0; v < num_inside; ++v)
      _graph.outside_load[v] = {outside_load[2 * v], outside_load[2 * v + 1]};
  }

  /// Number the nets that are kept in the order of their owners, with room for their pins.
  void number_nets() {
    const std::size_t num_inside = _share.num_vertices();
    std::vector<std::uint32_t> num_pins(_share.net_owner.size());
    for (const Net net : _share.nets.list(0, _share.nets.size())) ++num_pins[net];
    const auto kept = [&](std::size_t net) {
      return num_pins[net] > (at(_share.net_owner[net]) < num_inside ? 0U : 1U);
    };
    _graph.owned_begin.resize(std::size_t{_graph.num_vertices()} + 1);
    for (std::size_t net = 0; net < num_pins.size(); ++net)
      if (kept(net)) ++_graph.owned_begin[at(_share.net_owner[net]) + 1];
    std::partial_sum(_graph.owned_begin.begin(), _graph.owned_begin.end(),
                     _graph.owned_begin.begin());
    const Net num_nets = _graph.owned_begin.back();
    _name.resize(num_nets);
    _graph.net_owner.resize(num_nets);
    _graph.net_push.resize(num_nets);
    _graph.pins_begin.resize(std::size_t{num_nets} + 1);
    std::vector<Net> next(_graph.owned_begin.begin(), _graph.owned_begin.end() - 1);
    for (std::size_t net = 0; net < num_pins.size(); ++net) {
      if (!kept(net)) continue;
      const Net mine = next[at(_share.net_owner[net])]++;
      _name[mine] = static_cast<Net>(net);
      _graph.net_owner[mine] = static_cast<Vertex>(_share.net_owner[net]);
      _graph.net_push[mine] = _share.net_push[net];
      _graph.pins_begin[std::size_t{mine} + 1] = num_pins[net];
    }
    std::partial_sum(_graph.pins_begin.begin(), _graph.pins_begin.end(), _graph.pins_begin.begin());
  }

  void add_pins() {
    constexpr Net kSettled = std::numeric_limits<Net>::max();
    std::vector<Net> number(_share.net_owner.size(), kSettled);
    for (std::size_t mine = 0; mine < _name.size(); ++mine)
      number[_name[mine]] = static_cast<Net>(mine);
    _graph.pins = Packed(_graph.num_vertices(), _graph.pins_begin.back());
    std::vector<Offset> next(_graph.pins_begin.begin(), _graph.pins_begin.end() - 1);
    for (std::size_t v = 0; v < _share.num_vertices(); ++v)
      for (auto k = at(_share.indptr[v]); k < at(_share.indptr[v + 1]); ++k) {
        const Net net = _share.nets[k];
        const auto owner = static_cast<Vertex>(_share.net_owner[net]);
        if (number[net] == kSettled) {
          _graph.settle_outside(owner, static_cast<Vertex>(v), 1, _share.net_push[net]);
          _settled.push_back(net);
        } else {
          _graph.pins.set(next[number[net]]++, static_cast<Vertex>(v));
        }
      }
    _graph.nets = _share.nets.borrowed();
    _graph.nets_are_lent = true;
    _graph.index_nets();
  }

  Share& _share;
  Hypergraph _graph;
  std::vector<Net> _name;     ///< Number in the share of each net of the hypergraph.
  std::vector<Net> _settled;  ///< The other nets of each vertex, one vertex after the other.
};

std::vector<Load> as_loads(std::span<const std::int64_t> flat) {
  std::vector<Load> loads;
  for (std::size_t p = 0; 2 * p < flat.size(); ++p) loads.push_back({flat[2 * p], flat[2 * p + 1]});
  return loads;
}

std::vector<Load> sum_over(const SumOverShares& sum, const std::vector<Load>& own) {
  Loads flat;
  for (const Load& load : own) flat.insert(flat.end(), {load.send, load.recv});
  return as_loads(sum(flat));
}

}  // namespace

void Share::check() const {
  check_parts(num_parts);
  require(num_own >= 1 && num_own <= num_parts, "own parts are not in [1, num_parts]");
  require(indptr.size() == num_vertices() + 1 && indptr.front() == 0 &&
              indptr.back() == static_cast<std::int64_t>(nets.size()),
          "offsets do not fit the vertices and pins");
  require(std::ranges::is_sorted(indptr), "offsets decrease");
  require(nets.size() <= std::numeric_limits<Offset>::max(), "there are too many pins");
  require(part.size() == num_vertices(), "there must be one part for each vertex");
  require(net_push.size() == net_owner.size(), "there must be one kind for each net");
  const auto num_owners = static_cast<std::int64_t>(num_vertices()) + num_parts - num_own;
  require(num_owners < std::numeric_limits<std::int32_t>::max(), "there are too many vertices");
  for (const std::int32_t p : part) require(0 <= p && p < num_own, "a part is not an own one");
  for (const std::int32_t owner : net_owner)
    require(0 <= owner && owner < num_owners, "a net's owner is out of range");
  for (const std::size_t net : nets.list(0, nets.size()))
    require(net < net_owner.size(), "a net is out of range");
}

ShareCounts count_share(const Share& share) {
  share.check();
  ShareCounts found;
  const std::size_t num_nets = share.net_owner.size();
  found.parts.resize(num_nets);
  found.owner_holds.resize(num_nets);
  found.fetched.resize(at(share.num_own));
  found.pushed.resize(at(share.num_own));
  std::vector<std::int32_t> last_part(num_nets, -1);
  found.nearest.assign(kNearest * at(share.num_own), -1);
  found.nearest_nets.resize(kNearest * at(share.num_own));
  std::vector<std::int64_t> from(at(share.num_parts)), near(at(share.num_parts));
  std::vector<std::size_t> owners;
  const auto owner_part = [&](std::size_t net) {
    const std::size_t owner = at(share.net_owner[net]);
    return owner < share.num_vertices() ? at(share.part[owner])
                                        : owner - share.num_vertices() + at(share.num_own);
  };
  const auto [order, begin] = by_part(share);
  for (std::size_t p = 0; p < at(share.num_own); ++p) {
    for (std::size_t k = begin[p]; k < begin[p + 1]; ++k) {
      const std::size_t v = at(order[k]);
      for (std::int64_t place = share.indptr[v]; place < share.indptr[v + 1]; ++place) {
        const std::size_t net = share.nets[at(place)];
        const std::size_t owner = owner_part(net);
        const bool push = share.net_push[net] != 0;
        if (owner != p && !push) ++found.cut_pins;
        if (last_part[net] == static_cast<std::int32_t>(p)) continue;
        last_part[net] = static_cast<std::int32_t>(p);
        ++found.parts[net];
        if (owner == p) {
          found.owner_holds[net] = 1;
          continue;
        }
        ++(push ? found.pushed : found.fetched)[p];
        if (near[owner]++ == 0) owners.push_back(owner);
        if (!push) ++from[owner];
      }
    }
    const std::size_t most = std::min(kNearest, owners.size());
    std::ranges::partial_sort(owners, owners.begin() + static_cast<std::ptrdiff_t>(most), {},
                              [&](std::size_t q) { return std::pair(-near[q], q); });
    for (std::size_t k = 0; k < most; ++k) {
      found.nearest[p * kNearest + k] = static_cast<std::int32_t>(owners[k]);
      found.nearest_nets[p * kNearest + k] = near[owners[k]];
    }
    for (const std::size_t owner : owners) {
      found.max_pair_rows = std::max(found.max_pair_rows, std::exchange(from[owner], 0));
      near[owner] = 0;
    }
    owners.clear();
  }
  return found;
}

std::int64_t receive_bound(const Share& share, std::span<const std::int64_t> owner_weight,
                           double average_weight, double imbalance) {
  share.check();
  require(owner_weight.size() == share.net_owner.size(), "there must be one weight for each net");
  std::int64_t bound = 0;
  std::vector<Weight> beside;
  for (std::size_t v = 0; v < share.num_vertices(); ++v) {
    if (share.indptr[v + 1] - share.indptr[v] <= bound) continue;
    beside.clear();
    for (std::int64_t k = share.indptr[v]; k < share.indptr[v + 1]; ++k)
      if (const std::size_t net = share.nets[at(k)]; share.net_push[net] == 0)
        beside.push_back(owner_weight[net]);
    const Rows left = left_outside(beside, share.weights[v], average_weight, imbalance);
    bound = std::max<std::int64_t>(bound, left);
  }
  return bound;
}

std::vector<std::int32_t> refine_share(Share& share, const Whole& whole, const Options& options,
                                       int cycle, int cycles, const SumOverShares& sum) {
  // Step 1: Build the hypergraph of the share; loads that it cannot change are kept by vertex.
  share.check();
  require(whole.load.size() == 2 * at(share.num_parts), "there must be two loads for each part");
  require(whole.outside_load.size() == 2 * share.num_vertices(),
          "there must be two outside loads for each vertex");
  require(0 <= cycle && cycle < cycles, "the cycle is out of range");
  ShareGraph shared(share, whole.outside_load);
  Hypergraph& graph = shared.graph();
  std::vector<Part> part(share.part.begin(), share.part.end());
  for (int p = share.num_own; p < share.num_parts; ++p) part.push_back(static_cast<Part>(p));

  // Step 2: Subtract the share's own loads from those of the whole. Rows between shares are counted
  // by several shares, which cancels because only changes are exchanged.
  Surroundings around{
      share.num_own, whole.total_weight, std::vector<Load>(at(share.num_parts)), {}};
  std::optional<State> state(std::in_place, graph, share.num_parts, part, &around);
  const std::vector<Load> own = state->own_load();
  const std::vector<Load> before = sum_over(sum, own);
  const std::vector<Load> exact = as_loads(whole.load);
  around.exchange = [&](const std::vector<Load>& mine) {
    std::vector<Load> load = sum_over(sum, mine);
    for (std::size_t p = 0; p < load.size(); ++p) {
      load[p].send += exact[p].send - before[p].send - mine[p].send;
      load[p].recv += exact[p].recv - before[p].recv - mine[p].recv;
    }
    return load;
  };
  std::vector<Load> others;
  for (std::size_t p = 0; p < own.size(); ++p)
    others.push_back({exact[p].send - own[p].send, exact[p].recv - own[p].recv});
  state->surround(std::move(others));

  // Step 3: One V-cycle inside the parts.
  Deadline deadline(options.time_limit_s);
  const Task task{options,   share.num_parts, static_cast<Rows>(whole.receive_bound),
                  &deadline, &around,         {}};
  const Score start = score(*state, Balance(*state, options.imbalance), options.objective);
  state.reset();
  Random random(options.seed);
  const Schedule schedule = schedule_of(options.preset);
  const CoarseningLimits limits{schedule.max_levels, share.num_own, schedule.most_pins};
  std::vector<Level> levels = coarsen(graph, part, limits, deadline, random.fork());
  const int later = 2 * cycle < cycles ? 0 : 1;
  const Doublings doublings = doublings_of(later, schedule.cycles);
  Uncoarsening up(task, start, doublings, random.fork());
  const Candidate found = up.run(graph, std::move(levels), std::move(part));
  graph.drop_pins();
  shared.restore_nets();
  return {found.part.begin(),
          found.part.begin() + static_cast<std::ptrdiff_t>(share.num_vertices())};
}

}  // namespace hpcgnn::volpart
