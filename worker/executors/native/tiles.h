// What both kinds of product share: how the work of a matrix is cut into items, and how sums become outputs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "packed.h"
#include "pool.h"
#include "vec.h"

namespace quire {

constexpr int64_t kMaxRowsPerItem = 144;  // activations stay in the second-level cache, sums in the first

struct Output {
  int32_t num_columns;
  const float* bias;  // or null
  float* y;
  int64_t stride;

  // sums: [num_rows, kTile]; powers: [kTile], or null for one.
  void write(const float* sums, const float* powers, int64_t tile, int64_t first_row, int64_t num_rows) const {
    for (int lane = 0; lane < kTile; lane += kLanes) {
      const int64_t column = tile * kTile + lane;
      const auto num = static_cast<int>(std::min<int64_t>(kLanes, num_columns - column));
      if (num <= 0) return;
      const vf power = powers ? load(powers + lane) : set1(1.0f);
      const vf start = bias ? load_part(bias + column, num) : vf{};
      for (int64_t row = 0; row < num_rows; ++row) {
        const vf product = load(sums + row * kTile + lane) * power;
        const vf result = bias ? product + start : product;
        float* to = y + (first_row + row) * stride + column;
        num == kLanes ? store(to, result) : store_part(to, result, num);
      }
    }
  }
};

// What one thread does at a time.
struct Block {
  int64_t first_tile;
  int64_t end_tile;
  int64_t first_row;
  int64_t num_rows;
};

// Calls body(block) for blocks that make up all tiles and rows. Several blocks a thread, so that a thread whose
// core is busy takes fewer; rows in whole passes.
template <typename Body>
void for_blocks(Pool& pool, int64_t num_tiles, int64_t num_rows, int64_t rows_per_pass, const Body& body) {
  if (num_rows == 0) return;
  const int64_t least = (num_rows + kMaxRowsPerItem - 1) / kMaxRowsPerItem;
  const int64_t even = (num_rows + least - 1) / least;
  const int64_t rows_per_item = (even + rows_per_pass - 1) / rows_per_pass * rows_per_pass;
  const int64_t row_blocks = (num_rows + rows_per_item - 1) / rows_per_item;
  const int64_t wanted = pool.num_threads() == 1 ? 1 : 8 * pool.num_threads();
  const int64_t tile_blocks = std::min(num_tiles, (wanted + row_blocks - 1) / row_blocks);
  pool.run(row_blocks * tile_blocks, [&](int64_t item, int) {
    const int64_t tiles = item % tile_blocks, row = item / tile_blocks * rows_per_item;
    body(Block{tiles * num_tiles / tile_blocks, (tiles + 1) * num_tiles / tile_blocks, row,
               std::min(rows_per_item, num_rows - row)});
  });
}

}  // namespace quire
