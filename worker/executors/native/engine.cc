#include "engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "ops.h"

namespace quire {
namespace {

constexpr int64_t kHugePage = 2 << 20;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

int num_inputs(int32_t kind) {
  if (kind == QUIRE_EMBED) return 0;
  return kind == QUIRE_ADD ? 2 : 1;
}

bool is_product(int32_t kind) { return kind == QUIRE_LINEAR || kind == QUIRE_LOGITS; }

}  // namespace

SystemMemory::~SystemMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(num_bytes_));
}

void SystemMemory::allocate(int64_t num_bytes) {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(num_bytes_));
  data_ = nullptr;
  num_bytes_ = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (num_bytes_ == 0) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* data = mmap(nullptr, static_cast<size_t>(num_bytes_), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(data);
#ifdef MADV_HUGEPAGE
  // A wish: where it is not granted, small pages serve.
  (void)madvise(data, static_cast<size_t>(num_bytes_), MADV_HUGEPAGE);
#endif
}

Engine::Engine(const QuireModel& model, int num_threads)
    : model_(model),
      ops_(model.ops, model.ops + model.num_ops),
      slots_(model.slots, model.slots + model.num_slots),
      weights_(model.weights, model.weights + model.num_weights),
      rope_tables_(model.rope_tables, model.rope_tables + model.num_rope_tables),
      pool_(num_threads) {
  model_.ops = nullptr;
  model_.slots = nullptr;
  model_.weights = nullptr;
  model_.rope_tables = nullptr;
  for (int32_t i = 0; i < model.num_ops; ++i) check_op(ops_[static_cast<size_t>(i)], i);
  if (model.output < 0 || model.output >= model.num_slots) refuse("output is no slot");
  for (const QuireOp& op : ops_) {
    if (op.kind == QUIRE_EMBED) num_ids_ = std::min(num_ids_, weight_of(op, 0).rows);
  }
  kv_.format = static_cast<QuireKvFormat>(model.kv_format);
  kv_.page_size = model.page_size;
  kv_.num_layers = model.num_layers;
  kv_.num_kv_heads = model.num_kv_heads;
  kv_.head_dim = model.head_dim;
  kv_.page_bytes = kv_page_bytes(kv_);
}

void Engine::check_op(const QuireOp& op, int32_t index) const {
  const auto fail = [&](const char* what) { refuse("operation " + std::to_string(index) + ": " + what); };
  if (op.kind < QUIRE_EMBED || op.kind > QUIRE_LOGITS) fail("unknown kind");
  for (int i = 0; i < num_inputs(op.kind); ++i) {
    if (op.inputs[i] < 0 || op.inputs[i] >= model_.num_slots) fail("an input is no slot");
  }
  if (op.output < 0 || op.output >= model_.num_slots) fail("the output is no slot");
  if (op.first_weight < 0 || op.num_weights < 0 || op.first_weight + op.num_weights > model_.num_weights) {
    fail("a weight is missing");
  }
  const int64_t width = slot_of(op.output).width;
  const int64_t heads = model_.num_heads, kv_heads = model_.num_kv_heads, head_dim = model_.head_dim;
  const int64_t in = num_inputs(op.kind) > 0 ? slot_of(op.inputs[0]).width : 0;
  if (is_product(op.kind)) {
    const int32_t count = op.has_biases ? op.num_weights / 2 : op.num_weights;
    int64_t rows = 0;
    for (int32_t i = 0; i < count; ++i) {
      rows += weight_of(op, i).rows;
      if (weight_of(op, i).cols != in) fail("a matrix is not as wide as its input");
      if (op.has_biases && weight_of(op, count + i).cols != weight_of(op, i).rows) fail("a bias has a wrong size");
    }
    if (rows != width) fail("its matrices do not fill its output");
  } else if (op.kind == QUIRE_EMBED) {
    if (op.num_weights != 1 || weight_of(op, 0).cols != width) fail("its table is not as wide as its output");
  } else if (op.kind == QUIRE_RMS_NORM) {
    if (op.num_weights != 1 || weight_of(op, 0).cols != width || in != width) fail("widths differ");
  } else if (op.kind == QUIRE_QK_NORM) {
    if (op.num_weights != 2 || in != (heads + 2 * kv_heads) * head_dim || width != in) fail("widths differ");
    if (weight_of(op, 0).cols != head_dim || weight_of(op, 1).cols != head_dim) fail("a weight is not one head wide");
  } else if (op.kind == QUIRE_ROPE_STORE) {
    if (op.rope_table < 0 || op.rope_table >= model_.num_rope_tables) fail("no such rope table");
    if (in != (heads + 2 * kv_heads) * head_dim || width != heads * head_dim) fail("widths differ");
  } else if (op.kind == QUIRE_PAGED_ATTENTION) {
    if (in != heads * head_dim || width != in) fail("widths differ");
  } else if (op.kind == QUIRE_ACT_MUL) {
    if (in != 2 * width) fail("its input is not twice its output");
  } else if (in != width || (op.kind == QUIRE_ADD && slot_of(op.inputs[1]).width != width)) {
    fail("widths differ");
  }
  const bool has_layer = op.kind == QUIRE_ROPE_STORE || op.kind == QUIRE_PAGED_ATTENTION;
  if (has_layer && (op.layer < 0 || op.layer >= model_.num_layers)) fail("no such layer");
}

void Engine::set_arena(int32_t max_tokens, const int64_t* offsets, int64_t num_floats) {
  arena_.allocate(num_floats * static_cast<int64_t>(sizeof(float)));
  offsets_.assign(offsets, offsets + slots_.size());
  max_tokens_ = max_tokens;
}

void Engine::allocate_pages(int64_t num_pages) {
  pages_.allocate(num_pages * kv_.page_bytes);
  kv_.pages = pages_.data();
  num_pages_ = num_pages;
}

void Engine::check_batch(const QuireBatch& batch) const {
  if (batch.num_tokens < 0 || batch.num_tokens > max_tokens_) refuse("more tokens than the arena holds");
  if (batch.num_outputs < 0 || batch.num_outputs > batch.num_tokens) refuse("more output rows than tokens");
  if (batch.query_start[0] != 0 || batch.query_start[batch.num_sequences] != batch.num_tokens) {
    refuse("query_start does not cover the tokens");
  }
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    const int32_t first = batch.query_start[s], last = batch.query_start[s + 1];
    const int32_t length = batch.context_len[s];
    if (first >= last) refuse("a sequence without tokens");
    const int64_t num_pages = (static_cast<int64_t>(length) + model_.page_size - 1) / model_.page_size;
    if (length > model_.max_positions || num_pages > batch.table_width) refuse("a sequence is too long");
    for (int64_t i = 0; i < num_pages; ++i) {
      const int32_t page = batch.page_table[s * static_cast<int64_t>(batch.table_width) + i];
      if (page < 0 || page >= num_pages_) refuse("no such page");
    }
    for (int32_t t = first; t < last; ++t) {
      if (batch.positions[t] != length - (last - t)) refuse("positions of a sequence do not end at its length");
      if (batch.positions[t] < 0) refuse("a sequence has more tokens than its length");
      if (batch.ids[t] < 0 || batch.ids[t] >= num_ids_) refuse("an id is not in the vocabulary");
    }
  }
  for (int32_t i = 0; i < batch.num_outputs; ++i) {
    if (batch.out_rows[i] < 0 || batch.out_rows[i] >= batch.num_tokens) refuse("no such output row");
  }
}

void Engine::step(QuireBatch batch, float* logits) {
  if (batch.num_feeds > 0) batch.ids = fed_ids(batch);
  check_batch(batch);
  num_tokens_ = batch.num_tokens;
  num_outputs_ = batch.num_outputs;
  logits_ = logits;
  sequence_of_.resize(static_cast<size_t>(batch.num_tokens));
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    for (int32_t t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) sequence_of_[static_cast<size_t>(t)] = s;
  }
  for (const QuireOp& op : ops_) {
    if (rows_of(op.output) > 0) run(op, batch);
  }
  logits_ = nullptr;
}

const int32_t* Engine::fed_ids(const QuireBatch& batch) {
  if (batch.num_feeds > batch.num_tokens) refuse("more tokens are fed than there are");
  fed_ids_.assign(batch.ids, batch.ids + batch.num_tokens);
  for (int32_t t = 0; t < batch.num_feeds; ++t) {
    const int32_t row = batch.feeds[t];
    if (row < 0 || static_cast<size_t>(row) >= drawn_.size()) refuse("no such row was drawn");
    fed_ids_[static_cast<size_t>(t)] = drawn_[static_cast<size_t>(row)];
  }
  return fed_ids_.data();
}

void Engine::sample(const float* logits, int32_t vocab_size, int32_t num_rows, const QuireSampleRow* rows,
                    const int32_t* targets, const Drawn& drawn) {
  sampler_.sample(pool_, logits, vocab_size, num_rows, rows, targets, drawn);
  drawn_.assign(drawn.token_ids, drawn.token_ids + num_rows);
}

void Engine::run(const QuireOp& op, const QuireBatch& batch) {
  const int64_t rows = rows_of(op.output), width = slot_of(op.output).width;
  const float* x = num_inputs(op.kind) > 0 ? memory_of(op.inputs[0]) : nullptr;
  float* y = memory_of(op.output);
  switch (op.kind) {
    case QUIRE_EMBED:
      return embed(pool_, weight_of(op, 0), batch.ids, rows, y);
    case QUIRE_RMS_NORM:
      return rms_norm(pool_, x, vector_of(op, 0), rows, width, op.eps, y);
    case QUIRE_LINEAR:
    case QUIRE_LOGITS:
      return run_linear(op, y);
    case QUIRE_QK_NORM:
      return qk_norm(pool_, x, vector_of(op, 0), vector_of(op, 1), rows, model_.num_heads, model_.num_kv_heads,
                     model_.head_dim, op.eps, y);
    case QUIRE_ROPE_STORE:
      return rope_store(pool_, kv_, batch, sequence_of_.data(), op.layer,
                        rope_tables_[static_cast<size_t>(op.rope_table)], model_.num_heads, x, y);
    case QUIRE_PAGED_ATTENTION: {
      const AttentionParams params{op.layer, model_.num_heads, op.window, op.scale, op.soft_cap};
      return paged_attention(pool_, kv_, batch, params, x, y);
    }
    case QUIRE_ACT_MUL:
      return act_mul(pool_, x, rows, width, static_cast<QuireActivation>(op.activation), y);
    case QUIRE_ADD:
      return add(pool_, x, memory_of(op.inputs[1]), rows * width, y);
    case QUIRE_SCALE:
      return scale(pool_, x, op.scale, rows * width, y);
    case QUIRE_SOFT_CAP:
      return soft_cap(pool_, x, op.soft_cap, rows * width, y);
    case QUIRE_GATHER_ROWS:
      return gather_rows(pool_, x, batch.out_rows, rows, width, y);
    default:
      refuse("unknown kind");
  }
}

void Engine::run_linear(const QuireOp& op, float* y) {
  const QuireSlot& input = slot_of(op.inputs[0]);
  activations_.prepare(pool_, memory_of(op.inputs[0]), rows_of(op.inputs[0]), input.width,
                       static_cast<QuireCompute>(model_.compute));
  const int32_t count = op.has_biases ? op.num_weights / 2 : op.num_weights;
  for (int32_t i = 0; i < count; ++i) {
    const QuireWeight& weight = weight_of(op, i);
    linear(pool_, weight, activations_, op.has_biases ? vector_of(op, count + i) : nullptr, y,
           slot_of(op.output).width);
    y += weight.rows;
  }
}

const QuireWeight& Engine::weight_of(const QuireOp& op, int32_t index) const {
  return weights_[static_cast<size_t>(op.first_weight + index)];
}

const float* Engine::vector_of(const QuireOp& op, int32_t index) const {
  return static_cast<const float*>(weight_of(op, index).data);
}

float* Engine::memory_of(int32_t slot) const {
  if (slot == model_.output) return logits_;
  return reinterpret_cast<float*>(arena_.data()) + offsets_[static_cast<size_t>(slot)];
}

void Engine::read_slot(int32_t slot, float* out) const {
  if (slot < 0 || slot >= model_.num_slots || slot == model_.output) refuse("no such slot in the arena");
  const float* memory = memory_of(slot);
  std::copy(memory, memory + rows_of(slot) * slot_of(slot).width, out);
}

}  // namespace quire
