// A thread beside the interpreter that ends a process which makes no progress.
//
// It is native because a rank that hangs in HDF5 or in MPI's start holds the interpreter's lock: no
// thread of Python would run. What it needs is copied here when it is known.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace nb = nanobind;

namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kLongestTick = 1.0;
constexpr double kTicks = 40;
// How long other ranks may still speak, and how long the interpreter may take to end the job.
constexpr double kLongestGrace = 2.0;
constexpr double kLastResort = 4.0;

void sleep_for(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

class Watchdog {
 public:
  void start(int status, int dump_signal) {
    status_ = status;
    dump_signal_ = dump_signal;
    std::thread([this] { watch(); }).detach();
  }

  void set_command(const std::string& command, const std::string& rank) {
    std::lock_guard lock(mutex_);
    command_ = command;
    rank_ = rank;
    ++beats_;
  }

  void set_limit(double limit_s) {
    std::lock_guard lock(mutex_);
    limit_s_ = limit_s;
    ++beats_;
  }

  void set_position(const std::string& position) {
    std::lock_guard lock(mutex_);
    position_ = position;
    ++beats_;
  }

  void set_place(const std::string& inside, const std::string& after) {
    std::lock_guard lock(mutex_);
    inside_ = inside;
    after_ = after;
    ++beats_;
  }

  void beat() {
    std::lock_guard lock(mutex_);
    ++beats_;
  }

  void leave_interpreter() {
    std::lock_guard lock(mutex_);
    dump_signal_ = 0;
    awaited_ = false;
  }

  void wait_until_stalled() {
    nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    awaited_ = true;
    stalled_changed_.wait(lock, [this] { return stalled_; });
  }

 private:
  void watch() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::uint64_t seen = 0;
    double idle_s = 0;
    for (;;) {
      double limit_s = locked(limit_s_);
      double tick_s = limit_s > 0 ? std::min(kLongestTick, limit_s / kTicks) : kLongestTick;
      auto before = std::chrono::steady_clock::now();
      sleep_for(tick_s);
      double slept_s = Seconds(std::chrono::steady_clock::now() - before).count();
      std::uint64_t beats = locked(beats_);
      if (limit_s <= 0 || beats != seen) {
        seen = beats;
        idle_s = 0;
        continue;
      }
      // A process that was stopped as a whole, as a suspended job is, has not waited.
      idle_s += std::min(slept_s, 2 * tick_s);
      if (idle_s >= limit_s) end(limit_s);
    }
  }

  [[noreturn]] void end(double limit_s) {
    say(describe(limit_s));
    dump_stacks();
    sleep_for(std::min(kLongestGrace, limit_s / 4));
    // A thread that came back to an interpreter which ends would be thrown out of it, and the
    // process would abort with a status that is not requeued.
    if (locked(awaited_)) {
      {
        std::lock_guard lock(mutex_);
        stalled_ = true;
      }
      stalled_changed_.notify_all();
      sleep_for(kLastResort);
    }
    _exit(status_);
  }

  std::string describe(double limit_s) {
    std::lock_guard lock(mutex_);
    std::string text = command_ + ": error: " + rank_ + " has made no progress for ";
    text += std::to_string(std::llround(limit_s)) + " s: ";
    text += inside_.empty() ? "outside all spans" : "in " + inside_;
    if (!position_.empty()) text += " of " + position_;
    if (!after_.empty()) text += ", after " + after_;
    text += "; ending the job with status " + std::to_string(status_);
    return text + ": start it again to go on from the last checkpoint (run.stall_s is the limit)\n";
  }

  static void say(const std::string& text) {
    // One call, so that the lines of several ranks do not mix.
    [[maybe_unused]] auto written = write(STDERR_FILENO, text.data(), text.size());
  }

  // faulthandler's handler needs no lock of the interpreter, and no thread that could still answer:
  // this one runs it.
  void dump_stacks() {
    int number = locked(dump_signal_);
    if (number == 0) return;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    pthread_kill(pthread_self(), number);
    pthread_sigmask(SIG_BLOCK, &one, nullptr);
  }

  template <typename T>
  T locked(const T& value) {
    std::lock_guard lock(mutex_);
    return value;
  }

  std::mutex mutex_;
  std::condition_variable stalled_changed_;
  std::string command_, rank_, position_, inside_, after_;
  double limit_s_ = 0;
  std::uint64_t beats_ = 0;
  bool stalled_ = false, awaited_ = false;
  int status_ = 1, dump_signal_ = 0;
};

// Never destroyed: its thread runs until the process has ended.
Watchdog& watchdog() {
  static auto* the_one = new Watchdog;
  return *the_one;
}

}  // namespace

NB_MODULE(_watchdog, m) {
  m.def(
      "start", [](int status, int signal) { watchdog().start(status, signal); }, nb::arg("status"),
      nb::arg("dump_signal"));
  m.def(
      "set_command",
      [](const std::string& command, const std::string& rank) {
        watchdog().set_command(command, rank);
      },
      nb::arg("command"), nb::arg("rank"));
  m.def("set_limit", [](double limit_s) { watchdog().set_limit(limit_s); }, nb::arg("limit_s"));
  m.def(
      "set_position", [](const std::string& position) { watchdog().set_position(position); },
      nb::arg("position"));
  m.def(
      "set_place",
      [](const std::string& inside, const std::string& after) {
        watchdog().set_place(inside, after);
      },
      nb::arg("inside"), nb::arg("after"));
  m.def("beat", [] { watchdog().beat(); });
  m.def("leave_interpreter", [] { watchdog().leave_interpreter(); });
  m.def("wait_until_stalled", [] { watchdog().wait_until_stalled(); });
}
