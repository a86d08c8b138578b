// The thread that runs an engine's steps, so that its caller can do something else meanwhile.
//
// Takes the caller's place in the pool, unless the caller has nothing else to do before this thread has got a core:
// then the caller runs the step itself, so that a busy machine costs no switch. Sleeps when nothing runs; knows
// nothing of what a step is.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

class StepThread {
 public:
  StepThread();
  // Waits for what runs.
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // Starts `work` and returns at once. Throws std::logic_error while other work has not been waited for.
  void begin(std::function<void()> work);

  // Waits for the work that was begun, or does it; throws what it threw. Throws std::logic_error when there is none.
  void end();

 private:
  enum class State { kIdle, kBegun, kRunning, kDone };

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;
  bool is_ending_ = false;
  std::function<void()> work_;
  std::exception_ptr error_;
  std::thread thread_;  // last: it reads all of the above
};

}  // namespace quire
