#include "volpart/share.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

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

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

/// The vertices of each own part, one part after the other, and where each begins.
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

/// Nets ordered by their owners; those without a pin vanish.
Hypergraph hypergraph_of(const Share& share, std::span<const std::int64_t> outside_load) {
  Hypergraph graph;
  const std::size_t num_inside = share.num_vertices();
  graph.num_outside = static_cast<Vertex>(share.num_parts - share.num_own);
  const std::size_t num_vertices = num_inside + graph.num_outside;
  graph.vertex_weight.assign(share.weights.begin(), share.weights.end());
  graph.vertex_weight.resize(num_vertices);
  graph.outside_load.resize(num_vertices);
  for (std::size_t v = 0; v < num_inside; ++v)
    graph.outside_load[v] = {outside_load[2 * v], outside_load[2 * v + 1]};

  // Step 1: Number the nets that are kept in the order of their owners.
  constexpr Net kSettled = std::numeric_limits<Net>::max();
  std::vector<std::uint32_t> num_pins(share.net_owner.size());
  for (const std::int32_t net : share.nets) ++num_pins[at(net)];
  const auto kept = [&](std::size_t net) {
    return num_pins[net] > (at(share.net_owner[net]) < num_inside ? 0U : 1U);
  };
  graph.owned_begin.resize(num_vertices + 1);
  for (std::size_t net = 0; net < num_pins.size(); ++net)
    if (kept(net)) ++graph.owned_begin[at(share.net_owner[net]) + 1];
  std::partial_sum(graph.owned_begin.begin(), graph.owned_begin.end(), graph.owned_begin.begin());
  const Net num_nets = graph.owned_begin.back();
  std::vector<Net> number(num_pins.size(), kSettled);
  graph.net_owner.resize(num_nets);
  graph.net_push.resize(num_nets);
  graph.net_weight.assign(num_nets, 1);
  graph.pins_begin.resize(std::size_t{num_nets} + 1);
  {
    std::vector<Net> next(graph.owned_begin.begin(), graph.owned_begin.end() - 1);
    for (std::size_t net = 0; net < num_pins.size(); ++net) {
      if (!kept(net)) continue;
      const Net mine = number[net] = next[at(share.net_owner[net])]++;
      graph.net_owner[mine] = static_cast<Vertex>(share.net_owner[net]);
      graph.net_push[mine] = share.net_push[net];
      graph.pins_begin[std::size_t{mine} + 1] = num_pins[net];
    }
  }
  std::vector<std::uint32_t>().swap(num_pins);
  std::partial_sum(graph.pins_begin.begin(), graph.pins_begin.end(), graph.pins_begin.begin());

  // Step 2: Fill in the pins.
  graph.pins.resize(graph.pins_begin.back());
  std::vector<Offset> next(graph.pins_begin.begin(), graph.pins_begin.end() - 1);
  for (std::size_t v = 0; v < num_inside; ++v)
    for (std::int64_t k = share.indptr[v]; k < share.indptr[v + 1]; ++k) {
      const std::size_t net = at(share.nets[at(k)]);
      const auto owner = static_cast<Vertex>(share.net_owner[net]);
      if (number[net] == kSettled)
        graph.settle_outside(owner, static_cast<Vertex>(v), 1, share.net_push[net]);
      else
        graph.pins[next[number[net]]++] = static_cast<Vertex>(v);
    }
  graph.index_nets();
  return graph;
}

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
  require(part.size() == num_vertices(), "there must be one part for each vertex");
  require(net_push.size() == net_owner.size(), "there must be one kind for each net");
  const auto num_owners = static_cast<std::int64_t>(num_vertices()) + num_parts - num_own;
  require(num_owners < std::numeric_limits<std::int32_t>::max(), "there are too many vertices");
  for (const std::int32_t p : part) require(0 <= p && p < num_own, "a part is not an own one");
  for (const std::int32_t owner : net_owner)
    require(0 <= owner && owner < num_owners, "a net's owner is out of range");
  for (const std::int32_t net : nets)
    require(0 <= net && at(net) < net_owner.size(), "a net is out of range");
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
        const std::size_t net = at(share.nets[at(place)]);
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
      if (share.net_push[at(share.nets[at(k)])] == 0)
        beside.push_back(owner_weight[at(share.nets[at(k)])]);
    const Rows left = left_outside(beside, share.weights[v], average_weight, imbalance);
    bound = std::max<std::int64_t>(bound, left);
  }
  return bound;
}

std::vector<std::int32_t> refine_share(const Share& share, const Whole& whole,
                                       const Options& options, int cycle, int cycles,
                                       const SumOverShares& sum) {
  // Step 1: Build the hypergraph of the share, with what it cannot change kept at its vertices.
  share.check();
  require(whole.load.size() == 2 * at(share.num_parts), "there must be two loads for each part");
  require(whole.outside_load.size() == 2 * share.num_vertices(),
          "there must be two outside loads for each vertex");
  require(0 <= cycle && cycle < cycles, "the cycle is out of range");
  Hypergraph graph = hypergraph_of(share, whole.outside_load);
  std::vector<Part> part(share.part.begin(), share.part.end());
  for (int p = share.num_own; p < share.num_parts; ++p) part.push_back(static_cast<Part>(p));

  // Step 2: What the share accounts for itself is taken out of the loads of the whole. What several
  // shares account for (each row between them) cancels, since only changes are exchanged.
  Surroundings around{
      share.num_own, whole.total_weight, std::vector<Load>(at(share.num_parts)), {}};
  const std::vector<Load> own = State(graph, share.num_parts, part, &around).own_load();
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
  for (std::size_t p = 0; p < own.size(); ++p)
    around.load[p] = {exact[p].send - own[p].send, exact[p].recv - own[p].recv};

  // Step 3: One V-cycle inside the parts.
  Deadline deadline(options.time_limit_s);
  const Task task{options,   share.num_parts, static_cast<Rows>(whole.receive_bound),
                  &deadline, &around,         {}};
  const Score start = [&] {
    const State state(graph, share.num_parts, part, &around);
    return score(state, Balance(state, options.imbalance), options.objective);
  }();
  Random random(options.seed);
  const Schedule schedule = schedule_of(options.preset);
  const CoarseningLimits limits{schedule.max_levels, share.num_own, schedule.most_pins};
  std::vector<Level> levels = coarsen(graph, part, limits, deadline, random.fork());
  const int later = 2 * cycle < cycles ? 0 : 1;
  const Doublings doublings = doublings_of(later, schedule.cycles);
  Uncoarsening up(task, start, doublings, random.fork());
  graph.drop_index();
  part = up.climb(graph, std::move(levels), std::move(part));
  graph.index_nets();
  const Candidate found = up.finish(graph, std::move(part));
  return {found.part.begin(),
          found.part.begin() + static_cast<std::ptrdiff_t>(share.num_vertices())};
}

}  // namespace hpcgnn::volpart
