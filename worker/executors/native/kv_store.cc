// Rotary embedding and the writing of keys and values into their pages.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "kv_page.h"
#include "rounding.h"
#include "vec.h"

namespace quire {
namespace {

constexpr int64_t kTokensPerItem = 8;

// Turns pair (i, i + half) by its angle. table: [half] cosines, [half] sines. x may be `out`.
// Source: Su et al. 2021, "RoFormer", in the half-split order of Llama checkpoints.
void rotate(const float* x, const float* table, int half, float* out) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const vf a = load(x + i), b = load(x + half + i);
    const vf cosine = load(table + i), sine = load(table + half + i);
    store(out + i, a * cosine - b * sine);
    store(out + half + i, b * cosine + a * sine);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i], cosine = table[i], sine = table[half + i];
    out[i] = a * cosine - b * sine;
    out[half + i] = b * cosine + a * sine;
  }
}

// Returns the scale. codes: [count].
float encode_int8(const float* x, int count, int8_t* codes) {
  int16_t rounded[kMaxHeadDim];
  const float scale = round_row(x, count, kInt8Max, rounded);
  for (int i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(rounded[i]);
  return scale;
}

void encode_bf16(const float* x, int count, uint16_t* out) {
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out[i] = static_cast<uint16_t>(x[i] == x[i] ? rounded : (bits >> 16) | 0x40);
  }
}

// Writes the key and the value of one token and head. k, v: [head_dim].
template <QuireKvFormat kFormat>
void store_token(const KvSection<kFormat>& section, int64_t token, int head_dim, const float* k, const float* v) {
  using Item = typename KvSection<kFormat>::Item;
  constexpr int kGroup = KvSection<kFormat>::kGroup;
  Item keys[kMaxHeadDim], values[kMaxHeadDim];
  if constexpr (kFormat == QUIRE_KV_INT8) {
    float key_scale = encode_int8(k, head_dim, keys);
    const float value_scale = encode_int8(v, head_dim, values);
    // Of a value that is not finite the key's scale tells too: whoever looks at this token gets a score of NaN.
    key_scale += value_scale - value_scale;
    section.key_scales()[token] = key_scale;
    section.value_scales()[token] = value_scale;
  } else if constexpr (kFormat == QUIRE_KV_BF16) {
    encode_bf16(k, head_dim, keys);
    encode_bf16(v, head_dim, values);
  } else {
    std::memcpy(keys, k, head_dim * sizeof(float));
    std::memcpy(values, v, head_dim * sizeof(float));
  }
  Item* key = section.key(token);
  for (int i = 0; i < head_dim; i += kGroup) std::memcpy(key + i * kPanel, keys + i, sizeof(Item) * kGroup);
  Item* value = section.value(token);
  for (int i = 0; i < head_dim; ++i) value[i * kGroup] = values[i];
}

}  // namespace

int64_t kv_page_bytes(const KvMemory& shape) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument(what); };
  if (shape.head_dim % 8 != 0 || shape.head_dim < kPanel || shape.head_dim > kMaxHeadDim) {
    refuse("head_dim " + std::to_string(shape.head_dim) + " is not a multiple of 8 from 16 to 256");
  }
  if (shape.page_size <= 0 || shape.page_size % kPanel != 0) {
    refuse("page_size " + std::to_string(shape.page_size) + " is not a multiple of 16 tokens");
  }
  int64_t section = 0;
  with_format(shape.format, [&](auto format) { section = KvSection<format.value>::bytes(shape); });
  if (section == 0) refuse("kv_format " + std::to_string(shape.format) + " is unknown");
  return section * shape.num_layers * shape.num_kv_heads;
}

void rope_store(Pool& pool, const KvMemory& kv, const QuireBatch& batch, const int32_t* sequence_of, int32_t layer,
                const float* rope, int32_t num_heads, const float* qkv, float* q) {
  const int64_t head_dim = kv.head_dim, kv_heads = kv.num_kv_heads;
  const int64_t q_width = num_heads * head_dim, width = q_width + 2 * kv_heads * head_dim;
  const int half = kv.head_dim / 2;
  const auto store_row = [&](int64_t row, auto format) {
    const float* x = qkv + row * width;
    const int64_t position = batch.positions[row];
    const float* table = rope + position * head_dim;
    for (int64_t head = 0; head < num_heads; ++head) {
      rotate(x + head * head_dim, table, half, q + row * q_width + head * head_dim);
    }
    const int64_t page =
        batch.page_table[sequence_of[row] * static_cast<int64_t>(batch.table_width) + position / kv.page_size];
    for (int64_t head = 0; head < kv_heads; ++head) {
      float key[kMaxHeadDim];
      rotate(x + q_width + head * head_dim, table, half, key);
      const float* value = x + q_width + (kv_heads + head) * head_dim;
      const KvSection<format.value> section(kv, page, layer, head);
      store_token(section, position % kv.page_size, kv.head_dim, key, value);
    }
  };
  with_format(kv.format, [&](auto format) {
    pool.run((batch.num_tokens + kTokensPerItem - 1) / kTokensPerItem, [&](int64_t item, int) {
      const int64_t last = std::min<int64_t>(batch.num_tokens, (item + 1) * kTokensPerItem);
      for (int64_t row = item * kTokensPerItem; row < last; ++row) store_row(row, format);
    });
  });
}

}  // namespace quire
