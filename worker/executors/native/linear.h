// Products of activations with packed weights: y = x W^T.
//
// Contract: an element of y depends on its own row of x and its own row of W alone, bit for bit: the sum over K
// runs in one fixed order whatever the number of rows, their places in a tile and the thread.
#pragma once

#include <cstdint>

#include "abi.h"
#include "pool.h"

namespace quire {

// Rows of activations in the form that products read; memory is kept from call to call.
class Activations {
 public:
  Activations();
  ~Activations();
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  // Takes x: [num_rows, cols] float32, row-major and contiguous, which must stay until the products are made.
  void prepare(Pool& pool, const float* x, int64_t num_rows, int32_t cols, QuireCompute compute);

  struct State;
  State& state() const { return *state_; }

 private:
  State* state_;
};

// Writes y[row * stride + o] for o in [0, weight.rows). bias: [weight.rows] or null.
// `compute` INT8 needs a quantised weight; float weights are always multiplied in float32.
void linear(Pool& pool, const QuireWeight& weight, const Activations& x, const float* bias, float* y,
            int64_t stride);

// Writes one row of a matrix as float32: what an embedding looks up. out: [weight.cols].
void read_row(const QuireWeight& weight, int32_t row, float* out);

}  // namespace quire
