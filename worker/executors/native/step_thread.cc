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
  changed_.wait(lock, [this] { return state_ == State::kDone; });
  state_ = State::kIdle;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void StepThread::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return state_ == State::kBegun || is_ending_; });
    if (state_ != State::kBegun) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      work_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    work_ = nullptr;
    error_ = error;
    state_ = State::kDone;
    changed_.notify_all();
  }
}

}  // namespace quire
