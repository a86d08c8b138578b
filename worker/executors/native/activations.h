// Activations as products read them: float32 as they came, or int8 codes in groups of 32 columns.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "dot.h"
#include "linear.h"

namespace quire {

// Memory that only grows, aligned to lines.
class Scratch {
 public:
  template <typename T>
  T* hold(int64_t count) {
    const auto bytes = static_cast<size_t>((count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64);
    if (bytes > num_bytes_) {
      memory_.reset(std::aligned_alloc(64, bytes));
      num_bytes_ = memory_ ? bytes : 0;
      if (!memory_) throw std::bad_alloc();
    }
    return static_cast<T*>(memory_.get());
  }
  template <typename T>
  T* get() const {
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t num_bytes_ = 0;
};

struct Activations::State {
  const float* x = nullptr;  // [num_rows, cols]
  int64_t num_rows = 0;
  int32_t cols = 0;
  bool is_int8 = false;
  bool has_halves = false;

  int64_t num_groups() const { return (cols + kActivationGroup - 1) / kActivationGroup; }
  int64_t stride() const { return num_groups() * kActivationGroup; }

  Scratch codes;   // [num_rows, stride] int8 in [-127, 127]; 0 past cols
  Scratch groups;  // [num_rows, num_groups] GroupOfX
  Scratch halves;  // [num_rows, 2 * num_groups] GroupOfX, of 16 columns each: for weights in groups of 16

  // Makes `halves`, if they are not there.
  void prepare_halves(Pool& pool);
};

}  // namespace quire
