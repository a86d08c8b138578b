// The thread that runs an engine's work in the order it was begun, so that its caller can do something else meanwhile.
//
// Takes the caller's place in the pool, unless the caller has nothing else to do before this thread has got a core:
// then the caller does the work itself, so that a busy machine costs no switch. Sleeps when nothing runs; knows
// nothing of what the work is.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

namespace quire {

class StepThread {
 public:
  StepThread();
  // Waits for what runs; what has not begun to run is dropped.
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // Puts `work` behind what was begun before, and returns its number at once. For one caller at a time.
  int64_t begin(std::function<void()> work);

  // Waits for the work of that number, or does it. Throws what it threw, or what earlier work threw: after a failure
  // nothing that was begun before it is told runs any more. Throws std::logic_error where there is no such work.
  void wait(int64_t number);

  // Waits for all that was begun; failures are left to be told.
  void drain();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  void do_next(Lock& lock);
  void wait_until_done(Lock& lock, int64_t number);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int64_t num_begun_ = 0;
  int64_t num_done_ = 0;
  int64_t awaited_ = std::numeric_limits<int64_t>::max();  // what the caller sleeps for
  bool is_busy_ = false;                                   // somebody does what was first in the queue
  bool is_ending_ = false;
  bool is_told_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it reads all of the above
};

}  // namespace quire
