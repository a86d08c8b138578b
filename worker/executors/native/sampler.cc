#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "elementary.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLowestLogProbability = -9999.0;
constexpr size_t kFirstNucleus = 64;
constexpr size_t kRun = 256;
constexpr int kLanes = 16;
constexpr size_t kBlock = 64;

// The largest value, or NaN if there is one.
float largest_value(const float* x, size_t count) {
  float lanes[kLanes];
  int32_t is_nan[kLanes] = {};
  std::fill(lanes, lanes + kLanes, -kInfinity);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
      is_nan[lane] |= value != value;
    }
  }
  float best = *std::max_element(lanes, lanes + kLanes);
  bool bad = std::any_of(is_nan, is_nan + kLanes, [](int32_t flag) { return flag != 0; });
  for (; i < count; ++i) {
    best = std::max(best, x[i]);
    bad = bad || x[i] != x[i];
  }
  return bad ? std::numeric_limits<float>::quiet_NaN() : best;
}

// A sum in float64, in 16 lanes.
double sum_of(const float* x, size_t count) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
  }
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += x[i + lane];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

struct LargestFirst {
  const float* values;
  bool operator()(int32_t a, int32_t b) const { return values[a] > values[b] || (values[a] == values[b] && a < b); }
};

// Keeps the `count` best of `indices`, in no order.
void keep_best(const float* values, size_t count, std::vector<int32_t>& indices) {
  if (indices.size() <= count) return;
  std::nth_element(indices.begin(), indices.begin() + static_cast<int64_t>(count) - 1, indices.end(),
                   LargestFirst{values});
  indices.resize(count);
}

// Collects ascending indices of the `count` largest values, count >= 1; among equals the lowest indices are kept.
// Once enough have been seen, a block without anything above the worst of them is passed over.
void largest(const float* values, size_t size, size_t count, std::vector<int32_t>& indices) {
  indices.clear();
  const size_t room = count + std::max<size_t>(count, 1024);
  float threshold = -kInfinity;
  bool is_full = false;
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t last = std::min(size, first + kBlock);
    if (is_full && !(largest_value(values + first, last - first) > threshold)) continue;
    for (size_t i = first; i < last; ++i) {
      if (!is_full || values[i] > threshold) indices.push_back(static_cast<int32_t>(i));
    }
    if (indices.size() >= room) {
      keep_best(values, count, indices);
      threshold = values[indices[count - 1]];
      is_full = true;
    }
  }
  keep_best(values, count, indices);
  std::sort(indices.begin(), indices.end());
}

// Returns the first index whose cumulative weight exceeds `draw` times the whole: runs of 256 first, then one of
// them weight by weight.
size_t inverse_cumulative(const std::vector<float>& weights, double draw, std::vector<double>& run_ends) {
  run_ends.clear();
  double sum = 0;
  for (size_t first = 0; first < weights.size(); first += kRun) {
    sum += sum_of(weights.data() + first, std::min(kRun, weights.size() - first));
    run_ends.push_back(sum);
  }
  const double target = draw * sum;
  const auto found = std::upper_bound(run_ends.begin(), run_ends.end(), target);
  const size_t run = std::min(static_cast<size_t>(found - run_ends.begin()), run_ends.size() - 1);
  const double rest = target - (run > 0 ? run_ends[run - 1] : 0.0);
  const size_t first = run * kRun, last = std::min(weights.size(), first + kRun);
  double inside = 0;
  size_t drawn = first;
  for (size_t i = first; i < last; ++i) {
    inside += weights[i];
    // Rounding may put the target behind the last weight; an id of weight 0 must not be drawn for it.
    if (weights[i] > 0) drawn = i;
    if (inside > rest) break;
  }
  return drawn;
}

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
                     const QuireSampleRow* rows, const Drawn& drawn) {
  scratch_.resize(static_cast<size_t>(pool.num_threads()));
  pool.run(num_rows, [&](int64_t i, int thread) {
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    const int32_t index = static_cast<int32_t>(i);
    drawn.token_ids[i] = 0;
    drawn.logprobs[i] = 0;
    drawn.failed[i] = !draw_row(logits + i * vocab_size, vocab_size, rows[i], scratch, index, drawn);
  });
}

bool Sampler::draw_row(const float* raw, int32_t vocab_size, const QuireSampleRow& row, Scratch& scratch,
                       int32_t row_index, const Drawn& drawn) {
  const size_t size = static_cast<size_t>(vocab_size);
  const float raw_best = largest_value(raw, size);
  if (!std::isfinite(raw_best)) return false;
  const float* logits = adjust(raw, vocab_size, row, scratch);
  const float best = logits == raw ? raw_best : largest_value(logits, size);
  if (!std::isfinite(best)) return false;
  const int32_t token = row.temperature == 0
                            ? static_cast<int32_t>(std::find(logits, logits + size, best) - logits)
                            : draw(logits, vocab_size, best, row, scratch);
  drawn.token_ids[row_index] = token;
  if (row.num_logprobs >= 0) log_probabilities(raw, vocab_size, raw_best, row, row_index, scratch, drawn);
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
  const bool has_top_k = row.top_k > 0 && static_cast<size_t>(row.top_k) < weights.size();
  if (!has_top_k && row.top_p >= 1 && row.min_p <= 0) return false;
  if (has_top_k) {
    largest(weights.data(), weights.size(), static_cast<size_t>(row.top_k), scratch.kept);
  } else {
    scratch.kept.resize(weights.size());
    std::iota(scratch.kept.begin(), scratch.kept.end(), 0);
  }
  if (row.top_p < 1) nucleus(row.top_p, scratch);
  if (row.min_p > 0) {
    // The best id weighs exactly 1, and is always kept.
    const float lowest = static_cast<float>(row.min_p);
    const auto is_low = [&](int32_t id) { return !(weights[static_cast<size_t>(id)] >= lowest); };
    scratch.kept.erase(std::remove_if(scratch.kept.begin(), scratch.kept.end(), is_low), scratch.kept.end());
  }
  return true;
}

// Narrows `kept` to the smallest set, largest weights first, that holds `top_p` of its mass.
//
// Weights under (1 - top_p) x mass / count together hold less than 1 - top_p: the set never needs them. Of the
// others a growing part is sorted, until it holds enough.
void Sampler::nucleus(double top_p, Scratch& scratch) {
  const float* weights = scratch.weights.data();
  std::vector<float>& values = scratch.values;
  values.clear();
  for (const int32_t id : scratch.kept) values.push_back(weights[id]);
  const double mass = sum_of(values.data(), values.size());
  const double wanted = top_p * mass;
  // Half of the bound, so that rounding cannot cut off what is needed.
  const float lowest = static_cast<float>((1 - top_p) * mass / static_cast<double>(values.size()) / 2);
  std::vector<int32_t>& candidates = scratch.candidates;
  candidates.clear();
  values.clear();
  for (const int32_t id : scratch.kept) {
    if (weights[id] >= lowest) {
      candidates.push_back(id);
      values.push_back(weights[id]);
    }
  }
  for (size_t size = kFirstNucleus;; size *= 8) {
    largest(values.data(), values.size(), size, scratch.picked);
    std::sort(scratch.picked.begin(), scratch.picked.end(), LargestFirst{values.data()});
    double held = 0;
    size_t count = 0;
    while (count < scratch.picked.size() && held < wanted) held += values[scratch.picked[count++]];
    if (held < wanted && scratch.picked.size() < values.size()) continue;
    scratch.kept.clear();
    for (size_t i = 0; i < std::max<size_t>(count, 1); ++i) scratch.kept.push_back(candidates[scratch.picked[i]]);
    std::sort(scratch.kept.begin(), scratch.kept.end());
    return;
  }
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
