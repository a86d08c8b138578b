// The whole interface between Python and the native executor, in plain C. `library.py` mirrors it.
//
// A plan is handed over once, as arrays; a step is one call. Nothing here allocates on behalf of the caller:
// weights stay in the caller's memory map, logits go into the caller's array.
#pragma once

#include <cstdint>

extern "C" {

// The kinds of worker.plan.op.OpKind, in its order.
enum QuireOpKind : int32_t {
  QUIRE_EMBED = 0,
  QUIRE_RMS_NORM = 1,
  QUIRE_LINEAR = 2,
  QUIRE_QK_NORM = 3,
  QUIRE_ROPE_STORE = 4,
  QUIRE_PAGED_ATTENTION = 5,
  QUIRE_ACT_MUL = 6,
  QUIRE_ADD = 7,
  QUIRE_SCALE = 8,
  QUIRE_SOFT_CAP = 9,
  QUIRE_GATHER_ROWS = 10,
  QUIRE_LOGITS = 11,
};

enum QuireActivation : int32_t { QUIRE_SILU = 0, QUIRE_GELU_TANH = 1 };

// How a weight is stored once packed. Quantised ones are affine: w = scale * code + offset per group.
enum QuireWeightKind : int32_t {
  QUIRE_F32 = 0,
  QUIRE_BF16 = 1,
  QUIRE_F16 = 2,
  QUIRE_U4 = 3,
  QUIRE_U8 = 4,
};

enum QuireKvFormat : int32_t { QUIRE_KV_F32 = 0, QUIRE_KV_BF16 = 1, QUIRE_KV_INT8 = 2 };

// What activations become before a product: float32 as they are, or int8 in groups of 32.
enum QuireCompute : int32_t { QUIRE_COMPUTE_F32 = 0, QUIRE_COMPUTE_INT8 = 1 };

struct QuireSlot {
  int32_t is_output_rows;  // 0: T rows, 1: O rows
  int32_t width;
};

struct QuireOp {
  int32_t kind;
  int32_t inputs[2];  // slot indices; unused ones are 0
  int32_t output;
  int32_t first_weight;  // into QuireModel.weights
  int32_t num_weights;
  int32_t has_biases;  // linear: the second half of the weights are biases
  int32_t layer;
  int32_t rope_table;  // rope_store: index into QuireModel.rope_tables
  int32_t window;      // paged_attention: keys a row may look back at, its own included; 0 is all
  int32_t activation;
  float eps;
  float scale;
  float soft_cap;  // paged_attention, soft_cap: cap * tanh(x / cap); 0 is none
};

struct QuireWeight {
  int32_t kind;
  int32_t rows;   // output features; 1 for a vector
  int32_t cols;   // input features
  int32_t group;  // columns that share a scale; 0 for floats
  const void* data;
};

struct QuireModel {
  const QuireOp* ops;
  const QuireSlot* slots;
  const QuireWeight* weights;
  const float* const* rope_tables;  // each [max_positions, head_dim]: cosines of all pairs, then sines
  int32_t num_ops;
  int32_t num_slots;
  int32_t num_weights;
  int32_t num_rope_tables;
  int32_t output;  // slot of the logits
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t max_positions;
  int32_t page_size;  // tokens
  int32_t kv_format;
  int32_t compute;
};

// worker.engine.batch.Batch, array by array.
struct QuireBatch {
  int32_t num_tokens;     // T
  int32_t num_sequences;  // S
  int32_t num_outputs;    // O
  int32_t table_width;    // P
  int32_t num_feeds;      // F
  const int32_t* ids;
  const int32_t* positions;
  const int32_t* query_start;
  const int32_t* context_len;
  const int32_t* page_table;
  const int32_t* out_rows;
  const int32_t* feeds;  // [F] rows of the last sample, whose draws are the first F ids: there `ids` are not read
};

// How one output row is sampled; see worker/engine/sampler.py, whose order of operations this follows.
struct QuireSampleRow {
  double temperature;
  double top_p;
  double min_p;
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  uint64_t seed;
  int64_t position;
  int32_t choice;
  int32_t top_k;
  int32_t num_logprobs;  // -1: none asked for; 0: the drawn token's alone
  int32_t num_prompt;
  int32_t num_output;
  int32_t num_bias;
  int32_t num_forbidden;
  const int32_t* prompt_ids;
  const int32_t* output_ids;
  const int32_t* bias_ids;
  const float* biases;
  const int32_t* forbidden_ids;
};

struct QuireEngine;

// Text of the last error on this thread.
const char* quire_last_error();

// Size of QuireSlot, QuireOp, QuireWeight, QuireModel, QuireBatch, QuireSampleRow (0 to 5): what a mirror checks.
int64_t quire_sizeof(int32_t which);

// Name of the instruction set this library was compiled for, and of the kernel that serves a weight kind.
const char* quire_instruction_set();
const char* quire_kernel_name(int32_t weight_kind, int32_t compute);

// Packing. codes: [rows, cols] uint8; scales, offsets: [rows, cols / group]; values: [rows, cols].
// packed_bytes is the room that packing needs, or -1 with quire_last_error; used_bytes what it took: offsets that are
// all a multiple of their scales are not stored.
int64_t quire_packed_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group);
int64_t quire_used_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const void* packed);
int32_t quire_pack_codes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const uint8_t* codes,
                         const float* scales, const float* offsets, void* out);
int32_t quire_pack_floats(int32_t kind, int32_t rows, int32_t cols, const float* values, void* out);

// Returns null on error. The model's arrays may go afterwards; what its weights and rope tables point to must stay.
QuireEngine* quire_create(const QuireModel* model, int32_t num_threads);
void quire_destroy(QuireEngine* engine);

// Places the slots for steps of at most max_tokens rows. offsets: [num_slots], in floats.
int32_t quire_set_arena(QuireEngine* engine, int32_t max_tokens, const int64_t* offsets, int64_t num_floats);

// Allocates the pages; memory is committed when first used.
int32_t quire_allocate(QuireEngine* engine, int64_t num_pages);
int64_t quire_page_bytes(const QuireEngine* engine);

// Work on the engine's own threads, one after the other in the order it was begun in. What a call points to belongs to
// the engine until quire_wait has waited for its number (or a later one); of failures see there. Returns the number,
// or -1 with quire_last_error.

// Runs the plan once. logits: [O, vocab].
int64_t quire_begin_step(QuireEngine* engine, const QuireBatch* batch, float* logits);

// Draws a token for each row of logits. targets: null, or [num_rows] ids that are taken instead of drawn (-1: draw);
// token_ids, failed, logprobs: [num_rows]; top_ids, top_logprobs: [num_rows, max_top], rows of num_logprobs entries.
int64_t quire_begin_sample(QuireEngine* engine, const float* logits, int32_t vocab_size, int32_t num_rows,
                           const QuireSampleRow* rows, const int32_t* targets, int32_t max_top, int32_t* token_ids,
                           uint8_t* failed, float* logprobs, int32_t* top_ids, float* top_logprobs);

// Waits for work and all before it. After a failure nothing that has begun by then is done; every wait says so.
// Returns 0, or -1 with quire_last_error.
int32_t quire_wait(QuireEngine* engine, int64_t number);

// Copies slot `slot` as the last step left it (tap mode); only right after a step, and only for slots whose
// memory no later operation took.
int32_t quire_read_slot(const QuireEngine* engine, int32_t slot, float* out);

}  // extern "C"
