#include "step_thread.h"

#include <stdexcept>
#include <utility>

namespace quire {

StepThread::StepThread() : thread_([this] { run(); }) {}

StepThread::~StepThread() {
  {
    Lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t StepThread::begin(std::function<void()> work) {
  int64_t number;
  {
    Lock lock(mutex_);
    if (is_told_ && num_done_ == num_begun_) {
      error_ = nullptr;
      is_told_ = false;
    }
    queue_.push_back(std::move(work));
    number = ++num_begun_;
  }
  changed_.notify_all();
  return number;
}

void StepThread::wait(int64_t number) {
  Lock lock(mutex_);
  if (number < 1 || number > num_begun_) throw std::logic_error("no such work has begun");
  wait_until_done(lock, number);
  if (!error_) return;
  is_told_ = true;
  std::rethrow_exception(error_);
}

void StepThread::drain() {
  Lock lock(mutex_);
  wait_until_done(lock, num_begun_);
}

void StepThread::wait_until_done(Lock& lock, int64_t number) {
  while (num_done_ < number) {
    if (is_busy_) {
      awaited_ = number;
      changed_.wait(lock);
    } else {
      do_next(lock);
    }
  }
  awaited_ = std::numeric_limits<int64_t>::max();
  // The thread may have slept through what was done here, and has the rest.
  if (!queue_.empty()) changed_.notify_all();
}

// Does what is first in the queue; the lock is held before and after, not meanwhile.
void StepThread::do_next(Lock& lock) {
  const std::function<void()> work = std::move(queue_.front());
  queue_.pop_front();
  if (!error_) {
    is_busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    is_busy_ = false;
    error_ = error;
  }
  ++num_done_;
}

void StepThread::run() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || (!is_busy_ && !queue_.empty()); });
    if (is_ending_) return;
    do_next(lock);
    if (num_done_ >= awaited_) changed_.notify_all();
  }
}

}  // namespace quire
