/// Runs CUDA kernels on the host for tests: the features of NVRTC, on cooperating fibers.
///
/// The threads of a block are fibers of one host thread. A fiber runs until it meets others of its
/// warp in a shuffle, so that missing lanes, different masks, and reads of lanes outside the mask
/// are errors. Blocks run one after the other, and their fibers in either order, so that a kernel
/// which depends on an order without synchronisation gives different results.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define __device__
#define __forceinline__ inline

namespace emulator {

struct Index {
  unsigned x;
};
inline Index block_index, block_size, grid_size, thread_index;
inline const char* error = nullptr;

constexpr int kWarp = 32;
constexpr std::size_t kStackBytes = 64 << 10;

/// Lanes that meet; a gate is named by its lowest lane.
struct Gate {
  unsigned mask = 0;
  int arrived = 0;
  std::uint64_t generation = 0;
};
struct Warp {
  std::uint64_t slots[kWarp];
  Gate gates[kWarp];
};

/// The fibers of one block. They switch by longjmp, which is fast as it saves no signal mask.
class Block {
 public:
  /// Each thread calls run(body).
  Block(unsigned threads, void (*run)(const void*), const void* body)
      : run_(run), body_(body), warps_((threads + kWarp - 1) / kWarp), fibers_(threads) {
    // Kept between launches and never cleared: most fibers touch one page of their stack.
    static std::vector<char*> stacks;
    while (stacks.size() < fibers_.size()) stacks.push_back(new char[kStackBytes]);
    for (std::size_t i = 0; i < fibers_.size(); ++i) fibers_[i].stack = stacks[i];
  }

  void run(bool reversed) {
    for (auto& warp : warps_) warp = Warp{};
    for (auto& fiber : fibers_) fiber.state = State::kNew;
    std::size_t left = fibers_.size();
    while (left > 0 && error == nullptr) {
      const std::uint64_t before = progress_;
      const std::size_t had = left;
      for (std::size_t i = 0; i < fibers_.size() && error == nullptr; ++i) {
        current_ = reversed ? fibers_.size() - 1 - i : i;
        if (fibers_[current_].state == State::kDone) continue;
        resume(fibers_[current_]);
        left -= fibers_[current_].state == State::kDone;
      }
      if (left == had && progress_ == before && error == nullptr)
        error = "threads of a warp wait for lanes that never come";
    }
  }

  template <class T>
  T exchange(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    const int lane = static_cast<int>(current_ % kWarp);
    Warp& warp = warps_[current_ / kWarp];
    warp.slots[lane] = 0;
    std::memcpy(&warp.slots[lane], &value, sizeof(T));
    meet(mask);
    if ((mask >> source & 1u) == 0) fail("a shuffle reads a lane outside its mask");
    T result;
    std::memcpy(&result, &warp.slots[source], sizeof(T));
    meet(mask);
    return result;
  }

  void meet(unsigned mask) {
    const unsigned lane = static_cast<unsigned>(current_ % kWarp);
    if ((mask >> lane & 1u) == 0) fail("a lane is missing in its own mask");
    Gate& gate = warps_[current_ / kWarp].gates[std::countr_zero(mask)];
    if (gate.arrived > 0 && gate.mask != mask) fail("lanes of a shuffle have different masks");
    gate.mask = mask;
    if (++gate.arrived == std::popcount(mask)) {
      gate.arrived = 0;
      ++gate.generation;
      ++progress_;
      return;
    }
    for (const std::uint64_t seen = gate.generation; gate.generation == seen;) leave();
  }

 private:
  enum class State { kNew, kRunning, kDone };
  struct Fiber {
    ucontext_t context;
    jmp_buf at;
    State state;
    char* stack;
  };

  static void enter(unsigned high, unsigned low) {
    Block* const block = reinterpret_cast<Block*>(static_cast<std::uintptr_t>(high) << 32 | low);
    block->run_(block->body_);
    block->fibers_[block->current_].state = State::kDone;
    block->leave();
  }

  void resume(Fiber& fiber) {
    thread_index.x = static_cast<unsigned>(current_);
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.state == State::kRunning) _longjmp(fiber.at, 1);
    fiber.state = State::kRunning;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::enter), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
    setcontext(&fiber.context);
  }

  void leave() {
    if (_setjmp(fibers_[current_].at) == 0) _longjmp(scheduler_, 1);
  }

  /// The launch ends with this message; the fiber does not continue.
  void fail(const char* message) {
    error = message;
    leave();
  }

  void (*run_)(const void*);
  const void* body_;
  std::vector<Warp> warps_;
  std::vector<Fiber> fibers_;
  jmp_buf scheduler_;
  std::size_t current_ = 0;
  std::uint64_t progress_ = 0;
};

inline Block* block = nullptr;

/// Returns null, or an error message.
template <class Body>
const char* launch(unsigned blocks, unsigned threads, bool reversed, const Body& body) {
  error = nullptr;
  Block fibers(threads, [](const void* each) { (*static_cast<const Body*>(each))(); }, &body);
  block = &fibers;
  grid_size.x = blocks;
  block_size.x = threads;
  for (unsigned i = 0; i < blocks && error == nullptr; ++i) {
    block_index.x = reversed ? blocks - 1 - i : i;
    fibers.run(reversed);
  }
  block = nullptr;
  return error;
}

}  // namespace emulator

#define blockIdx ::emulator::block_index
#define blockDim ::emulator::block_size
#define gridDim ::emulator::grid_size
#define threadIdx ::emulator::thread_index

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return emulator::block->exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step, int width) {
  return __shfl_sync(mask, value, (static_cast<int>(threadIdx.x % 32) ^ step) & (width - 1), width);
}
inline void __syncwarp(unsigned mask) { emulator::block->meet(mask); }
template <class T>
void atomicAdd(T* to, T value) {
  *to += value;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

/// `run_NAME(arguments, blocks, threads, reversed)` launches, `size_NAME()` is the struct's size.
#define HPCGNN_KERNEL(name, Arguments, ...)                                                   \
  extern "C" const char* run_##name(const void* arguments, unsigned blocks, unsigned threads, \
                                    int reversed) {                                           \
    const Arguments a = *static_cast<const Arguments*>(arguments);                            \
    return emulator::launch(blocks, threads, reversed != 0, [&] { __VA_ARGS__(a); });         \
  }                                                                                           \
  extern "C" unsigned long size_##name() { return sizeof(Arguments); }
