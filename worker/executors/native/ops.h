// The operations on rows that are neither products nor attention.
//
// Contract: an element's bits depend on its own row alone, whatever the rows beside it and the thread: elementwise
// arithmetic is plain IEEE without contraction, so a vector and a scalar loop round alike, and sums over a row run
// in 16 fixed lanes. Bits are the same on every instruction set. Rows are contiguous float32; outputs may hold
// anything before and are written whole.
#pragma once

#include <cstdint>

#include "abi.h"
#include "pool.h"

namespace quire {

// y[t] = row ids[t] of the table. y: [T, table.cols].
void embed(Pool& pool, const QuireWeight& table, const int32_t* ids, int64_t num_rows, float* y);

// y = x / sqrt(mean(x^2) + eps) * weight, row by row. x, y: [rows, width]; weight: [width].
// Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
void rms_norm(Pool& pool, const float* x, const float* weight, int64_t num_rows, int64_t width, float eps, float* y);

// rms_norm of each q head and each k head; v is copied. x, y: [T, (heads + 2 * kv_heads) * head_dim].
void qk_norm(Pool& pool, const float* x, const float* q_weight, const float* k_weight, int64_t num_rows,
             int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, float eps, float* y);

// y = act(gate) * up. x: [rows, 2 * width], gate then up; y: [rows, width].
// Source: Shazeer 2020, "GLU Variants Improve Transformer".
void act_mul(Pool& pool, const float* x, int64_t num_rows, int64_t width, QuireActivation activation, float* y);

void add(Pool& pool, const float* x, const float* other, int64_t count, float* y);
void scale(Pool& pool, const float* x, float factor, int64_t count, float* y);

// y = cap * tanh(x / cap).
void soft_cap(Pool& pool, const float* x, float cap, int64_t count, float* y);

// y[i] = x[rows[i]]. x: [*, width]; y: [num_rows, width].
void gather_rows(Pool& pool, const float* x, const int32_t* rows, int64_t num_rows, int64_t width, float* y);

}  // namespace quire
