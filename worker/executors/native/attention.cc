#include "attention.h"

#include "attention_plan.h"
#include "attention_rows.h"

namespace quire {
namespace {

template <QuireKvFormat kFormat>
class Attention {
 public:
  Attention(const KvMemory& kv, const QuireBatch& batch, const AttentionParams& params, const AttentionPlan& plan,
            const float* q, float* out, float* states)
      : kv_(kv),
        batch_(batch),
        params_(params),
        plan_(plan),
        q_(q),
        out_(out),
        states_(states),
        width_(static_cast<int64_t>(params.num_heads) * kv.head_dim),
        heads_per_group_(params.num_heads / kv.num_kv_heads),
        state_floats_(state_floats(kv.head_dim)) {}

  void run(int64_t item) const {
    const AttentionWork& work = plan_.works[static_cast<size_t>(item / kv_.num_kv_heads)];
    const int32_t head = static_cast<int32_t>(item % kv_.num_kv_heads);
    const int32_t* tokens = &plan_.tokens[static_cast<size_t>(work.first_member)];
    const int num_rows = work.num_members * heads_per_group_;
    // Kept by the thread: a step makes thousands of items of one shape.
    thread_local AttentionRows<kFormat> rows;
    thread_local std::vector<float> scratch;
    rows.resize(num_rows, kv_.head_dim);
    const auto each_row = [&](const auto& body) {
      for (int row = 0; row < num_rows; ++row) {
        body(row, tokens[row / heads_per_group_], head * heads_per_group_ + row % heads_per_group_);
      }
    };
    each_row([&](int row, int32_t token, int32_t q_head) {
      rows.set_query(row, q_ + token * width_ + q_head * kv_.head_dim, params_.scale, batch_.positions[token]);
    });
    if (!work.is_whole) {
      for (int32_t chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
        each_row([&](int row, int32_t token, int32_t q_head) { rows.set_state(row, state_of(token, chunk, q_head)); });
        attend(rows, work, tokens, head, chunk);
      }
      return;
    }
    scratch.resize(static_cast<size_t>(2 * num_rows * state_floats_));
    const int sums = state_sums(kv_.head_dim);
    float *totals = scratch.data(), *parts = totals + num_rows * state_floats_;
    for (int row = 0; row < num_rows; ++row) clear_state(totals + row * state_floats_, sums);
    for (int32_t chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
      for (int row = 0; row < num_rows; ++row) rows.set_state(row, parts + row * state_floats_);
      attend(rows, work, tokens, head, chunk);
      for (int row = 0; row < num_rows; ++row) {
        fold_state(totals + row * state_floats_, parts + row * state_floats_, sums);
      }
    }
    each_row([&](int row, int32_t token, int32_t q_head) {
      write_output(totals + row * state_floats_, kv_.head_dim, out_ + token * width_ + q_head * kv_.head_dim);
    });
  }

 private:
  float* state_of(int32_t token, int32_t chunk, int32_t q_head) const {
    const SplitQuery& split = plan_.splits[static_cast<size_t>(plan_.split_of[static_cast<size_t>(token)])];
    const int64_t index = split.first_state + static_cast<int64_t>(chunk - split.first_chunk) * params_.num_heads;
    return states_ + (index + q_head) * state_floats_;
  }

  void attend(AttentionRows<kFormat>& rows, const AttentionWork& work, const int32_t* tokens, int32_t head,
              int32_t chunk) const {
    const int64_t end = batch_.positions[tokens[work.num_members - 1]] + 1;
    const KeySource keys{&kv_, pages_of(tokens[0]), params_.layer, head,
                         std::min<int64_t>(end, static_cast<int64_t>(work.last_chunk) * kChunk),
                         params_.window, params_.soft_cap};
    const int64_t first = chunk * static_cast<int64_t>(kChunk / kBlock);
    for (int64_t block = first; block < first + kChunk / kBlock && block * kBlock < keys.end; ++block) {
      rows.attend(keys, block);
    }
  }

  const int32_t* pages_of(int32_t token) const {
    const int32_t* starts = batch_.query_start;
    const int64_t sequence = std::upper_bound(starts, starts + batch_.num_sequences + 1, token) - starts - 1;
    return batch_.page_table + sequence * batch_.table_width;
  }

  const KvMemory& kv_;
  const QuireBatch& batch_;
  const AttentionParams& params_;
  const AttentionPlan& plan_;
  const float* q_;
  float* out_;
  float* states_;
  int64_t width_;
  int heads_per_group_;
  int state_floats_;
};

void fold_split(const SplitQuery& split, const KvMemory& kv, int32_t num_heads, const float* states, float* out) {
  const int sums = state_sums(kv.head_dim), stride = state_floats(kv.head_dim);
  thread_local std::vector<float> total;
  total.resize(static_cast<size_t>(stride));
  for (int32_t head = 0; head < num_heads; ++head) {
    clear_state(total.data(), sums);
    for (int32_t chunk = 0; chunk < split.last_chunk - split.first_chunk; ++chunk) {
      const int64_t index = split.first_state + static_cast<int64_t>(chunk) * num_heads + head;
      fold_state(total.data(), states + index * stride, sums);
    }
    write_output(total.data(), kv.head_dim, out + (static_cast<int64_t>(split.token) * num_heads + head) * kv.head_dim);
  }
}

}  // namespace

void paged_attention(Pool& pool, const KvMemory& kv, const QuireBatch& batch, const AttentionParams& params,
                     const float* q, float* out) {
  // Kept by the calling thread from layer to layer.
  thread_local AttentionPlan plan;
  thread_local std::vector<float> states;
  plan_attention(batch, {kv.page_size, params.num_heads, kv.num_kv_heads, params.window, kChunk, pool.num_threads()},
                 plan);
  states.resize(static_cast<size_t>(plan.num_states * state_floats(kv.head_dim)));
  float* all_states = states.data();
  const auto num_items = static_cast<int64_t>(plan.works.size()) * kv.num_kv_heads;
  with_format(kv.format, [&](auto format) {
    const Attention<format.value> attention(kv, batch, params, plan, q, out, all_states);
    pool.run(num_items, [&](int64_t item, int) { attention.run(item); });
  });
  const AttentionPlan& done = plan;
  pool.run(static_cast<int64_t>(done.splits.size()), [&](int64_t item, int) {
    fold_split(done.splits[static_cast<size_t>(item)], kv, params.num_heads, all_states, out);
  });
}

}  // namespace quire
