// Cuts one step's attention into work: which queries read which chunks of keys together.
//
// Knows positions and pages alone. How it cuts changes speed, never a bit: a chunk is computed the same in any
// work item, and chunks are folded in order.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"

namespace quire {

// Queries that share the keys of chunks [first_chunk, last_chunk), for every kv head.
struct AttentionWork {
  int32_t first_member, num_members;  // into AttentionPlan.tokens
  int32_t first_chunk, last_chunk;
  // True: the work covers all that its queries see and writes their output. False: it leaves the state of each
  // chunk for a fold later.
  bool is_whole;
};

// A query whose chunks are computed apart; their states begin at `first_state`, in units of (chunk, head).
struct SplitQuery {
  int32_t token;
  int32_t first_chunk, last_chunk;
  int64_t first_state;
};

struct AttentionPlan {
  std::vector<int32_t> tokens;
  std::vector<AttentionWork> works;    // most keys first
  std::vector<SplitQuery> splits;
  std::vector<int32_t> split_of;       // [T]: index into splits, -1 where the token's work is whole
  int64_t num_states = 0;
};

struct AttentionShape {
  int32_t page_size;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t window;  // 0: none
  int32_t chunk;   // keys
  int32_t num_threads;
};

// Tiles of queries hold about this many rows (queries x heads of a kv head).
constexpr int32_t kTileRows = 48;

void plan_attention(const QuireBatch& batch, const AttentionShape& shape, AttentionPlan& plan);

}  // namespace quire
