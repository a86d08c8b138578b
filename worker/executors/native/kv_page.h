// How keys and values of one layer lie inside a page, in the order in which attention multiplies them.
//
// A page is [layer][kv head] sections; a section is keys, values, then (int8) the keys' and the values' scales, a
// float per token. With P numbers in a group (1 for f32, 2 for bf16 and int8):
//   keys    [page_size / 16][head_dim / P][16 tokens][P]   a panel of 16 tokens gives 16 scores in one vector
//   values  [page_size / P][head_dim][P]
// So both products run over groups of P along their sum, and decode reads a section from front to back. Storing a
// token writes its own numbers and scale alone. Knows nothing of who owns a page or of what is done with it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention.h"

namespace quire {

constexpr int kPanel = 16;  // tokens in a panel of keys

template <QuireKvFormat kFormat>
struct KvItems;
template <>
struct KvItems<QUIRE_KV_F32> {
  using Item = float;
  static constexpr int kGroup = 1;
  static constexpr bool kScaled = false;
};
template <>
struct KvItems<QUIRE_KV_BF16> {
  using Item = uint16_t;
  static constexpr int kGroup = 2;
  static constexpr bool kScaled = false;
};
template <>
struct KvItems<QUIRE_KV_INT8> {
  using Item = int8_t;
  static constexpr int kGroup = 2;
  static constexpr bool kScaled = true;
};

// The numbers of one layer and kv head in one page.
template <QuireKvFormat kFormat>
class KvSection {
 public:
  using Item = typename KvItems<kFormat>::Item;
  static constexpr int kGroup = KvItems<kFormat>::kGroup;

  static int64_t bytes(const KvMemory& kv) {
    const int64_t side = kv.page_size * static_cast<int64_t>(kv.head_dim) * sizeof(Item);
    return 2 * (side + (KvItems<kFormat>::kScaled ? kv.page_size * sizeof(float) : 0));
  }

  KvSection(const KvMemory& kv, int64_t page, int64_t layer, int64_t head)
      : head_dim_(kv.head_dim), side_(kv.page_size * static_cast<int64_t>(kv.head_dim)), page_size_(kv.page_size) {
    uint8_t* section = kv.pages + page * kv.page_bytes + (layer * kv.num_kv_heads + head) * bytes(kv);
    items_ = reinterpret_cast<Item*>(section);
  }

  // Item `index` of a token's key is at (index / kGroup) * kPanel * kGroup + index % kGroup from here.
  Item* key(int64_t token) const { return panel(token / kPanel) + token % kPanel * kGroup; }
  // Item `index` of a token's value is at index * kGroup from here.
  Item* value(int64_t token) const { return values(token) + token % kGroup; }

  Item* panel(int64_t index) const { return items_ + index * kPanel * head_dim_; }
  // The values of the group that `token` is in, and of those after it.
  Item* values(int64_t token) const { return items_ + side_ + token / kGroup * kGroup * head_dim_; }

  float* key_scales() const { return reinterpret_cast<float*>(items_ + 2 * side_); }
  float* value_scales() const { return key_scales() + page_size_; }

 private:
  int64_t head_dim_;
  int64_t side_;
  int64_t page_size_;
  Item* items_;
};

// Calls body with the format as a type: body(std::integral_constant<QuireKvFormat, ...>).
template <typename Body>
void with_format(QuireKvFormat format, const Body& body) {
  switch (format) {
    case QUIRE_KV_F32:
      return body(std::integral_constant<QuireKvFormat, QUIRE_KV_F32>{});
    case QUIRE_KV_BF16:
      return body(std::integral_constant<QuireKvFormat, QUIRE_KV_BF16>{});
    case QUIRE_KV_INT8:
      return body(std::integral_constant<QuireKvFormat, QUIRE_KV_INT8>{});
  }
}

}  // namespace quire
