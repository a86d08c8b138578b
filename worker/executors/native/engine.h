// One model bound to its memory: the plan, the arena of its slots, the KV pages and the thread pool.
//
// Knows which operation runs when, and on what memory; knows nothing of requests or of how an operation computes.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "linear.h"
#include "pool.h"
#include "sampler.h"

namespace quire {

// Zeroed memory straight from the system: committed page by page when first used, in huge pages where granted.
class SystemMemory {
 public:
  SystemMemory() = default;
  ~SystemMemory();
  SystemMemory(const SystemMemory&) = delete;
  SystemMemory& operator=(const SystemMemory&) = delete;

  // Throws std::bad_alloc. Earlier memory is given back.
  void allocate(int64_t num_bytes);
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

class Engine {
 public:
  // Throws std::invalid_argument where the plan's slots and weights do not fit together.
  Engine(const QuireModel& model, int num_threads);

  void set_arena(int32_t max_tokens, const int64_t* offsets, int64_t num_floats);
  void allocate_pages(int64_t num_pages);
  int64_t page_bytes() const { return kv_.page_bytes; }

  // Throws std::invalid_argument, before anything is computed, for a batch that points outside its memory.
  void step(QuireBatch batch, float* logits);

  // Draws tokens (see `Sampler::sample`); the next step may be fed by them.
  void sample(const float* logits, int32_t vocab_size, int32_t num_rows, const QuireSampleRow* rows,
              const int32_t* targets, const Drawn& drawn);

  void read_slot(int32_t slot, float* out) const;

 private:
  void check_op(const QuireOp& op, int32_t index) const;
  void check_batch(const QuireBatch& batch) const;
  const int32_t* fed_ids(const QuireBatch& batch);
  void run(const QuireOp& op, const QuireBatch& batch);
  void run_linear(const QuireOp& op, float* y);

  const QuireSlot& slot_of(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  const QuireWeight& weight_of(const QuireOp& op, int32_t index) const;
  const float* vector_of(const QuireOp& op, int32_t index) const;
  float* memory_of(int32_t slot) const;
  int64_t rows_of(int32_t slot) const { return slot_of(slot).is_output_rows ? num_outputs_ : num_tokens_; }

  QuireModel model_;
  std::vector<QuireOp> ops_;
  std::vector<QuireSlot> slots_;
  std::vector<QuireWeight> weights_;
  std::vector<const float*> rope_tables_;
  int32_t num_ids_ = INT32_MAX;  // of the tables that ids are looked up in

  KvMemory kv_{};
  SystemMemory pages_;
  int64_t num_pages_ = 0;

  SystemMemory arena_;
  std::vector<int64_t> offsets_;
  int32_t max_tokens_ = 0;

  Pool pool_;
  Activations activations_;
  Sampler sampler_;
  std::vector<int32_t> drawn_;    // by the last sample
  std::vector<int32_t> fed_ids_;  // of a step that reads them
  std::vector<int32_t> sequence_of_;
  float* logits_ = nullptr;
  int64_t num_tokens_ = 0;
  int64_t num_outputs_ = 0;
};

}  // namespace quire
