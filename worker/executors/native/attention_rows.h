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

#include <algorithm>
#include <limits>
#include <vector>

#include "attention_products.h"

namespace quire {

constexpr int kBlock = 128;   // keys whose weights are formed together
constexpr int kChunk = 2 * kBlock;
constexpr int kStateTail = 16;  // floats behind the sums of a state: the maximum, the total weight, padding

// What a row knows after some keys: [head_dim rounded up to 16] weighted sums, then maximum and total weight.
inline int state_sums(int head_dim) { return (head_dim + kPanel - 1) / kPanel * kPanel; }
inline int state_floats(int head_dim) { return state_sums(head_dim) + kStateTail; }

inline void clear_state(float* state, int sums) {
  std::fill(state, state + sums + 2, 0.0f);
  state[sums] = -std::numeric_limits<float>::infinity();
}

inline float exp_scalar(float x) { return exp(set1(x))[0]; }

// Adds what a row learned from later keys. A chunk of which it saw nothing changes nothing.
inline void fold_state(float* state, const float* later, int sums) {
  if (later[sums + 1] == 0.0f) return;
  const float top = std::max(state[sums], later[sums]);
  const float keep = exp_scalar(state[sums] - top), gain = exp_scalar(later[sums] - top);
  state[sums] = top;
  state[sums + 1] = state[sums + 1] * keep + later[sums + 1] * gain;
  for (int i = 0; i < sums; i += kLanes) store(state + i, load(state + i) * keep + load(later + i) * gain);
}

// Where panel `index` of 16 columns begins; the last one overlaps where head_dim is not a multiple of 16, and
// both then hold the same bits.
inline int panel_column(int index, int head_dim) { return std::min(index * kPanel, head_dim - kPanel); }

inline void write_output(const float* state, int head_dim, float* out) {
  const int sums = state_sums(head_dim);
  for (int i = 0; i < sums; i += kLanes) {
    const int column = panel_column(i / kPanel, head_dim) + i % kPanel;
    store(out + column, load(state + i) / state[sums + 1]);
  }
}

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

template <QuireKvFormat kFormat>
class AttentionRows {
 public:
  void resize(int num_rows, int head_dim);

  // Gives row `row` its query, [head_dim] floats, and its position.
  void set_query(int row, const float* q, float scale, int64_t position);
  // Where the row's state goes; cleared.
  void set_state(int row, float* state);

  // Passes block `block` to all rows.
  void attend(const KeySource& keys, int64_t block);

 private:
  using Section = KvSection<kFormat>;

  // A panel of keys and the values of the same tokens, with their scales.
  struct Panel {
    const typename Section::Item* keys;
    const typename Section::Item* values;
    const float* key_scales;
    const float* value_scales;
  };
  // What a row sees of the block.
  struct Range {
    int first, last;
  };

  Panel panel_at(const KeySource& keys, int64_t token) const;
  void prefetch(const typename Section::Item* items) const;
  void prefetch_keys(const KeySource& keys, int64_t token) const;
  void score(const KeySource& keys, int64_t start, int panel);
  void weigh(const KeySource& keys, int row);
  vf see(const KeySource& keys, int row, int column, Range range);
  void round_weights(int row, float largest);
  void add_values(const KeySource& keys, int64_t start);

  int num_rows_ = 0;
  int head_dim_ = 0;
  std::vector<Operand<kFormat>> queries_;  // [rows, head_dim]
  std::vector<float> query_scales_;        // [rows]; int8 alone
  std::vector<int64_t> positions_;
  std::vector<float*> states_;
  std::vector<float> scores_;               // [rows, kBlock]; becomes the weights
  std::vector<int16_t> weights_;            // [rows, kBlock]; int8 alone
  std::vector<Range> ranges_;
  std::vector<float> keeps_, gains_;        // factors on the row's sums so far, and (int8) on the block's

  Panel panels_[kBlock / kPanel];
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
  keeps_.resize(rows);
  gains_.resize(rows);
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::set_query(int row, const float* q, float scale, int64_t position) {
  positions_[row] = position;
  Operand<kFormat>* query = &queries_[static_cast<size_t>(row) * head_dim_];
  if constexpr (kFormat == QUIRE_KV_INT8) {
    using Halves = VectorOf<int16_t, kLanes>::type;
    vf top = {}, difference = {};
    for (int i = 0; i < head_dim_; i += kLanes) {
      const vf v = load_part(q + i, std::min(kLanes, head_dim_ - i));
      top = max(abs(v), top);
      difference += v - v;  // not a number where v is not finite: the row's scores must say so
    }
    const float largest = max_lanes(top);
    const vf inverse = set1(largest > 1e-30f ? 32767.0f / largest : 0.0f);
    query_scales_[row] = (largest / 32767.0f + sum_lanes(difference)) * scale;
    for (int i = 0; i < head_dim_; i += kLanes) {
      const int n = std::min(kLanes, head_dim_ - i);
      const vf scaled = min(max(load_part(q + i, n) * inverse, set1(-32767.0f)), set1(32767.0f));
      const Halves rounded = __builtin_convertvector(round_to_int(scaled), Halves);
      std::memcpy(query + i, &rounded, n * sizeof(int16_t));
    }
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
void AttentionRows<kFormat>::attend(const KeySource& keys, int64_t block) {
  const int64_t start = block * kBlock;
  // 1. What each row sees: its own position is the last key, a window cuts off the first ones.
  int first = kBlock, last = 0;
  for (int row = 0; row < num_rows_; ++row) {
    const int64_t end = positions_[row] + 1 - start;
    const int64_t begin = keys.window > 0 ? end - keys.window : 0;
    Range& range = ranges_[row];
    range.first = static_cast<int>(std::min<int64_t>(kBlock, std::max<int64_t>(0, begin)));
    range.last = static_cast<int>(std::min<int64_t>(kBlock, std::max<int64_t>(0, end)));
    if (range.first >= range.last) continue;
    first = std::min(first, range.first);
    last = std::max(last, range.last);
  }
  if (first >= last) return;
  first_panel_ = first / kPanel;
  last_panel_ = (last + kPanel - 1) / kPanel;
  num_keys_ = last;
  // 2. Scores, panel by panel, while the values of the same tokens are on their way.
  for (int panel = first_panel_; panel < last_panel_; ++panel) {
    panels_[panel] = panel_at(keys, start + panel * kPanel);
    prefetch(panels_[panel].values);
    score(keys, start, panel);
  }
  // 3. Weights, and what they do to the sums so far.
  for (int row = 0; row < num_rows_; ++row) weigh(keys, row);
  // 4. Weighted values, while the keys of the next block are on their way.
  add_values(keys, start);
}

template <QuireKvFormat kFormat>
typename AttentionRows<kFormat>::Panel AttentionRows<kFormat>::panel_at(const KeySource& keys, int64_t token) const {
  const int32_t page_size = keys.kv->page_size;
  const int32_t slot = static_cast<int32_t>(token) / page_size, inside = static_cast<int32_t>(token) % page_size;
  const Section section(*keys.kv, keys.pages[slot], keys.layer, keys.head);
  Panel panel{section.panel(inside / kPanel), section.values(inside), nullptr, nullptr};
  if (KvItems<kFormat>::kScaled) {
    panel.key_scales = section.key_scales() + inside;
    panel.value_scales = section.value_scales() + inside;
  }
  return panel;
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::prefetch(const typename Section::Item* items) const {
  const char* bytes = reinterpret_cast<const char*>(items);
  const int64_t count = static_cast<int64_t>(kPanel) * head_dim_ * sizeof(typename Section::Item);
  for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(bytes + i);
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::prefetch_keys(const KeySource& keys, int64_t token) const {
  if (token >= keys.end) return;
  const Panel panel = panel_at(keys, token);
  prefetch(panel.keys);
  if (KvItems<kFormat>::kScaled) {
    __builtin_prefetch(panel.key_scales);
    __builtin_prefetch(panel.value_scales);
  }
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::score(const KeySource&, int64_t, int panel) {
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

// Scores of kLanes keys from `column` on as the row sees them: capped, and minus infinity outside its range.
template <QuireKvFormat kFormat>
vf AttentionRows<kFormat>::see(const KeySource& keys, int row, int column, Range range) {
  vf x = load(&scores_[static_cast<size_t>(row) * kBlock + column]);
  if (keys.soft_cap > 0) x = tanh(x / keys.soft_cap) * keys.soft_cap;
  if (column >= range.first && column + kLanes <= range.last) return x;
  vi index;
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = column + lane;
  const vf hidden = set1(-std::numeric_limits<float>::infinity());
  return (index >= range.first) & (index < range.last) ? x : hidden;
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::weigh(const KeySource& keys, int row) {
  const int begin = first_panel_ * kPanel, end = last_panel_ * kPanel;
  float* scores = &scores_[static_cast<size_t>(row) * kBlock];
  const Range range = ranges_[row];
  if (range.first >= range.last) {
    std::fill(scores + begin, scores + end, 0.0f);
    if (kFormat == QUIRE_KV_INT8) round_weights(row, 0.0f);
    keeps_[row] = 1.0f;
    return;
  }
  vf top = set1(-std::numeric_limits<float>::infinity());
  for (int i = begin; i < end; i += kLanes) {
    const vf x = see(keys, row, i, range);
    store(scores + i, x);
    top = max(x, top);
  }
  float* state = states_[row] + state_sums(head_dim_);
  const float maximum = std::max(state[0], max_lanes(top));
  vf total = {}, largest = {};
  for (int i = begin; i < end; i += kLanes) {
    vf weight = exp(load(scores + i) - maximum);
    total += weight;
    if constexpr (kFormat == QUIRE_KV_INT8) {
      // What lies outside the range may be anything, its scale too.
      const vf scale = load(panels_[i / kPanel].value_scales + i % kPanel);
      weight = weight > 0.0f ? weight * scale : vf{};
      largest = max(weight, largest);
    }
    store(scores + i, weight);
  }
  keeps_[row] = exp_scalar(state[0] - maximum);
  state[0] = maximum;
  state[1] = state[1] * keeps_[row] + sum_lanes(total);
  if constexpr (kFormat == QUIRE_KV_INT8) round_weights(row, max_lanes(largest));
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::round_weights(int row, float largest) {
  using Halves = VectorOf<int16_t, kLanes>::type;
  const float inverse = largest > 1e-30f ? 32767.0f / largest : 0.0f;
  gains_[row] = largest > 1e-30f ? largest / 32767.0f : 0.0f;
  const float* scores = &scores_[static_cast<size_t>(row) * kBlock];
  int16_t* weights = &weights_[static_cast<size_t>(row) * kBlock];
  for (int i = first_panel_ * kPanel; i < last_panel_ * kPanel; i += kLanes) {
    store_as(weights + i, __builtin_convertvector(round_to_int(load(scores + i) * inverse), Halves));
  }
}

template <QuireKvFormat kFormat>
void AttentionRows<kFormat>::add_values(const KeySource& keys, int64_t start) {
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
        if (first == 0 && panel % num_columns == column) prefetch_keys(keys, start + kBlock + panel * kPanel);
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
