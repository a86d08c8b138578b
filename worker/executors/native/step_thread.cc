#include "step_thread.h"

#include <stdexcept>
#include <utility>

namespace quire {

StepThread::StepThread() : thread_([this] { run(); }) {}

StepThread::~StepThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepThread::begin(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kIdle) throw std::logic_error("a step has begun and has not been waited for");
    work_ = std::move(work);
    state_ = State::kBegun;
  }
  changed_.notify_all();
}

void StepThread::end() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::kIdle) throw std::logic_error("no step has begun");
  if (state_ == State::kBegun) {
    // Nobody has taken it yet, and nobody will once this lock is gone.
    state_ = State::kIdle;
    const std::function<void()> work = std::exchange(work_, nullptr);
    lock.unlock();
    work();
    return;
  }
  changed_.wait(lock, [this] { return state_ == State::kDone; });
  state_ = State::kIdle;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void StepThread::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return state_ == State::kBegun || is_ending_; });
    if (state_ != State::kBegun) return;
    state_ = State::kRunning;
    const std::function<void()> work = std::exchange(work_, nullptr);
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    state_ = State::kDone;
    changed_.notify_all();
  }
}

}  // namespace quire
