// The two ways in which linear() makes a product.
#pragma once

#include "activations.h"
#include "tiles.h"

namespace quire {

// Quantised weights and activations that were prepared as int8.
void linear_int8(Pool& pool, const QuireWeight& weight, Activations::State& x, const Output& out);

// Weights of any kind, made float32, and activations as they came.
void linear_f32(Pool& pool, const QuireWeight& weight, const Activations::State& x, const Output& out);

}  // namespace quire
