// How weight matrices lie in memory once packed. pack.cc writes it, the products read it.
//
// A matrix is cut into tiles of 16 output rows; a tile is read from front to back, in lines of 64 bytes. Only a
// single row of float32 (a norm's weight, a bias) stays the array that it is. Tiles hold
//   floats  a line (F32) or half a line (BF16, F16) per column: the column's 16 values;
//   U8      a line per 4 columns: byte 4 * row + (column & 3) is code - centre + 128;
//   U4      a line per 8 columns: low nibbles are its first 4 columns, high ones the others, bytes as in U8.
// Quantised matrices begin with a header and a power of two per row; a tile begins with its scales (and offsets),
// 16 per group of columns, in float16 and relative to the row's power: what was a float16 stays exact; rounding
// what was not (Q4_K, Q5_K, Q6_K) changes outputs by 0.02 %, where int8 activations change them by 0.7 %. Rows
// that pad the last tile are 0.
//
// Offsets are stored only where they are needed: where every offset is -centre * scale for one integer (Q4_0,
// Q8_0, Q6_K, symmetric INT8) codes are centred instead. So w = power * (scale * (stored - centre()) + offset).
#pragma once

#include <cstdint>

#include "abi.h"

namespace quire {

constexpr int kTile = 16;         // output rows
constexpr int kLineBytes = 64;    // a tile's codes of 4 (U8) or 8 (U4) columns
constexpr int kActivationGroup = 32;

inline int64_t num_tiles_of(int32_t rows) { return (static_cast<int64_t>(rows) + kTile - 1) / kTile; }
inline bool is_quantised(int32_t kind) { return kind == QUIRE_U4 || kind == QUIRE_U8; }

inline bool is_vector(int32_t kind, int32_t rows) { return kind == QUIRE_F32 && rows == 1; }

struct PackedHeader {
  int32_t has_offsets;
  int32_t unused[15];
};
static_assert(sizeof(PackedHeader) == kLineBytes, "the rest is aligned by lines");

// A quantised matrix as its products see it.
struct PackedCodes {
  PackedCodes(const QuireWeight& weight, bool has_offsets, const void* data)
      : is_u4(weight.kind == QUIRE_U4),
        has_offsets(has_offsets),
        group(weight.group),
        num_groups(weight.cols / weight.group),
        num_tiles(num_tiles_of(weight.rows)),
        scale_bytes((static_cast<int64_t>(num_groups) * group_bytes() + kLineBytes - 1) / kLineBytes * kLineBytes),
        tile_bytes(scale_bytes + static_cast<int64_t>(weight.cols) * (is_u4 ? kTile / 2 : kTile)),
        start(static_cast<const uint8_t*>(data)) {}
  explicit PackedCodes(const QuireWeight& weight)
      : PackedCodes(weight, static_cast<const PackedHeader*>(weight.data)->has_offsets != 0, weight.data) {}

  int group_bytes() const { return has_offsets ? 4 * kTile : 2 * kTile; }
  int64_t num_bytes() const { return tiles_at() + num_tiles * tile_bytes; }
  int64_t tiles_at() const { return kLineBytes + num_tiles * kTile * static_cast<int64_t>(sizeof(float)); }
  const float* powers(int64_t tile) const {
    return reinterpret_cast<const float*>(start + kLineBytes) + tile * kTile;
  }
  // [num_groups][scales of 16 rows, offsets of 16 rows if any]
  const uint16_t* scales(int64_t tile) const {
    return reinterpret_cast<const uint16_t*>(start + tiles_at() + tile * tile_bytes);
  }
  const uint8_t* codes(int64_t tile) const { return start + tiles_at() + tile * tile_bytes + scale_bytes; }
  // What the stored code of a zero weight is, but for the offset.
  int centre() const { return is_u4 ? (has_offsets ? 0 : 8) : 128; }

  bool is_u4;
  bool has_offsets;
  int32_t group;
  int32_t num_groups;
  int64_t num_tiles;
  int64_t scale_bytes;
  int64_t tile_bytes;
  const uint8_t* start;
};

// The functions of abi.h; they throw std::invalid_argument.
int64_t packed_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group);
int64_t used_bytes(const QuireWeight& weight);
void pack_codes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const uint8_t* codes, const float* scales,
                const float* offsets, void* out);
void pack_floats(int32_t kind, int32_t rows, int32_t cols, const float* values, void* out);
const char* kernel_name(int32_t weight_kind, int32_t compute);

}  // namespace quire
