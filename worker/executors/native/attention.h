// Rotary embedding, the KV store and attention over pages.
//
// Contract: a row's result depends on its own sequence's tokens alone, bit for bit: keys are summed in blocks of
// fixed size from position 0, whatever else is in the step and however the prompt was cut. Keys and values of the
// step itself are read back as stored. Nothing past a sequence's end is ever read.
#pragma once

#include <cstdint>

#include "abi.h"
#include "pool.h"

namespace quire {

// The KV memory of one engine. A page is one contiguous run over all layers, so that moving it is one copy;
// how a page looks inside is this module's, and services/domain/kv_layout.py gives its size.
struct KvMemory {
  uint8_t* pages;
  int64_t page_bytes;
  QuireKvFormat format;
  int32_t page_size;  // tokens
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t head_dim;
};

int64_t kv_page_bytes(const KvMemory& shape);

// qkv: [T, (heads + 2 * kv_heads) * head_dim]; q: [T, heads * head_dim]. rope: [positions, head_dim], cosines of
// the head_dim / 2 pairs, then sines; pair i is (i, i + head_dim / 2). `sequence_of`: [T].
void rope_store(Pool& pool, const KvMemory& kv, const QuireBatch& batch, const int32_t* sequence_of, int32_t layer,
                const float* rope, int32_t num_heads, const float* qkv, float* q);

struct AttentionParams {
  int32_t layer;
  int32_t num_heads;
  int32_t window;  // 0: none
  float scale;
  float soft_cap;  // 0: none
};

// q, out: [T, heads * head_dim].
void paged_attention(Pool& pool, const KvMemory& kv, const QuireBatch& batch, const AttentionParams& params,
                     const float* q, float* out);

}  // namespace quire
