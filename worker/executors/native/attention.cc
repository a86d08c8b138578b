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

  // Does a work for kv heads [first_head, last_head).
  void run(const AttentionWork& work, int32_t first_head, int32_t last_head) const {
    // Kept by the thread: a step makes thousands of items of one shape.
    thread_local AttentionRows<kFormat> rows;
    rows.resize(work.num_members * heads_per_group_, kv_.head_dim);
    for (int32_t head = first_head; head < last_head; ++head) {
      // Scores are to base 2; a soft cap comes between the scale and that.
      const float scale = params_.soft_cap > 0 ? params_.scale : params_.scale * kLog2E;
      each_row(work, head, [&](int row, int32_t token, int32_t q_head) {
        rows.set_query(row, q_ + token * width_ + q_head * kv_.head_dim, scale, batch_.positions[token]);
      });
      if (work.is_whole) {
        run_whole(rows, work, head, last_head);
      } else {
        for (int32_t chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
          each_row(work, head, [&](int row, int32_t token, int32_t q_head) {
            rows.set_state(row, state_of(token, chunk, q_head));
          });
          attend(rows, work, head, last_head, chunk);
        }
      }
    }
  }

 private:
  // Calls body(row, token, q_head) for the rows of a work: the heads of its first query, of its second, ...
  template <typename Body>
  void each_row(const AttentionWork& work, int32_t head, const Body& body) const {
    const int32_t* tokens = tokens_of(work);
    for (int row = 0; row < work.num_members * heads_per_group_; ++row) {
      body(row, tokens[row / heads_per_group_], head * heads_per_group_ + row % heads_per_group_);
    }
  }

  void run_whole(AttentionRows<kFormat>& rows, const AttentionWork& work, int32_t head, int32_t last_head) const {
    thread_local std::vector<float> scratch;
    const int num_rows = work.num_members * heads_per_group_, sums = state_sums(kv_.head_dim);
    scratch.resize(static_cast<size_t>(2 * num_rows * state_floats_));
    float *totals = scratch.data(), *parts = totals + num_rows * state_floats_;
    for (int row = 0; row < num_rows; ++row) clear_state(totals + row * state_floats_, sums);
    for (int32_t chunk = work.first_chunk; chunk < work.last_chunk; ++chunk) {
      for (int row = 0; row < num_rows; ++row) rows.set_state(row, parts + row * state_floats_);
      attend(rows, work, head, last_head, chunk);
      for (int row = 0; row < num_rows; ++row) {
        fold_state(totals + row * state_floats_, parts + row * state_floats_, sums);
      }
    }
    each_row(work, head, [&](int row, int32_t token, int32_t q_head) {
      write_output(totals + row * state_floats_, kv_.head_dim, out_ + token * width_ + q_head * kv_.head_dim);
    });
  }

  float* state_of(int32_t token, int32_t chunk, int32_t q_head) const {
    const SplitQuery& split = plan_.splits[static_cast<size_t>(plan_.split_of[static_cast<size_t>(token)])];
    const int64_t index = split.first_state + static_cast<int64_t>(chunk - split.first_chunk) * params_.num_heads;
    return states_ + (index + q_head) * state_floats_;
  }

  void attend(AttentionRows<kFormat>& rows, const AttentionWork& work, int32_t head, int32_t last_head,
              int32_t chunk) const {
    constexpr int64_t kBlocks = kChunk / kBlock;
    const int32_t* tokens = tokens_of(work);
    const int64_t end = std::min<int64_t>(batch_.positions[tokens[work.num_members - 1]] + 1,
                                          static_cast<int64_t>(work.last_chunk) * kChunk);
    const KeySource keys{&kv_, pages_of(tokens[0]), params_.layer, head, end, params_.window, params_.soft_cap};
    for (int64_t block = chunk * kBlocks; block < (chunk + 1) * kBlocks && block * kBlock < end; ++block) {
      BlockOfHead next{head, block + 1};
      if (next.block * kBlock >= end && head + 1 < last_head) next = {head + 1, work.first_chunk * kBlocks};
      rows.attend(keys, block, next);
    }
  }

  const int32_t* tokens_of(const AttentionWork& work) const {
    return &plan_.tokens[static_cast<size_t>(work.first_member)];
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
  const auto num_works = static_cast<int64_t>(plan.works.size());
  // Where there are works enough, one item does all heads: they lie one behind the other in a page.
  const int32_t heads = num_works >= 4 * pool.num_threads() ? kv.num_kv_heads : 1;
  const int32_t items_per_work = kv.num_kv_heads / heads;
  const AttentionPlan& done = plan;
  with_format(kv.format, [&](auto format) {
    const Attention<format.value> attention(kv, batch, params, done, q, out, all_states);
    pool.run(num_works * items_per_work, [&](int64_t item, int) {
      const int32_t head = static_cast<int32_t>(item % items_per_work) * heads;
      attention.run(done.works[static_cast<size_t>(item / items_per_work)], head, head + heads);
    });
  });
  pool.run(static_cast<int64_t>(done.splits.size()), [&](int64_t item, int) {
    fold_split(done.splits[static_cast<size_t>(item)], kv, params.num_heads, all_states, out);
  });
}

}  // namespace quire
