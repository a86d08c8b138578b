// Weights of any kind times float32 activations: weights become float32 a panel at a time.
//
// An output element is one chain of fma over its columns, in ascending order, whatever rows share the pass.

#include <algorithm>
#include <cstring>

#include "products.h"

namespace quire {
namespace {

constexpr int64_t kPanelColumns = 256;  // 16 KiB: a panel stays in the first-level cache

// Adds panel [num_columns, kTile] times kRows rows of x to sums: [kRows, kTile].
template <int kRows>
void multiply(const float* panel, int64_t num_columns, const float* x, int64_t stride, float* sums) {
  vf total[kRows][kVectorsPerTile];
  for (int m = 0; m < kRows; ++m) {
    for (int r = 0; r < kVectorsPerTile; ++r) total[m][r] = load(sums + m * kTile + r * kLanes);
  }
  for (int64_t k = 0; k < num_columns; ++k) {
    vf w[kVectorsPerTile];
#pragma GCC unroll 16
    for (int r = 0; r < kVectorsPerTile; ++r) w[r] = load(panel + k * kTile + r * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const vf repeated = set1(x[m * stride + k]);
#pragma GCC unroll 16
      for (int r = 0; r < kVectorsPerTile; ++r) total[m][r] = fma(w[r], repeated, total[m][r]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int r = 0; r < kVectorsPerTile; ++r) store(sums + m * kTile + r * kLanes, total[m][r]);
  }
}

void multiply_rows(const float* panel, int64_t num_columns, const float* x, int64_t stride, int64_t num_rows,
                   float* sums) {
  const auto pass = [&](int64_t rows, auto function) {
    for (; num_rows >= rows; num_rows -= rows) {
      function(panel, num_columns, x, stride, sums);
      x += rows * stride;
      sums += rows * kTile;
    }
  };
  if constexpr (kMaxPass > 4) pass(kMaxPass, multiply<kMaxPass>);
  if constexpr (kMaxPass >= 4) pass(4, multiply<4>);
  pass(2, multiply<2>);
  pass(1, multiply<1>);
}

// Columns [first, first + num) of a tile as float32 (but for the rows' powers), in `panel`.
void unpack_codes(const PackedCodes& weight, int64_t tile, int64_t first, int64_t num, float* panel) {
  const int centre = weight.centre();
  for (int64_t column = first; column < first + num; column += 4) {
    const uint16_t* scales = weight.scales(tile) + column / weight.group * weight.group_bytes() / 2;
    const uint8_t* line = weight.codes(tile) + column / (weight.is_u4 ? 8 : 4) * kLineBytes;
    const int nibble = weight.is_u4 && (column & 4) ? 4 : 0;
    for (int r = 0; r < kVectorsPerTile; ++r) {
      const vf scale = load_f16(scales + r * kLanes);
      const vf offset = weight.has_offsets ? load_f16(scales + kTile + r * kLanes) : vf{};
      const vi codes = load_as<vi>(line + r * kVectorBytes) >> nibble;
      for (int byte = 0; byte < 4; ++byte) {
        const vi code = (codes >> 8 * byte & (weight.is_u4 ? 15 : 255)) - centre;
        store(panel + (column - first + byte) * kTile + r * kLanes, fma(to_float(code), scale, offset));
      }
    }
  }
}

const float* unpack(const QuireWeight& weight, int64_t tile, int64_t first, int64_t num, float* panel) {
  if (is_quantised(weight.kind)) {
    unpack_codes(PackedCodes(weight), tile, first, num, panel);
    return panel;
  }
  if (is_vector(weight.kind, weight.rows)) {
    std::memset(panel, 0, static_cast<size_t>(num) * kTile * sizeof(float));
    for (int64_t k = 0; k < num; ++k) panel[k * kTile] = static_cast<const float*>(weight.data)[first + k];
    return panel;
  }
  const int64_t place = (tile * weight.cols + first) * kTile;
  if (weight.kind == QUIRE_F32) return static_cast<const float*>(weight.data) + place;
  const uint16_t* from = static_cast<const uint16_t*>(weight.data) + place;
  for (int64_t i = 0; i < num * kTile; i += kLanes) {
    store(panel + i, weight.kind == QUIRE_BF16 ? load_bf16(from + i) : load_f16(from + i));
  }
  return panel;
}

}  // namespace

void linear_f32(Pool& pool, const QuireWeight& weight, const Activations::State& x, const Output& out) {
  for_blocks(pool, num_tiles_of(weight.rows), x.num_rows, kMaxPass,
             [&](int64_t tile, int64_t end, int64_t row, int64_t end_row) {
    alignas(64) float sums[kMaxRowsPerItem * kTile];
    alignas(64) float panel[kPanelColumns * kTile];
    for (; tile < end; ++tile) {
      std::memset(sums, 0, static_cast<size_t>(end_row - row) * kTile * sizeof(float));
      for (int64_t column = 0; column < weight.cols; column += kPanelColumns) {
        const int64_t num = std::min(kPanelColumns, weight.cols - column);
        multiply_rows(unpack(weight, tile, column, num, panel), num, x.x + row * x.cols + column, x.cols, end_row - row,
                      sums);
      }
      out.write(sums, is_quantised(weight.kind) ? PackedCodes(weight).powers(tile) : nullptr, tile, row, end_row - row);
    }
  });
}

}  // namespace quire
