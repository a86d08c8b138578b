// A small thread pool for one engine: one caller and num_threads - 1 helpers.
//
// Helpers spin for a moment between two calls, so that the operations of a step follow each other without a
// system call, and then sleep: an idle worker uses no CPU. Items are taken one by one from a shared counter, so
// a core that a neighbour keeps busy takes fewer of them instead of making all wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace quire {

class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const;

  // Calls body(item, thread) for each item in [0, num_items), and returns when all have been done. `thread` is
  // in [0, num_threads) and names scratch memory; which thread does an item must never change a bit of it.
  // What a body throws is thrown again here, once all items are done.
  void run(int64_t num_items, const std::function<void(int64_t item, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
