#include "volpart/part_graph.h"

#include <atomic>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "checks.h"
#include "deadline.h"
#include "multilevel.h"
#include "refinement/receive_bound.h"

namespace hpcgnn::volpart {
namespace {

void check(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
           const std::vector<Start>& starts, const Options& options) {
  csr.check();
  check_weights(csr, weights);
  require(options.imbalance >= 0 && std::isfinite(options.imbalance),
          "imbalance must be at least 0");
  require(options.threads >= 1, "threads must be at least 1");
  require(options.time_limit_s >= 0, "the time limit must be at least 0 seconds");
  require(!starts.empty(), "at least one start is needed");
  check_parts(num_parts);
  for (const Start& start : starts)
    if (start.part) check_parts(csr, *start.part, num_parts);
}

Rows bound_of(const Hypergraph& graph, int num_parts, const Options& options) {
  const bool priced =
      options.objective != Objective::kTotal && options.objective != Objective::kMaxSend;
  return priced ? receive_bound(graph, num_parts, options.imbalance) : 0;
}

/// One start refined with one stream of random numbers.
struct Job {
  const Start* start;
  std::uint64_t replica;
  Candidate found;
  std::exception_ptr error;
};

void run(Job& job, Hypergraph& graph, const Task& task) {
  Random random(task.options.seed);
  for (std::uint64_t skipped = 0; skipped < job.replica; ++skipped) random.bits();
  if (job.start->part) {
    std::vector<Part> part(job.start->part->begin(), job.start->part->end());
    job.found = refine(graph, std::move(part), task, random.fork());
  } else {
    job.found = create(graph, task, random.fork());
  }
}

/// Take jobs until none is left. Jobs are independent of threads, and so are results.
void work(std::vector<Job>& jobs, std::atomic<std::size_t>& next, Hypergraph& graph, Task task,
          const Report& report, Deadline& deadline) {
  for (std::size_t taken = next++; taken < jobs.size(); taken = next++) {
    Job& job = jobs[taken];
    if (report)
      task.report = [&](const std::string& text) {
        report(job.start->name + ": " + text, deadline.elapsed_s());
      };
    try {
      run(job, graph, task);
    } catch (...) {
      job.error = std::current_exception();
      deadline.cancel();
    }
  }
}

const Job& best_of(const std::vector<Job>& jobs) {
  for (const Job& job : jobs)
    if (job.error) std::rethrow_exception(job.error);
  const Job* best = &jobs.front();
  for (const Job& job : jobs)
    if (job.found.score.improves(best->found.score)) best = &job;
  return *best;
}

}  // namespace

Result part_graph(const CsrView& csr, int num_parts, std::span<const std::int64_t> weights,
                  const std::vector<Start>& starts, const Options& options, const Report& report) {
  Deadline deadline(options.time_limit_s);
  check(csr, num_parts, weights, starts, options);
  // Threads share it: none of it is freed, because its nets are not borrowed.
  Hypergraph graph = options.objective == Objective::kJoint ? joint_hypergraph(csr, weights)
                                                            : fetch_hypergraph(csr, weights);
  const Task task{options, num_parts, bound_of(graph, num_parts, options), &deadline, nullptr, {}};
  std::vector<Job> jobs;
  for (const Start& start : starts)
    for (int replica = 0; replica < options.threads; ++replica)
      jobs.push_back({&start, static_cast<std::uint64_t>(replica), {}, {}});
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> helpers;
    for (int helper = 1; helper < options.threads; ++helper)
      helpers.emplace_back([&] { work(jobs, next, graph, task, {}, deadline); });
    work(jobs, next, graph, task, report, deadline);
  }
  const Job& best = best_of(jobs);
  Result result;
  result.winner = best.start->name;
  result.part.assign(best.found.part.begin(), best.found.part.end());
  result.metrics = measure(csr, result.part, num_parts, weights);
  return result;
}

}  // namespace hpcgnn::volpart
