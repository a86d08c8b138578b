#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace quire {
namespace {

// How long a thread spins before it sleeps. Operations of a step follow each other within a few microseconds;
// between two steps everybody sleeps.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 32;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Condition>
bool spin_until(const Condition& is_met) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (is_met()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return is_met();
}

}  // namespace

// One job at a time. A thread owns an item once it has taken `unclaimed` down from a positive value; `body` and
// `num_items` are read only after that, and stay as they are until every owned item has been counted in `done`.
// So a helper that comes late either takes an item of whatever job runs now, or finds none: it never has to be
// waited for.
struct Pool::State {
  std::atomic<int64_t> unclaimed{0};
  alignas(64) std::atomic<int64_t> done{0};
  const std::function<void(int64_t, int)>* body = nullptr;
  int64_t num_items = 0;

  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable finished;
  std::atomic<int> num_sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> is_ending{false};
  std::exception_ptr error;
  std::vector<std::thread> helpers;

  // Takes items until none is left, and counts those done all at once.
  void work_on(int thread) {
    int64_t count = 0;
    while (unclaimed.load(std::memory_order_relaxed) > 0) {
      const int64_t left = unclaimed.fetch_sub(1, std::memory_order_acq_rel);
      if (left <= 0) break;
      try {
        (*body)(num_items - left, thread);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
      ++count;
    }
    if (count == 0) return;
    done.fetch_add(count);
    // The caller looks at `done` after it has said that it sleeps, so one of the two sees the other.
    if (thread != 0 && caller_sleeps.load()) {
      std::lock_guard<std::mutex> lock(mutex);
      finished.notify_one();
    }
  }

  void help(int thread) {
    const auto has_work = [this] {
      return unclaimed.load(std::memory_order_acquire) > 0 || is_ending.load(std::memory_order_relaxed);
    };
    while (!is_ending) {
      if (!spin_until(has_work)) {
        std::unique_lock<std::mutex> lock(mutex);
        num_sleepers.fetch_add(1);
        work.wait(lock, [this] { return unclaimed.load() > 0 || is_ending.load(); });
        num_sleepers.fetch_sub(1);
      }
      work_on(thread);
    }
  }
};

Pool::Pool(int num_threads) : state_(new State) {
  for (int thread = 1; thread < num_threads; ++thread) {
    state_->helpers.emplace_back([state = state_.get(), thread] { state->help(thread); });
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_ending = true;
  }
  state_->work.notify_all();
  for (std::thread& helper : state_->helpers) helper.join();
}

int Pool::num_threads() const { return static_cast<int>(state_->helpers.size()) + 1; }

void Pool::run(int64_t num_items, const std::function<void(int64_t item, int thread)>& body) {
  if (num_items <= 0) return;
  State& state = *state_;
  if (num_items == 1 || state.helpers.empty()) {
    for (int64_t item = 0; item < num_items; ++item) body(item, 0);
    return;
  }
  state.body = &body;
  state.num_items = num_items;
  state.done.store(0, std::memory_order_relaxed);
  state.unclaimed.store(num_items);
  // A helper says that it sleeps before it looks for work the last time, so one of the two sees the other.
  if (state.num_sleepers.load() > 0) {
    { std::lock_guard<std::mutex> lock(state.mutex); }
    state.work.notify_all();
  }
  state.work_on(0);
  const auto is_done = [&state, num_items] { return state.done.load(std::memory_order_acquire) == num_items; };
  if (!spin_until(is_done)) {
    // A helper was taken off its core in the middle of an item: leave it this one.
    std::unique_lock<std::mutex> lock(state.mutex);
    state.caller_sleeps = true;
    state.finished.wait(lock, [&state, num_items] { return state.done.load() == num_items; });
    state.caller_sleeps = false;
  }
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
}

}  // namespace quire
