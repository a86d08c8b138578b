// The C interface: nothing thrown leaves it.

#include "abi.h"

#include <exception>
#include <string>

#include "engine.h"
#include "packed.h"
#include "step_thread.h"
#include "vec.h"

struct QuireEngine {
  quire::Engine engine;
  quire::StepThread thread;  // last: it ends first, after the work that runs
};

namespace {

thread_local std::string last_error;

template <typename Body>
int32_t guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "unknown error";
  }
  return -1;
}

template <typename Work>
int64_t begun(QuireEngine* engine, const Work& work) {
  int64_t number = -1;
  guarded([&] { number = engine->thread.begin(work); });
  return number;
}

}  // namespace

extern "C" {

const char* quire_last_error() { return last_error.c_str(); }

const char* quire_instruction_set() { return quire::kInstructionSet; }

int64_t quire_sizeof(int32_t which) {
  constexpr int64_t sizes[] = {sizeof(QuireSlot),  sizeof(QuireOp),    sizeof(QuireWeight),
                               sizeof(QuireModel), sizeof(QuireBatch), sizeof(QuireSampleRow)};
  return which >= 0 && which < 6 ? sizes[which] : -1;
}

const char* quire_kernel_name(int32_t weight_kind, int32_t compute) {
  return quire::kernel_name(weight_kind, compute);
}

int64_t quire_packed_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group) {
  int64_t num_bytes = -1;
  guarded([&] { num_bytes = quire::packed_bytes(kind, rows, cols, group); });
  return num_bytes;
}

int64_t quire_used_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const void* packed) {
  return quire::used_bytes({kind, rows, cols, group, packed});
}

int32_t quire_pack_codes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const uint8_t* codes,
                         const float* scales, const float* offsets, void* out) {
  return guarded([&] { quire::pack_codes(kind, rows, cols, group, codes, scales, offsets, out); });
}

int32_t quire_pack_floats(int32_t kind, int32_t rows, int32_t cols, const float* values, void* out) {
  return guarded([&] { quire::pack_floats(kind, rows, cols, values, out); });
}

QuireEngine* quire_create(const QuireModel* model, int32_t num_threads) {
  QuireEngine* created = nullptr;
  guarded([&] { created = new QuireEngine{{*model, num_threads}, {}}; });
  return created;
}

void quire_destroy(QuireEngine* engine) { delete engine; }

int32_t quire_set_arena(QuireEngine* engine, int32_t max_tokens, const int64_t* offsets, int64_t num_floats) {
  return guarded([&] {
    engine->thread.drain();
    engine->engine.set_arena(max_tokens, offsets, num_floats);
  });
}

int32_t quire_allocate(QuireEngine* engine, int64_t num_pages) {
  return guarded([&] { engine->engine.allocate_pages(num_pages); });
}

int64_t quire_page_bytes(const QuireEngine* engine) { return engine->engine.page_bytes(); }

int64_t quire_begin_step(QuireEngine* engine, const QuireBatch* batch, float* logits) {
  return begun(engine, [own = &engine->engine, batch = *batch, logits] { own->step(batch, logits); });
}

int64_t quire_begin_sample(QuireEngine* engine, const float* logits, int32_t vocab_size, int32_t num_rows,
                           const QuireSampleRow* rows, const int32_t* targets, int32_t max_top, int32_t* token_ids,
                           uint8_t* failed, float* logprobs, int32_t* top_ids, float* top_logprobs) {
  const quire::Drawn drawn{max_top, token_ids, failed, logprobs, top_ids, top_logprobs};
  return begun(engine, [=, own = &engine->engine] { own->sample(logits, vocab_size, num_rows, rows, targets, drawn); });
}

int32_t quire_wait(QuireEngine* engine, int64_t number) {
  return guarded([&] { engine->thread.wait(number); });
}

int32_t quire_read_slot(const QuireEngine* engine, int32_t slot, float* out) {
  return guarded([&] { engine->engine.read_slot(slot, out); });
}

}  // extern "C"
