#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "elementary.h"
#include "linear.h"

namespace quire {
namespace {

constexpr int kLanes = 16;
// Elements that one item covers: below this, handing work over costs more than doing it.
constexpr int64_t kItemElements = 8192;

// Calls body(first, last) for ranges that cover [0, count), of about kItemElements elements each.
template <typename Body>
void for_ranges(Pool& pool, int64_t count, int64_t width, const Body& body) {
  const int64_t size = std::max<int64_t>(1, kItemElements / std::max<int64_t>(1, width));
  pool.run((count + size - 1) / size, [&](int64_t item, int) {
    body(item * size, std::min(count, (item + 1) * size));
  });
}

// Sums squares in 16 lanes, each over every 16th element, and then the lanes pairwise.
float sum_of_squares(const float* x, int64_t width) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i + lane < width; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

void norm_row(const float* __restrict x, const float* __restrict weight, int64_t width, float eps,
              float* __restrict y) {
  const float mean = sum_of_squares(x, width) / static_cast<float>(width);
  const float root = std::sqrt(mean + eps);
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] / root * weight[i];
}

void silu_mul_row(const float* __restrict gate, const float* __restrict up, int64_t width, float* __restrict y) {
  for (int64_t i = 0; i < width; ++i) y[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

// 0.5 * g * (1 + tanh(u)) is g / (1 + exp(-2u)), which loses no digits where tanh(u) is near -1.
// Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2, the tanh form.
void gelu_mul_row(const float* __restrict gate, const float* __restrict up, int64_t width, float* __restrict y) {
  for (int64_t i = 0; i < width; ++i) {
    const float g = gate[i];
    const float minus_2u = -1.5957691216057308f * (g + 0.044715f * (g * g * g));
    y[i] = g / (1.0f + exp_f32(minus_2u)) * up[i];
  }
}

}  // namespace

void embed(Pool& pool, const QuireWeight& table, const int32_t* ids, int64_t num_rows, float* y) {
  for_ranges(pool, num_rows, table.cols, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) read_row(table, ids[row], y + row * table.cols);
  });
}

void rms_norm(Pool& pool, const float* x, const float* weight, int64_t num_rows, int64_t width, float eps, float* y) {
  for_ranges(pool, num_rows, width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) norm_row(x + row * width, weight, width, eps, y + row * width);
  });
}

void qk_norm(Pool& pool, const float* x, const float* q_weight, const float* k_weight, int64_t num_rows,
             int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, float eps, float* y) {
  const int64_t num_normed = num_heads + num_kv_heads;
  const int64_t width = (num_normed + num_kv_heads) * static_cast<int64_t>(head_dim);
  for_ranges(pool, num_rows, width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* source = x + row * width;
      float* target = y + row * width;
      for (int64_t head = 0; head < num_normed; ++head) {
        const float* weight = head < num_heads ? q_weight : k_weight;
        norm_row(source + head * head_dim, weight, head_dim, eps, target + head * head_dim);
      }
      const int64_t values = num_normed * head_dim;
      std::memcpy(target + values, source + values, (width - values) * sizeof(float));
    }
  });
}

void act_mul(Pool& pool, const float* x, int64_t num_rows, int64_t width, QuireActivation activation, float* y) {
  const auto apply = activation == QUIRE_SILU ? silu_mul_row : gelu_mul_row;
  for_ranges(pool, num_rows, width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* gate = x + row * 2 * width;
      apply(gate, gate + width, width, y + row * width);
    }
  });
}

void add(Pool& pool, const float* x, const float* other, int64_t count, float* y) {
  for_ranges(pool, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) y[i] = x[i] + other[i];
  });
}

void scale(Pool& pool, const float* x, float factor, int64_t count, float* y) {
  for_ranges(pool, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) y[i] = x[i] * factor;
  });
}

void soft_cap(Pool& pool, const float* x, float cap, int64_t count, float* y) {
  for_ranges(pool, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) y[i] = cap * tanh_f32(x[i] / cap);
  });
}

void gather_rows(Pool& pool, const float* x, const int32_t* rows, int64_t num_rows, int64_t width, float* y) {
  for_ranges(pool, num_rows, width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(y + row * width, x + rows[row] * width, width * sizeof(float));
    }
  });
}

}  // namespace quire
