// exp and tanh as plain arithmetic: no tables, no branches, no library, so that a compiler's vector loop and its
// scalar rest give the same bits and so do all instruction sets.
//
// Knows float32 alone. NaN goes through; exp overflows to infinity and underflows to 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace quire {

inline float bits_to_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int32_t bits_of_float(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// exp(x) within 2 units in the last place.
// Source: Cephes expf: reduction by multiples of ln 2 in two parts, then a polynomial of degree 5.
inline float exp_f32(float x) {
  const float too_large = 88.72283f, too_small = -87.33654f;
  float clamped = x > too_large ? too_large : x;
  clamped = clamped < too_small ? too_small : clamped;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const float shift = 12582912.0f;
  const float n = (clamped * 1.44269504088896341f + shift) - shift;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // n may be 128, which no single exponent holds: 2^n is made of two factors. A NaN has no integer; it stays in p.
  const int32_t whole = static_cast<int32_t>(n == n ? n : 0.0f);
  const int32_t half = whole >> 1;
  const float power = bits_to_float((half + 127) << 23);
  const float rest = bits_to_float((whole - half + 127) << 23);
  float y = p * power * rest;
  y = x > too_large ? std::numeric_limits<float>::infinity() : y;
  return x < too_small ? 0.0f : y;
}

// tanh(x) within 4 units in the last place.
// Source: Eigen's generic_fast_tanh: a rational function of degrees 13 and 6, x kept within where tanh is not 1.
inline float tanh_f32(float x) {
  const float limit = 7.90531110763549805f;
  float c = x > limit ? limit : x;
  c = c < -limit ? -limit : c;
  const float s = c * c;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return c * p / q;
}

}  // namespace quire
