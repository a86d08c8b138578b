// Draws the next token of each row of logits: what worker/engine/sampler.py says, in C++.
//
// Knows one row at a time: a row's token is the same whatever rows are beside it and whichever thread draws it.
// Against the Python sampler a token may differ only where a draw falls within rounding of the edge between two ids.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "pool.h"

namespace quire {

// Where results go; shapes as in quire_sample.
struct Drawn {
  int32_t max_top;
  int32_t* token_ids;
  uint8_t* failed;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
};

class Sampler {
 public:
  // targets: as in quire_sample. Throws std::invalid_argument for an id outside the vocabulary.
  void sample(Pool& pool, const float* logits, int32_t vocab_size, int32_t num_rows, const QuireSampleRow* rows,
              const int32_t* targets, const Drawn& drawn);

 private:
  // One thread's memory, kept from call to call.
  struct Scratch {
    std::vector<float> logits;
    std::vector<float> weights;
    std::vector<float> values;
    std::vector<int32_t> kept;
    std::vector<int32_t> picked;
    std::vector<int32_t> candidates;
    std::vector<int32_t> counts;
    std::vector<double> sums;
  };

  static bool draw_row(const float* raw, int32_t vocab_size, const QuireSampleRow& row, int32_t target,
                       Scratch& scratch, int32_t row_index, const Drawn& drawn);
  static const float* adjust(const float* raw, int32_t vocab_size, const QuireSampleRow& row, Scratch& scratch);
  static int32_t draw(const float* logits, int32_t vocab_size, float best, const QuireSampleRow& row,
                      Scratch& scratch);
  static bool filter(const QuireSampleRow& row, Scratch& scratch);
  static void nucleus(double wanted, Scratch& scratch);
  static void log_probabilities(const float* raw, int32_t vocab_size, float best, const QuireSampleRow& row,
                                int32_t row_index, Scratch& scratch, const Drawn& drawn);

  std::vector<Scratch> scratch_;
};

// A number in [0, 1) with 53 bits: a pure function of its arguments (worker/engine/counter_random.py).
double uniform(uint64_t seed, int32_t choice, int64_t position);

}  // namespace quire
