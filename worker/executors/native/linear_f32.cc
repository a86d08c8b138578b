// Weights of any kind times float32 activations: weights become float32 a panel at a time.
//
// An output element is one chain of fma over its columns, in ascending order, whatever rows share the pass.

#include <algorithm>
#include <cstring>

#include "products.h"

namespace quire {
namespace {

constexpr int64_t kPanelColumns = 256;  // 16 KiB: a panel stays in the first-level cache

// How kLanes stored values become float32.
struct F32 {
  using Stored = float;
  static vf read(const float* from) { return load(from); }
};
struct BF16 {
  using Stored = uint16_t;
  static vf read(const uint16_t* from) { return load_bf16(from); }
};
struct F16 {
  using Stored = uint16_t;
  static vf read(const uint16_t* from) { return load_f16(from); }
};

// Adds columns [num_columns, kTile] of a tile times kRows rows of x to sums: [kRows, kTile].
template <typename Format, int kRows>
__attribute__((noinline)) void multiply(const typename Format::Stored* columns, int64_t num_columns,
                                        const float* x, int64_t stride, float* sums) {
  vf total[kRows][kVectorsPerTile];
  QUIRE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) total[m][r] = load(sums + m * kTile + r * kLanes);
  }
  for (int64_t k = 0; k < num_columns; ++k) {
    vf w[kVectorsPerTile];
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) w[r] = Format::read(columns + k * kTile + r * kLanes);
    QUIRE_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const vf repeated = set1(x[m * stride + k]);
      QUIRE_UNROLL
      for (int r = 0; r < kVectorsPerTile; ++r) total[m][r] = fma(w[r], repeated, total[m][r]);
    }
  }
  QUIRE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) store(sums + m * kTile + r * kLanes, total[m][r]);
  }
}

struct Rows {
  const float* x;  // [num_rows, stride], from the first of the columns on
  int64_t stride;
  int64_t num_rows;
};

template <typename Format>
void multiply_rows(const typename Format::Stored* columns, int64_t num_columns, Rows rows, float* sums) {
  const auto pass = [&](int64_t num, auto function) {
    for (; rows.num_rows >= num; rows.num_rows -= num) {
      function(columns, num_columns, rows.x, rows.stride, sums);
      rows.x += num * rows.stride;
      sums += num * kTile;
    }
  };
  if constexpr (kMaxPass > 4) pass(kMaxPass, multiply<Format, kMaxPass>);
  if constexpr (kMaxPass >= 4) pass(4, multiply<Format, 4>);
  pass(2, multiply<Format, 2>);
  pass(1, multiply<Format, 1>);
}

// Columns [first, first + num) of a tile as float32 (but for the rows' powers), in `panel`; whole groups of 16.
void unpack_codes(const PackedCodes& weight, int64_t tile, int64_t first, int64_t num, float* panel) {
  constexpr int kStep = 16;
  const int mask = weight.is_u4 ? 15 : 255, centre = weight.centre();
  for (int64_t column = first; column < first + num; column += kStep) {
    const uint16_t* scales = weight.scales(tile) + column / weight.group * weight.group_bytes() / 2;
    for (int r = 0; r < kVectorsPerTile; ++r) {
      const vf scale = load_f16(scales + r * kLanes);
      const vf offset = weight.has_offsets ? load_f16(scales + kTile + r * kLanes) : vf{};
      for (int64_t k = column; k < column + kStep; k += 4) {
        const uint8_t* line = weight.codes(tile) + k / (weight.is_u4 ? 8 : 4) * kLineBytes;
        const vi codes = load_as<vi>(line + r * kVectorBytes) >> (weight.is_u4 && (k & 4) ? 4 : 0);
        QUIRE_UNROLL
        for (int byte = 0; byte < 4; ++byte) {
          const vi code = (codes >> 8 * byte & mask) - centre;
          store(panel + (k - first + byte) * kTile + r * kLanes, fma(to_float(code), scale, offset));
        }
      }
    }
  }
}

template <typename Format>
void unpack(const typename Format::Stored* columns, int64_t num, float* panel) {
  for (int64_t i = 0; i < num * kTile; i += kLanes) store(panel + i, Format::read(columns + i));
}

// Narrow floats are widened as they are read for few rows, and once into a panel for many: the same values.
template <typename Format>
void multiply_narrow(const void* data, int64_t place, int64_t num_columns, const Rows& rows, float* panel,
                     float* sums) {
  const auto* columns = static_cast<const typename Format::Stored*>(data) + place;
  if (rows.num_rows <= kMaxPass) return multiply_rows<Format>(columns, num_columns, rows, sums);
  unpack<Format>(columns, num_columns, panel);
  multiply_rows<F32>(panel, num_columns, rows, sums);
}

// Adds columns [first, first + num) of a tile times rows (from that column on) to sums.
void multiply_columns(const QuireWeight& weight, int64_t tile, int64_t first, int64_t num, const Rows& rows,
                      float* sums) {
  alignas(64) float panel[kPanelColumns * kTile];
  const int64_t place = (tile * weight.cols + first) * kTile;
  if (weight.kind == QUIRE_BF16) return multiply_narrow<BF16>(weight.data, place, num, rows, panel, sums);
  if (weight.kind == QUIRE_F16) return multiply_narrow<F16>(weight.data, place, num, rows, panel, sums);
  const float* columns = panel;
  if (is_quantised(weight.kind)) {
    unpack_codes(PackedCodes(weight), tile, first, num, panel);
  } else if (is_vector(weight.kind, weight.rows)) {
    std::memset(panel, 0, sizeof panel);
    for (int64_t k = 0; k < num; ++k) panel[k * kTile] = static_cast<const float*>(weight.data)[first + k];
  } else {
    columns = static_cast<const float*>(weight.data) + place;
  }
  multiply_rows<F32>(columns, num, rows, sums);
}

}  // namespace

void linear_f32(Pool& pool, const QuireWeight& weight, const Activations::State& x, const Output& out) {
  for_blocks(pool, num_tiles_of(weight.rows), x.num_rows, kMaxPass, [&](const Block& block) {
    alignas(64) float sums[kMaxRowsPerItem * kTile];
    for (int64_t tile = block.first_tile; tile < block.end_tile; ++tile) {
      std::memset(sums, 0, static_cast<size_t>(block.num_rows) * kTile * sizeof(float));
      for (int64_t column = 0; column < weight.cols; column += kPanelColumns) {
        const int64_t num = std::min(kPanelColumns, weight.cols - column);
        const Rows rows{x.x + block.first_row * x.cols + column, x.cols, block.num_rows};
        multiply_columns(weight, tile, column, num, rows, sums);
      }
      const float* powers = is_quantised(weight.kind) ? PackedCodes(weight).powers(tile) : nullptr;
      out.write(sums, powers, tile, block.first_row, block.num_rows);
    }
  });
}

}  // namespace quire
