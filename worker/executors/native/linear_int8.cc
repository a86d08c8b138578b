// Quantised weights times int8 activations.
//
// An output element is a sum over groups of columns, in ascending order, by
//   sum = fma(integer dot product, x's scale * w's scale, sum), and where there are offsets
//   sum = fma(x's scaled sum, w's offset, sum).
// Integers are exact and each element has its own sum, so it makes no difference how many rows a pass serves, nor
// whether 4-bit codes are unpacked in registers (few rows) or once into a panel (many).

#include "products.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "activations.h"
#include "dot.h"
#include "tiles.h"

namespace quire {
namespace {

constexpr int64_t kBytesAhead = 1024;    // of what is read from memory; two to four times that is no better
constexpr int64_t kPanelColumns = 1024;  // a panel of them is 16 KiB: it stays in the first-level cache

// How a tile's codes of 4 columns (a quad) are read.
struct PackedU4 {
  using Dot = DotU4;
  static constexpr bool kIsU4 = true;
  static constexpr bool kIsPacked = true;  // as it lies in memory, so worth fetching ahead
  static constexpr int kBytesPerColumn = kTile / 2;
  static vub quad(const uint8_t* lines, int quad, int vector) {
    const vub line = load_as<vub>(lines + quad / 2 * kLineBytes + vector * kVectorBytes);
    return (quad & 1 ? line >> 4 : line) & 15;
  }
};
struct PanelU4 {
  using Dot = DotU4;
  static constexpr bool kIsU4 = true;
  static constexpr bool kIsPacked = false;
  static constexpr int kBytesPerColumn = kTile;
  static vub quad(const uint8_t* lines, int quad, int vector) {
    return load_as<vub>(lines + quad * kLineBytes + vector * kVectorBytes);
  }
};
struct PackedU8 : PanelU4 {
  using Dot = DotU8;
  static constexpr bool kIsU4 = false;
  static constexpr bool kIsPacked = true;
};

// Part of a tile: whole groups of kColumns columns (32, or 16 where weights have a scale for 16).
struct Slice {
  const uint8_t* codes;
  const uint8_t* next;     // what lies behind them in memory: the next slice, or the next tile
  const uint16_t* scales;  // of the tile's first column
  int64_t first_group;
  int64_t num_groups;
  int groups_per_scale;
};

struct Rows {
  const int8_t* codes;  // of the slice's first column
  int64_t stride;
  const GroupOfX* groups;  // of the slice's first group
  int64_t groups_stride;
};

// Where sums of a tile are kept from its first slice on, and what becomes of them after its last.
struct Sums {
  float* kept;    // [rows, kTile]
  bool is_first;  // nothing is kept yet
  float* y;       // the tile's first output; null where sums are to be kept
  int64_t stride;
  const float* powers;  // [kTile]
  const float* bias;    // [kTile], or null
};

// Adds the slice's products with kRows rows to sums.
template <typename Source, int kColumns, bool kHasOffsets, int kRows>
__attribute__((noinline)) void multiply(const Slice& slice, const Rows& x, const Sums& sums) {
  using Dot = typename Source::Dot;
  constexpr int kScaleStep = kHasOffsets ? 2 * kTile : kTile;
  const uint8_t* codes = slice.codes;
  const uint8_t* next = slice.next;
  const uint16_t* scales = slice.scales + slice.first_group / slice.groups_per_scale * kScaleStep;
  int left = slice.groups_per_scale - static_cast<int>(slice.first_group % slice.groups_per_scale);
  const int8_t* row[kRows];
  const GroupOfX* group[kRows];
  QUIRE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    row[m] = x.codes + m * x.stride;
    group[m] = x.groups + m * x.groups_stride;
  }
  vf totals[kRows][kVectorsPerTile];
  QUIRE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) {
      totals[m][r] = sums.is_first ? vf{} : load(sums.kept + m * kTile + r * kLanes);
    }
  }
  if (sums.y != nullptr) {  // a line a row, too far apart for the machine to guess
    QUIRE_UNROLL
    for (int m = 0; m < kRows; ++m) __builtin_prefetch(sums.y + m * sums.stride, 1);
  }
  for (int64_t g = 0; g < slice.num_groups; ++g) {
    if (Source::kIsPacked) {
      for (int line = 0; line < kColumns * Source::kBytesPerColumn; line += kLineBytes) {
        __builtin_prefetch(codes + kBytesAhead + line);
      }
    } else {  // Nothing else of this pass touches memory: bring in what is to be unpacked next, scales included.
      constexpr int kBytes = kColumns * PackedU4::kBytesPerColumn + kLineBytes;
      for (int line = 0; line < kBytes; line += kLineBytes) __builtin_prefetch(next + line, 0, 2);
      next += kBytes;
    }
    typename Dot::Sum dots[kRows][kVectorsPerTile];
    QUIRE_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const int32_t start = !Source::kIsU4 ? group[m][g].start_u8 : kHasOffsets ? 0 : group[m][g].start_u4;
      QUIRE_UNROLL
      for (int r = 0; r < kVectorsPerTile; ++r) dots[m][r] = Dot::start(start);
    }
    QUIRE_UNROLL
    for (int q = 0; q < kColumns / 4; ++q) {
      typename Dot::Codes w[kVectorsPerTile];
      QUIRE_UNROLL
      for (int r = 0; r < kVectorsPerTile; ++r) w[r] = Dot::prepare(Source::quad(codes, q, r));
      QUIRE_UNROLL
      for (int m = 0; m < kRows; ++m) {
        const vb repeated = set1_bytes(row[m] + g * kColumns + 4 * q);
        QUIRE_UNROLL
        for (int r = 0; r < kVectorsPerTile; ++r) dots[m][r] = Dot::step(dots[m][r], w[r], repeated);
      }
    }
    vf scale[kVectorsPerTile], offset[kVectorsPerTile];
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) {
      scale[r] = load_f16(scales + r * kLanes);
      if (kHasOffsets) offset[r] = load_f16(scales + kTile + r * kLanes);
    }
    QUIRE_UNROLL
    for (int m = 0; m < kRows; ++m) {
      QUIRE_UNROLL
      for (int r = 0; r < kVectorsPerTile; ++r) {
        const vf dot = to_float(Dot::finish(dots[m][r]));
        totals[m][r] = fma(dot, scale[r] * group[m][g].scale, totals[m][r]);
        if (kHasOffsets) totals[m][r] = fma(set1(group[m][g].scaled_sum), offset[r], totals[m][r]);
      }
    }
    codes += kColumns * Source::kBytesPerColumn;
    if (--left == 0) {
      left = slice.groups_per_scale;
      scales += kScaleStep;
    }
  }
  QUIRE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    QUIRE_UNROLL
    for (int r = 0; r < kVectorsPerTile; ++r) {
      const int lane = r * kLanes;
      if (sums.y == nullptr) {
        store(sums.kept + m * kTile + lane, totals[m][r]);
        continue;
      }
      const vf product = totals[m][r] * load(sums.powers + lane);
      store(sums.y + m * sums.stride + lane, sums.bias ? product + load(sums.bias + lane) : product);
    }
  }
}

// multiply() for 1, 2, ... kMaxPass rows.
template <typename Source, int kColumns, bool kHasOffsets, int... kLess>
constexpr auto passes(std::integer_sequence<int, kLess...>) {
  return std::array{multiply<Source, kColumns, kHasOffsets, kLess + 1>...};
}

// Passes over num_rows rows. The last two share what is left evenly: codes and scales cost a pass of two rows what
// they cost a full one.
template <typename Source, int kColumns, bool kHasOffsets>
void multiply_rows(const Slice& slice, Rows x, int64_t num_rows, Sums sums) {
  constexpr auto kPasses = passes<Source, kColumns, kHasOffsets>(std::make_integer_sequence<int, kMaxPass>());
  while (num_rows > 0) {
    int64_t rows = std::min<int64_t>(num_rows, kMaxPass);
    if (num_rows > kMaxPass && num_rows < 2 * kMaxPass) rows = (num_rows + 1) / 2;
    kPasses[static_cast<size_t>(rows - 1)](slice, x, sums);
    num_rows -= rows;
    x.codes += rows * x.stride;
    x.groups += rows * x.groups_stride;
    sums.kept += rows * kTile;
    if (sums.y != nullptr) sums.y += rows * sums.stride;
  }
}

void unpack_panel(const uint8_t* lines, int64_t num_columns, uint8_t* panel) {
  for (int64_t q = 0; q < num_columns / 4; q += 2) {
    for (int r = 0; r < kVectorsPerTile; ++r) {
      store_as(panel + q * kLineBytes + r * kVectorBytes, PackedU4::quad(lines, 0, r));
      store_as(panel + (q + 1) * kLineBytes + r * kVectorBytes, PackedU4::quad(lines, 1, r));
    }
    lines += kLineBytes;
  }
}

template <int kColumns, bool kHasOffsets>
void multiply_tile(const PackedCodes& weight, int64_t tile, const Rows& x, const Block& block, const Output& out) {
  alignas(64) float kept[kMaxRowsPerItem * kTile];
  alignas(64) uint8_t panel[kPanelColumns * kTile];
  const int64_t num_columns = static_cast<int64_t>(weight.num_groups) * weight.group;
  const int64_t num_rows = block.num_rows, first_output = tile * kTile;
  const bool is_whole = first_output + kTile <= out.num_columns;
  Sums sums{kept, true, nullptr, out.stride, weight.powers(tile), out.bias ? out.bias + first_output : nullptr};
  for (int64_t column = 0; column < num_columns; column += kPanelColumns) {
    const int64_t columns = std::min(kPanelColumns, num_columns - column);
    const uint8_t* codes = weight.codes(tile) + column * (weight.is_u4 ? kTile / 2 : kTile);
    const uint8_t* next = codes + columns * (weight.is_u4 ? kTile / 2 : kTile);
    Slice slice{codes, next, weight.scales(tile), column / kColumns, columns / kColumns, weight.group / kColumns};
    sums.is_first = column == 0;
    if (is_whole && column + columns == num_columns) sums.y = out.y + block.first_row * out.stride + first_output;
    const Rows part{x.codes + column, x.stride, x.groups + column / kColumns, x.groups_stride};
    if (!weight.is_u4) {
      multiply_rows<PackedU8, kColumns, kHasOffsets>(slice, part, num_rows, sums);
    } else if constexpr (kColumns == kActivationGroup) {
      if (num_rows <= kMaxPass) {
        multiply_rows<PackedU4, kColumns, kHasOffsets>(slice, part, num_rows, sums);
      } else {
        unpack_panel(codes, columns, panel);
        slice.codes = panel;
        multiply_rows<PanelU4, kColumns, kHasOffsets>(slice, part, num_rows, sums);
      }
    }
  }
  if (!is_whole) out.write(kept, weight.powers(tile), tile, block.first_row, num_rows);
}

}  // namespace

void linear_int8(Pool& pool, const QuireWeight& weight, Activations::State& x, const Output& out) {
  const PackedCodes packed(weight);
  const bool is_halved = packed.group < kActivationGroup;
  if (is_halved) x.prepare_halves(pool);
  const GroupOfX* groups = (is_halved ? x.halves : x.groups).get<GroupOfX>();
  const int64_t groups_stride = x.num_groups() * (is_halved ? 2 : 1);
  auto* multiply_one = packed.has_offsets ? multiply_tile<32, true> : multiply_tile<32, false>;
  if (is_halved) multiply_one = packed.has_offsets ? multiply_tile<16, true> : multiply_tile<16, false>;
  for_blocks(pool, packed.num_tiles, x.num_rows, kMaxPass, [&](const Block& block) {
    const Rows rows{x.codes.get<int8_t>() + block.first_row * x.stride(), x.stride(),
                    groups + block.first_row * groups_stride, groups_stride};
    for (int64_t tile = block.first_tile; tile < block.end_tile; ++tile) {
      multiply_one(packed, tile, rows, block, out);
    }
  });
}

}  // namespace quire
