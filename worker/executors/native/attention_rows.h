// Softmax attention of a few rows (queries x heads that read one kv head) over blocks of keys.
//
// A row goes through the keys it sees in blocks of kBlock from position 0, by the online softmax; every kChunk keys
// it starts afresh, and chunks are folded together in order. So a chunk can be computed anywhere, for any set of
// rows, and a row's bits are the same. Tiles of a block that a row does not see add exact zeros or are left out.
//
// int8: scores are exact integer sums of int8 keys by queries rounded to int16 per row, and so are the weighted sums
// of int8 values by weight x scale rounded to int16 per row and block. Neither can overflow int32:
// 256 x 127 x 32767 and kBlock x 127 x 32767 are below 2^31. Queries of int8 per head or per 32 would add an error
// as large as that of the keys; int16 costs no more: on AVX2 sign + maddubs + madd + add for 32 products against
// 2 (madd + add), with the keys' widening shared by all rows.
//
// Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao 2023, "FlashAttention-2".
#pragma once

#include <vector>

#include "attention_products.h"
#include "attention_state.h"
#include "attention_weights.h"

namespace quire {

constexpr int kChunk = 2 * kBlock;

// One kv head of one layer, as the rows of a work item read it.
struct KeySource {
  const KvMemory* kv;
  const int32_t* pages;
  int32_t layer;
  int32_t head;
  int64_t end;  // no row of the item looks at this position or beyond
  int32_t window;
  float soft_cap;
};

struct BlockOfHead {
  int32_t head;
  int64_t block;
};

template <QuireKvFormat kFormat>
class AttentionRows {
 public:
  void resize(int num_rows, int head_dim);

  // Gives row `row` its query, [head_dim] floats, and its position.
  void set_query(int row, const float* q, float scale, int64_t position);
  // Where the row's state goes; cleared.
  void set_state(int row, float* state);

  // Passes block `block` to all rows. `next` is what will be read after it, and is fetched meanwhile.
  void attend(const KeySource& keys, int64_t block, BlockOfHead next);

 private:
  using Section = KvSection<kFormat>;

  // A panel of keys and the values of the same tokens, with their scales.
  struct Panel {
    const typename Section::Item* keys;
    const typename Section::Item* values;
    const float* key_scales;
    const float* value_scales;
  };

  Panel panel_at(const KeySource& keys, int32_t head, int64_t token) const;
  Panel next_panel(const KeySource& keys, BlockOfHead next, int panel) const;
  void prefetch(const typename Section::Item* items, int part, int parts) const;
  void score(int panel);
  void weigh(const KeySource& keys);
  float* tail_of(int row) const { return states_[row] + state_sums(head_dim_); }
  void add_values();

  int num_rows_ = 0;
  int head_dim_ = 0;
  std::vector<Operand<kFormat>> queries_;  // [rows, head_dim]
  std::vector<float> query_scales_;        // [rows]; int8 alone
  std::vector<int64_t> positions_;
  std::vector<float*> states_;
  std::vector<float> scores_;               // [rows, kBlock]; becomes the weights
  std::vector<int16_t> weights_;            // [rows, kBlock]; int8 alone
  std::vector<KeyRange> ranges_;
  std::vector<float> tops_, heaviest_;      // of each row: the largest score so far, the block's largest weight
  std::vector<float> keeps_, gains_;        // factors on the row's sums so far, and (int8) on the block's

  Panel panels_[kBlock / kPanel];
  const float* value_scales_[kBlock / kPanel];
  const typename Section::Item* next_values_[kBlock / kPanel];
  int first_panel_ = 0, last_panel_ = 0, num_keys_ = 0;
};

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::resize(int num_rows, int head_dim) {
  num_rows_ = num_rows;
  head_dim_ = head_dim;
  const size_t rows = static_cast<size_t>(num_rows);
  queries_.resize(rows * head_dim);
  query_scales_.resize(rows);
  positions_.resize(rows);
  states_.resize(rows);
  scores_.resize(rows * kBlock);
  if (kFormat == QUIRE_KV_INT8) weights_.resize(rows * kBlock);
  ranges_.resize(rows);
  tops_.resize(rows);
  heaviest_.resize(rows);
  keeps_.resize(rows);
  gains_.resize(rows);
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::set_query(int row, const float* q, float scale, int64_t position) {
  positions_[row] = position;
  Operand<kFormat>* query = &queries_[static_cast<size_t>(row) * head_dim_];
  if constexpr (kFormat == QUIRE_KV_INT8) {
    int16_t rounded[kMaxHeadDim];
    query_scales_[row] = round_row(q, head_dim_, kInt16Max, rounded) * scale;
    std::memcpy(query, rounded, head_dim_ * sizeof(int16_t));
  } else {
    for (int i = 0; i < head_dim_; ++i) query[i] = q[i] * scale;
  }
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::set_state(int row, float* state) {
  states_[row] = state;
  clear_state(state, state_sums(head_dim_));
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::attend(const KeySource& keys, int64_t block, BlockOfHead next) {
  const int64_t start = block * kBlock;
  // 1. What each row sees: its own position is the last key, a window cuts off the first ones.
  int first = kBlock, last = 0;
  for (int row = 0; row < num_rows_; ++row) {
    const int64_t end = positions_[row] + 1 - start;
    const int64_t begin = keys.window > 0 ? end - keys.window : 0;
    KeyRange& range = ranges_[row];
    range.first = static_cast<int>(std::min<int64_t>(kBlock, std::max<int64_t>(0, begin)));
    range.last = static_cast<int>(std::min<int64_t>(kBlock, std::max<int64_t>(0, end)));
    if (range.is_empty()) continue;
    first = std::min(first, range.first);
    last = std::max(last, range.last);
  }
  if (first >= last) return;
  first_panel_ = first / kPanel;
  last_panel_ = (last + kPanel - 1) / kPanel;
  num_keys_ = last;
  // 2. Scores, panel by panel, while the values of the same tokens are on their way.
  for (int panel = first_panel_; panel < last_panel_; ++panel) {
    panels_[panel] = panel_at(keys, keys.head, start + panel * kPanel);
    value_scales_[panel] = panels_[panel].value_scales;
    const Panel ahead = next_panel(keys, next, panel);
    prefetch(ahead.keys, 0, 1);
    if (KvItems<kFormat>::kScaled && ahead.keys != nullptr) {
      __builtin_prefetch(ahead.key_scales);
      __builtin_prefetch(ahead.value_scales);
    }
    next_values_[panel] = ahead.values;
    score(panel);
  }
  // 3. Weights, and what they do to the sums so far.
  weigh(keys);
  // 4. Weighted values, while the keys of the next block are on their way.
  add_values();
}

template <QuireKvFormat kFormat>
typename AttentionRows<kFormat>::Panel AttentionRows<kFormat>::panel_at(const KeySource& keys, int32_t head,
                                                                               int64_t token) const {
  const int32_t page_size = keys.kv->page_size;
  const int32_t slot = static_cast<int32_t>(token) / page_size, inside = static_cast<int32_t>(token) % page_size;
  const Section section(*keys.kv, keys.pages[slot], keys.layer, head);
  Panel panel{section.panel(inside / kPanel), section.values(inside), nullptr, nullptr};
  if (KvItems<kFormat>::kScaled) {
    panel.key_scales = section.key_scales() + inside;
    panel.value_scales = section.value_scales() + inside;
  }
  return panel;
}

// Where `panel` of the next block lies; null beyond the last key.
template <QuireKvFormat kFormat>
typename AttentionRows<kFormat>::Panel AttentionRows<kFormat>::next_panel(const KeySource& keys, BlockOfHead next,
                                                                          int panel) const {
  const int64_t token = next.block * kBlock + panel * kPanel;
  return token < keys.end ? panel_at(keys, next.head, token) : Panel{};
}

// Asks for part `part` of a panel's keys or values.
template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::prefetch(const typename Section::Item* items, int part, int parts) const {
  if (items == nullptr) return;
  const int lines = kPanel * head_dim_ * static_cast<int>(sizeof(typename Section::Item)) / 64;
  const char* bytes = reinterpret_cast<const char*>(items);
  for (int line = lines * part / parts; line < lines * (part + 1) / parts; ++line) {
    __builtin_prefetch(bytes + line * 64);
  }
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::score(int panel) {
  const Panel& p = panels_[panel];
  const int64_t group_stride = kPanel * Section::kGroup;
  for_rows(num_rows_, [&](int first, auto count) {
    constexpr int kRows = decltype(count)::value;
    Sum<kFormat> sums[kRows][kPanelVectors] = {};
    multiply<kFormat, kRows>(&queries_[static_cast<size_t>(first) * head_dim_], head_dim_, p.keys, group_stride,
                             head_dim_, sums);
    for (int r = 0; r < kRows; ++r) {
      float* out = &scores_[static_cast<size_t>(first + r) * kBlock + panel * kPanel];
      for (int column = 0; column < kPanelVectors; ++column) {
        if constexpr (kFormat == QUIRE_KV_INT8) {
          const vf scale = load(p.key_scales + column * kLanes) * query_scales_[first + r];
          store(out + column * kLanes, to_float(sums[r][column]) * scale);
        } else {
          store(out + column * kLanes, sums[r][column]);
        }
      }
    }
  });
}

// Each phase goes through all rows before the next one: a row's own phases wait for each other, rows do not.
template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::weigh(const KeySource& keys) {
  const auto each_row = [&](const auto& body) {
    for (int row = 0; row < num_rows_; ++row) {
      RowWeights weights(&scores_[static_cast<size_t>(row) * kBlock], ranges_[row], first_panel_ * kPanel,
                         last_panel_ * kPanel);
      body(row, weights);
    }
  };
  each_row([&](int row, RowWeights& weights) {
    if (!ranges_[row].is_empty()) tops_[row] = weights.find_largest(keys.soft_cap, tail_of(row));
  });
  each_row([&](int row, RowWeights& weights) {
    if (ranges_[row].is_empty()) {
      weights.clear();
      keeps_[row] = 1.0f;
      heaviest_[row] = 0.0f;
    } else {
      const float* const* scales = KvItems<kFormat>::kScaled ? value_scales_ : nullptr;
      keeps_[row] = weights.weigh(tops_[row], tail_of(row), scales, heaviest_[row]);
    }
  });
  if constexpr (kFormat == QUIRE_KV_INT8) {
    each_row([&](int row, RowWeights& weights) {
      gains_[row] = weights.round(heaviest_[row], &weights_[static_cast<size_t>(row) * kBlock]);
    });
  }
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::add_values() {
  const Operand<kFormat>* weights;
  if constexpr (kFormat == QUIRE_KV_INT8) {
    weights = weights_.data();
  } else {
    weights = scores_.data();
  }
  const int num_columns = state_sums(head_dim_) / kPanel;
  const int64_t group_stride = static_cast<int64_t>(head_dim_) * Section::kGroup;
  for_rows(num_rows_, [&](int first, auto count) {
    constexpr int kRows = decltype(count)::value;
    for (int column = 0; column < num_columns; ++column) {
      Sum<kFormat> sums[kRows][kPanelVectors] = {};
      const int64_t offset = panel_column(column, head_dim_) * Section::kGroup;
      for (int panel = first_panel_; panel < last_panel_; ++panel) {
        if (first == 0) prefetch(next_values_[panel], column, num_columns);
        multiply<kFormat, kRows>(weights + static_cast<size_t>(first) * kBlock + panel * kPanel, kBlock,
                                 panels_[panel].values + offset, group_stride,
                                 std::min(kPanel, num_keys_ - panel * kPanel), sums);
      }
      for (int r = 0; r < kRows; ++r) {
        float* state = states_[first + r] + column * kPanel;
        for (int i = 0; i < kPanelVectors; ++i) {
          vf added;
          if constexpr (kFormat == QUIRE_KV_INT8) {
            added = to_float(sums[r][i]) * gains_[first + r];
          } else {
            added = sums[r][i];
          }
          store(state + i * kLanes, fma(load(state + i * kLanes), set1(keeps_[first + r]), added));
        }
      }
    }
  });
}

}  // namespace quire
