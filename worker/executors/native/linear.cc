// Which kernel serves a product, and what it is called.

#include "linear.h"

#include <stdexcept>
#include <string>

#include "products.h"

namespace quire {

const char* kernel_name(int32_t weight_kind, int32_t compute) {
  const bool is_int8 = compute == QUIRE_COMPUTE_INT8;
  switch (weight_kind) {
    case QUIRE_F32:
      return "f32";
    case QUIRE_BF16:
      return "bf16_f32";
    case QUIRE_F16:
      return "f16_f32";
    case QUIRE_U4:
      return is_int8 ? "u4_i8" : "u4_f32";
    case QUIRE_U8:
      return is_int8 ? "u8_i8" : "u8_f32";
    default:
      return "";
  }
}

void linear(Pool& pool, const QuireWeight& weight, const Activations& x, const float* bias, float* y,
            int64_t stride) {
  Activations::State& state = x.state();
  if (state.cols != weight.cols) {
    throw std::invalid_argument("activations of " + std::to_string(state.cols) + " columns times a weight of " +
                                std::to_string(weight.cols));
  }
  const Output out{weight.rows, bias, y, stride};
  if (is_quantised(weight.kind) && state.is_int8) {
    linear_int8(pool, weight, state, out);
  } else {
    linear_f32(pool, weight, state, out);
  }
}

}  // namespace quire
