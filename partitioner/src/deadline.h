/// When to stop: at a time limit, or when the caller cancels.
#pragma once

#include <atomic>
#include <chrono>

namespace hpcgnn::volpart {

class Deadline {
 public:
  explicit Deadline(double seconds) : _seconds(seconds) {}

  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - _began).count();
  }
  bool passed() const { return _cancelled || elapsed_s() >= _seconds; }
  void cancel() { _cancelled = true; }

 private:
  double _seconds;
  std::chrono::steady_clock::time_point _began = std::chrono::steady_clock::now();
  std::atomic<bool> _cancelled = false;
};

}  // namespace hpcgnn::volpart
