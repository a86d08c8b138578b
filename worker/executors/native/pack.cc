// Packing of weight matrices, and the way back for one row. Runs once per model; knows no instruction set.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "linear.h"
#include "packed.h"

namespace quire {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Both round to nearest, ties to even, and keep NaN.
uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t to_f16(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude < 0x1p-14f) {  // subnormal: units of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::lrint(magnitude * 0x1p24f)));
  }
  const uint32_t bits = bits_of(magnitude);
  const uint32_t half = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
  return static_cast<uint16_t>(sign | std::min(half, 0x7c00u));
}

float from_f16(uint16_t half) {
  if ((half & 0x7c00) == 0x7c00) return float_of((half & 0x8000u) << 16 | 0x7f800000 | (half & 0x3ffu) << 13);
  const float magnitude = float_of((half & 0x7fffu) << 13) * 0x1p112f;  // moves the exponent's bias
  return half & 0x8000 ? -magnitude : magnitude;
}

void check_shape(int32_t kind, int32_t rows, int32_t cols, int32_t group) {
  if (kind < QUIRE_F32 || kind > QUIRE_U8) refuse("no weight kind " + std::to_string(kind));
  if (rows < 1 || cols < 1) refuse("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols));
  if (!is_quantised(kind)) return;
  if (!(group > 0 && group % kActivationGroup == 0) && !(group == 16 && kind == QUIRE_U8)) {
    refuse("group " + std::to_string(group) + ": must be a multiple of 32, or 16 for 8-bit codes");
  }
  if (cols % group != 0) {
    refuse(std::to_string(cols) + " columns are not whole groups of " + std::to_string(group));
  }
}

void check_scales(int64_t rows, int64_t groups, const float* scales, const float* offsets) {
  for (int64_t i = 0; i < rows * groups; ++i) {
    for (const float* values : {scales, offsets}) {
      if (std::isfinite(values[i])) continue;
      refuse((values == scales ? "the scale of row " : "the offset of row ") + std::to_string(i / groups) +
             ", group " + std::to_string(i % groups) + " is not finite");
    }
  }
}

// The integer c for which every offset is -c * scale, or -1.
int common_centre(int64_t count, const float* scales, const float* offsets) {
  int centre = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (scales[i] == 0) {
      if (offsets[i] != 0) return -1;
      continue;
    }
    const float ratio = -offsets[i] / scales[i];
    if (centre < 0) centre = ratio >= 0 && ratio <= 255 ? static_cast<int>(std::lrint(ratio)) : -1;
    if (centre < 0 || offsets[i] != -static_cast<float>(centre) * scales[i]) return -1;
  }
  return std::max(centre, 0);
}

// The centre of the codes where offsets are stored as well: near -offset / scale, so that what is stored is small.
int mean_centre(int64_t count, const float* scales, const float* offsets) {
  double sum = 0;
  int64_t num = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double ratio = -static_cast<double>(offsets[i]) / scales[i];
    if (!(ratio >= 0 && ratio <= 255)) continue;
    sum += ratio;
    ++num;
  }
  return num == 0 ? 0 : static_cast<int>(std::lrint(sum / static_cast<double>(num)));
}

struct Centred {
  int centre;  // taken off the codes
  bool has_offsets;
};

Centred choose_centre(int32_t kind, int64_t num_codes, int64_t num_scales, const uint8_t* codes,
                      const float* scales, const float* offsets) {
  const int common = common_centre(num_scales, scales, offsets);
  if (kind == QUIRE_U4) return {common == 8 ? 8 : 0, common != 8};
  const auto [low, high] = std::minmax_element(codes, codes + num_codes);
  const int least = std::max(*high - 127, 0), most = std::min(*low + 128, 255);  // what keeps codes within int8
  if (common >= least && common <= most) return {common, false};
  return {std::clamp(mean_centre(num_scales, scales, offsets), least, most), true};
}

// The power of two that brings the largest of a row's scales and offsets into [2^13, 2^14), high in what float16
// holds, so that small ones keep all their bits.
float row_power(int64_t groups, const float* scales, const double* offsets) {
  double largest = 0;
  for (int64_t g = 0; g < groups; ++g) {
    largest = std::max({largest, std::fabs(double{scales[g]}), std::fabs(offsets[g])});
  }
  return largest == 0 ? 1.0f : std::ldexp(1.0f, std::clamp(std::ilogb(largest) - 13, -126, 127));
}

void put_code(uint8_t* tile, bool is_u4, int row, int64_t column, uint8_t code) {
  const int64_t byte = 4 * row + (column & 3);
  if (!is_u4) {
    tile[column / 4 * kLineBytes + byte] = code;
  } else {
    tile[column / 8 * kLineBytes + byte] |= static_cast<uint8_t>(column & 4 ? code << 4 : code);
  }
}

int get_code(const uint8_t* tile, bool is_u4, int row, int64_t column) {
  const int64_t byte = 4 * row + (column & 3);
  if (!is_u4) return tile[column / 4 * kLineBytes + byte];
  return tile[column / 8 * kLineBytes + byte] >> (column & 4) & 15;
}

}  // namespace

int64_t packed_bytes(int32_t kind, int32_t rows, int32_t cols, int32_t group) {
  check_shape(kind, rows, cols, group);
  if (is_quantised(kind)) return PackedCodes({kind, rows, cols, group, nullptr}, true, nullptr).num_bytes();
  if (is_vector(kind, rows)) return cols * static_cast<int64_t>(sizeof(float));
  return num_tiles_of(rows) * kTile * cols * (kind == QUIRE_F32 ? 4 : 2);
}

int64_t used_bytes(const QuireWeight& weight) {
  if (is_quantised(weight.kind)) return PackedCodes(weight).num_bytes();
  return packed_bytes(weight.kind, weight.rows, weight.cols, weight.group);
}

void pack_codes(int32_t kind, int32_t rows, int32_t cols, int32_t group, const uint8_t* codes, const float* scales,
                const float* offsets, void* out) {
  if (!is_quantised(kind)) refuse("weight kind " + std::to_string(kind) + " has no codes");
  check_shape(kind, rows, cols, group);
  const int64_t groups = cols / group, num_codes = static_cast<int64_t>(rows) * cols;
  check_scales(rows, groups, scales, offsets);
  if (kind == QUIRE_U4) {
    const uint8_t* wide = std::find_if(codes, codes + num_codes, [](uint8_t code) { return code > 15; });
    const int64_t place = wide - codes;
    if (place != num_codes) {
      refuse("the code of row " + std::to_string(place / cols) + ", column " + std::to_string(place % cols) +
             " exceeds 15");
    }
  }
  const Centred centred = choose_centre(kind, num_codes, rows * groups, codes, scales, offsets);
  const PackedCodes packed({kind, rows, cols, group, out}, centred.has_offsets, out);
  std::memset(out, 0, static_cast<size_t>(packed.num_bytes()));
  *static_cast<PackedHeader*>(out) = {centred.has_offsets, {}};

  const int shift = packed.centre() - centred.centre;
  std::vector<double> moved(static_cast<size_t>(groups));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t tile = row / kTile;
    const int lane = static_cast<int>(row % kTile);
    const float* row_scales = scales + row * groups;
    for (int64_t g = 0; g < groups; ++g) {
      const double exact = offsets[row * groups + g] + static_cast<double>(centred.centre) * row_scales[g];
      moved[g] = centred.has_offsets ? exact : 0;
    }
    const float power = row_power(groups, row_scales, moved.data());
    const_cast<float*>(packed.powers(tile))[lane] = power;
    for (int64_t g = 0; g < groups; ++g) {
      uint16_t* record = const_cast<uint16_t*>(packed.scales(tile)) + g * packed.group_bytes() / 2;
      record[lane] = to_f16(row_scales[g] / power);
      if (centred.has_offsets) record[kTile + lane] = to_f16(static_cast<float>(moved[g] / power));
    }
    uint8_t* lines = const_cast<uint8_t*>(packed.codes(tile));
    for (int64_t k = 0; k < cols; ++k) {
      put_code(lines, packed.is_u4, lane, k, static_cast<uint8_t>(codes[row * cols + k] + shift));
    }
  }
}

void pack_floats(int32_t kind, int32_t rows, int32_t cols, const float* values, void* out) {
  if (is_quantised(kind)) refuse("weight kind " + std::to_string(kind) + " has codes");
  if (is_vector(kind, rows)) {
    std::memcpy(out, values, static_cast<size_t>(cols) * sizeof(float));
    return;
  }
  std::memset(out, 0, static_cast<size_t>(packed_bytes(kind, rows, cols, 0)));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < cols; ++k) {
      const float value = values[row * cols + k];
      const int64_t place = (row / kTile * cols + k) * kTile + row % kTile;
      if (kind == QUIRE_F32) {
        static_cast<float*>(out)[place] = value;
      } else {
        static_cast<uint16_t*>(out)[place] = kind == QUIRE_BF16 ? to_bf16(value) : to_f16(value);
      }
    }
  }
}

void read_row(const QuireWeight& weight, int32_t row, float* out) {
  const int64_t tile = row / kTile;
  const int lane = row % kTile;
  if (is_vector(weight.kind, weight.rows)) {
    std::memcpy(out, weight.data, static_cast<size_t>(weight.cols) * sizeof(float));
    return;
  }
  if (!is_quantised(weight.kind)) {
    for (int64_t k = 0; k < weight.cols; ++k) {
      const int64_t place = (tile * weight.cols + k) * kTile + lane;
      if (weight.kind == QUIRE_F32) {
        out[k] = static_cast<const float*>(weight.data)[place];
      } else {
        const uint16_t half = static_cast<const uint16_t*>(weight.data)[place];
        out[k] = weight.kind == QUIRE_BF16 ? float_of(static_cast<uint32_t>(half) << 16) : from_f16(half);
      }
    }
    return;
  }
  const PackedCodes packed(weight);
  const float power = packed.powers(tile)[lane];
  for (int64_t g = 0; g < packed.num_groups; ++g) {
    const uint16_t* record = packed.scales(tile) + g * packed.group_bytes() / 2;
    const float scale = from_f16(record[lane]);
    const float offset = packed.has_offsets ? from_f16(record[kTile + lane]) : 0.0f;
    for (int64_t k = g * packed.group; k < (g + 1) * packed.group; ++k) {
      const int code = get_code(packed.codes(tile), packed.is_u4, lane, k) - packed.centre();
      out[k] = (scale * static_cast<float>(code) + offset) * power;
    }
  }
}

}  // namespace quire
