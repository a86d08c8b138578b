#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "elementary.h"
#include "selection.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLowestLogProbability = -9999.0;

void check_ids(const int32_t* ids, int32_t count, int32_t vocab_size) {
  for (int32_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) throw std::invalid_argument("an id is not in the vocabulary");
  }
}

}  // namespace

double uniform(uint64_t seed, int32_t choice, int64_t position) {
  // Philox4x32-10, Salmon et al. 2011, section 4.3.
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  const uint64_t place = static_cast<uint64_t>(position);
  uint32_t c0 = static_cast<uint32_t>(place), c1 = static_cast<uint32_t>(place >> 32);
  uint32_t c2 = static_cast<uint32_t>(choice), c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(p0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return static_cast<double>((static_cast<uint64_t>(c0) << 21) | (c1 >> 11)) * 0x1p-53;
}

void Sampler::sample(Pool& pool, const float* logits, int32_t vocab_size, int32_t num_rows,
                     const QuireSampleRow* rows, const int32_t* targets, const Drawn& drawn) {
  scratch_.resize(static_cast<size_t>(pool.num_threads()));
  pool.run(num_rows, [&](int64_t i, int thread) {
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    const int32_t index = static_cast<int32_t>(i);
    drawn.token_ids[i] = 0;
    drawn.logprobs[i] = 0;
    const int32_t target = targets == nullptr ? -1 : targets[i];
    drawn.failed[i] = !draw_row(logits + i * vocab_size, vocab_size, rows[i], target, scratch, index, drawn);
  });
}

bool Sampler::draw_row(const float* raw, int32_t vocab_size, const QuireSampleRow& row, int32_t target,
                       Scratch& scratch, int32_t row_index, const Drawn& drawn) {
  const size_t size = static_cast<size_t>(vocab_size);
  const Best raw_best = find_best(raw, size);
  if (!std::isfinite(raw_best.value)) return false;
  const float* logits = adjust(raw, vocab_size, row, scratch);
  const Best best = logits == raw ? raw_best : find_best(logits, size);
  if (!std::isfinite(best.value)) return false;
  if (target >= 0) {
    check_ids(&target, 1, vocab_size);
    drawn.token_ids[row_index] = target;
  } else {
    drawn.token_ids[row_index] = row.temperature == 0 ? static_cast<int32_t>(best.index)
                                                      : draw(logits, vocab_size, best.value, row, scratch);
  }
  if (row.num_logprobs >= 0) log_probabilities(raw, vocab_size, raw_best.value, row, row_index, scratch, drawn);
  return true;
}

const float* Sampler::adjust(const float* raw, int32_t vocab_size, const QuireSampleRow& row, Scratch& scratch) {
  const bool has_penalty = row.presence_penalty != 0 || row.frequency_penalty != 0;
  if (row.repetition_penalty == 1 && !has_penalty && row.num_bias == 0 && row.num_forbidden == 0) return raw;
  check_ids(row.prompt_ids, row.num_prompt, vocab_size);
  check_ids(row.output_ids, row.num_output, vocab_size);
  check_ids(row.bias_ids, row.num_bias, vocab_size);
  check_ids(row.forbidden_ids, row.num_forbidden, vocab_size);
  scratch.logits.assign(raw, raw + vocab_size);
  scratch.counts.resize(static_cast<size_t>(vocab_size), 0);
  float* logits = scratch.logits.data();
  int32_t* counts = scratch.counts.data();
  const auto for_once = [counts](const int32_t* ids, int32_t count, const auto& body) {
    for (int32_t i = 0; i < count; ++i) {
      if (counts[ids[i]] != 0) body(ids[i]);
      counts[ids[i]] = 0;
    }
  };
  if (row.repetition_penalty != 1) {
    const float penalty = static_cast<float>(row.repetition_penalty);
    const auto repeat = [&](int32_t id) { logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty; };
    for (int32_t i = 0; i < row.num_prompt; ++i) counts[row.prompt_ids[i]] = 1;
    for (int32_t i = 0; i < row.num_output; ++i) counts[row.output_ids[i]] = 1;
    for_once(row.prompt_ids, row.num_prompt, repeat);
    for_once(row.output_ids, row.num_output, repeat);
  }
  if (has_penalty) {
    for (int32_t i = 0; i < row.num_output; ++i) ++counts[row.output_ids[i]];
    for_once(row.output_ids, row.num_output, [&](int32_t id) {
      logits[id] -= static_cast<float>(row.presence_penalty + row.frequency_penalty * counts[id]);
    });
  }
  for (int32_t i = 0; i < row.num_bias; ++i) logits[row.bias_ids[i]] += row.biases[i];
  for (int32_t i = 0; i < row.num_forbidden; ++i) logits[row.forbidden_ids[i]] = -kInfinity;
  return logits;
}

int32_t Sampler::draw(const float* logits, int32_t vocab_size, float best, const QuireSampleRow& row,
                      Scratch& scratch) {
  scratch.weights.resize(static_cast<size_t>(vocab_size));
  float* __restrict weights = scratch.weights.data();
  const float temperature = static_cast<float>(row.temperature);
  for (int32_t i = 0; i < vocab_size; ++i) weights[i] = exp_f32((logits[i] - best) / temperature);
  const double number = uniform(row.seed, row.choice, row.position);
  if (!filter(row, scratch)) return static_cast<int32_t>(inverse_cumulative(scratch.weights, number, scratch.sums));
  scratch.values.clear();
  for (const int32_t id : scratch.kept) scratch.values.push_back(weights[id]);
  return scratch.kept[inverse_cumulative(scratch.values, number, scratch.sums)];
}

// Leaves the ascending ids that top_k, top_p and min_p keep in `kept`; false when all are kept.
bool Sampler::filter(const QuireSampleRow& row, Scratch& scratch) {
  const std::vector<float>& weights = scratch.weights;
  std::vector<int32_t>& kept = scratch.kept;
  const size_t size = weights.size();
  const bool has_top_k = row.top_k > 0 && static_cast<size_t>(row.top_k) < size;
  if (!has_top_k && row.top_p >= 1 && row.min_p <= 0) return false;
  if (has_top_k) largest(weights.data(), size, static_cast<size_t>(row.top_k), kept);
  if (row.top_p < 1) {
    double mass = 0;
    if (has_top_k) {
      for (const int32_t id : kept) mass += weights[static_cast<size_t>(id)];
    } else {
      // Weights under (1 - top_p) x mass / count together hold less than 1 - top_p: the nucleus never needs them.
      // Half of that bound, so that rounding cannot cut off what is needed.
      mass = sum_of(weights.data(), size);
      collect(weights, static_cast<float>((1 - row.top_p) * mass / static_cast<double>(size) / 2), kept);
    }
    nucleus(row.top_p * mass, scratch);
  }
  if (row.min_p > 0) {
    // The best id weighs exactly 1, and is always kept.
    const float lowest = static_cast<float>(row.min_p);
    if (!has_top_k && row.top_p >= 1) {
      collect(weights, lowest, kept);
    } else {
      const auto is_low = [&](int32_t id) { return weights[static_cast<size_t>(id)] < lowest; };
      kept.erase(std::remove_if(kept.begin(), kept.end(), is_low), kept.end());
    }
  }
  return true;
}

// Narrows `kept` to the smallest set, largest weights first and lowest ids first among equals, that holds the wanted
// mass.
//
// Without sorting: the bits of a weight in [0, 1] grow with it, so its mass is added up by the upper bits, the bucket
// that the wanted mass ends in is divided by the next ones, and so on down to weights that are all equal.
void Sampler::nucleus(double wanted, Scratch& scratch) {
  const float* weights = scratch.weights.data();
  constexpr int kBits = 10;
  std::vector<int32_t>& group = scratch.candidates;
  group = scratch.kept;
  double held = 0;
  for (int shift = 2 * kBits; shift >= 0; shift -= kBits) {
    std::vector<double>& masses = scratch.sums;
    masses.assign(size_t{1} << kBits, 0.0);
    const auto bucket_of = [&](int32_t id) {
      return static_cast<size_t>((bits_of_float(weights[id]) >> shift) & ((1 << kBits) - 1));
    };
    for (const int32_t id : group) masses[bucket_of(id)] += weights[id];
    // Rounding may leave a little of the wanted mass behind the last bucket; then that one is gone into.
    size_t last = 0;
    double above = 0;
    for (size_t bucket = masses.size(); bucket-- > 0 && (above == 0 || held < wanted);) {
      if (masses[bucket] == 0) continue;
      last = bucket;
      above = masses[bucket];
      held += above;
    }
    held -= above;
    group.erase(std::remove_if(group.begin(), group.end(), [&](int32_t id) { return bucket_of(id) != last; }),
                group.end());
  }
  const float lowest = weights[group.front()];
  size_t num_equal = 1;
  for (held += lowest; held < wanted && num_equal < group.size(); held += lowest) ++num_equal;
  const int32_t last_equal = group[num_equal - 1];
  const auto is_behind = [&](int32_t id) {
    return weights[id] < lowest || (weights[id] == lowest && id > last_equal);
  };
  scratch.kept.erase(std::remove_if(scratch.kept.begin(), scratch.kept.end(), is_behind), scratch.kept.end());
}

void Sampler::log_probabilities(const float* raw, int32_t vocab_size, float best, const QuireSampleRow& row,
                                int32_t row_index, Scratch& scratch, const Drawn& drawn) {
  const size_t size = static_cast<size_t>(vocab_size);
  scratch.weights.resize(size);
  float* __restrict weights = scratch.weights.data();
  for (size_t i = 0; i < size; ++i) weights[i] = exp_f32(raw[i] - best);
  const double log_sum = best + std::log(sum_of(weights, size));
  const auto log_probability = [&](int32_t id) {
    return static_cast<float>(std::max(static_cast<double>(raw[id]) - log_sum, kLowestLogProbability));
  };
  drawn.logprobs[row_index] = log_probability(drawn.token_ids[row_index]);
  const size_t num_top = std::min(static_cast<size_t>(std::min(row.num_logprobs, drawn.max_top)), size);
  if (num_top == 0) return;
  largest(raw, size, num_top, scratch.picked);
  std::sort(scratch.picked.begin(), scratch.picked.end(), LargestFirst{raw});
  const int64_t first = static_cast<int64_t>(row_index) * drawn.max_top;
  for (size_t i = 0; i < num_top; ++i) {
    drawn.top_ids[first + static_cast<int64_t>(i)] = scratch.picked[i];
    drawn.top_logprobs[first + static_cast<int64_t>(i)] = log_probability(scratch.picked[i]);
  }
}

}  // namespace quire
