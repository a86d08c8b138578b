// Activations to int8: a group of 32 columns shares scale = max|x| / 127, and codes are rounded to nearest, ties
// to even. A row's codes depend on that row alone.
//
// A group that holds NaN or infinity has scale NaN, so the whole output row is NaN: it fails, and no other.

#include "activations.h"

#include <algorithm>
#include <cmath>
#include <new>

namespace quire {
namespace {

constexpr int64_t kValuesPerItem = 16384;  // below a few microseconds, waking a thread costs more than it gives
constexpr int32_t kInfinityBits = 0x7f800000;
constexpr float kLeastMax = 1e-35f;  // 127 / max must not overflow; a group below this is zero

GroupOfX group_of(float scale, int32_t sum) {
  return {scale, scale * static_cast<float>(sum), DotU4::start_of(sum), DotU8::start_of(sum)};
}

// x: 32 values.
inline GroupOfX quantise_group(const float* x, int8_t* codes) {
  constexpr int kVectors = kActivationGroup / kLanes;
  vf values[kVectors];
  vi largest = {};
  for (int i = 0; i < kVectors; ++i) {
    values[i] = load(x + i * kLanes);
    largest = max(largest, bits_of(abs(values[i])));  // as integers, NaN is above infinity and infinity above all
  }
  const int32_t max_bits = max_lanes(largest);
  float max_abs;
  std::memcpy(&max_abs, &max_bits, sizeof max_abs);
  if (max_bits >= kInfinityBits || max_abs < kLeastMax) {
    std::memset(codes, 0, kActivationGroup);
    return group_of(max_bits >= kInfinityBits ? std::nanf("") : 0.0f, 0);
  }
  const float inverse = 127.0f / max_abs;
  vi sums = {};
  for (int i = 0; i < kVectors; ++i) {
    const vi rounded = round_to_int(values[i] * inverse);
    sums += rounded;
    store_i8(codes + i * kLanes, rounded);
  }
  return group_of(max_abs / 127.0f, sum_lanes(sums));
}

void quantise_row(const float* x, int32_t cols, int8_t* codes, GroupOfX* groups) {
  const int32_t whole = cols / kActivationGroup * kActivationGroup;
  for (int32_t k = 0; k < whole; k += kActivationGroup) *groups++ = quantise_group(x + k, codes + k);
  if (whole == cols) return;
  float padded[kActivationGroup] = {};
  std::memcpy(padded, x + whole, static_cast<size_t>(cols - whole) * sizeof(float));
  *groups = quantise_group(padded, codes + whole);
}

// Calls body(row) for all rows, many to an item.
template <typename Body>
void for_rows(Pool& pool, int64_t num_rows, int64_t cols, const Body& body) {
  const int64_t per_item = std::max<int64_t>(1, kValuesPerItem / cols);
  pool.run((num_rows + per_item - 1) / per_item, [&](int64_t item, int) {
    for (int64_t row = item * per_item; row < std::min(num_rows, (item + 1) * per_item); ++row) body(row);
  });
}

}  // namespace

Activations::Activations() : state_(new State) {}
Activations::~Activations() { delete state_; }

void Activations::prepare(Pool& pool, const float* x, int64_t num_rows, int32_t cols, QuireCompute compute) {
  State& state = *state_;
  state.x = x;
  state.num_rows = num_rows;
  state.cols = cols;
  state.is_int8 = compute == QUIRE_COMPUTE_INT8;
  state.has_halves = false;
  if (!state.is_int8) return;
  const int64_t stride = state.stride(), num_groups = state.num_groups();
  int8_t* codes = state.codes.hold<int8_t>(num_rows * stride);
  GroupOfX* groups = state.groups.hold<GroupOfX>(num_rows * num_groups);
  for_rows(pool, num_rows, cols, [=](int64_t row) {
    quantise_row(x + row * cols, cols, codes + row * stride, groups + row * num_groups);
  });
}

void Activations::State::prepare_halves(Pool& pool) {
  if (has_halves) return;
  constexpr int kHalf = kActivationGroup / 2;
  const int64_t num_halves = 2 * num_groups();
  GroupOfX* to = halves.hold<GroupOfX>(num_rows * num_halves);
  const GroupOfX* whole = groups.get<GroupOfX>();
  const int8_t* from = codes.get<int8_t>();
  for_rows(pool, num_rows, cols, [=](int64_t row) {
    for (int64_t i = row * num_halves; i < (row + 1) * num_halves; ++i) {
      int32_t sum = 0;
      for (int k = 0; k < kHalf; ++k) sum += from[i * kHalf + k];
      to[i] = group_of(whole[i / 2].scale, sum);
    }
  });
  has_halves = true;
}

}  // namespace quire
