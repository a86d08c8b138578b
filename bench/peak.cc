// How many multiply-adds the instructions of the products do in a second, register to register: nothing is loaded,
// scaled or stored, so no step is faster. Prints those of 4-bit codes and of float32; the argument is threads.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "dot.h"

namespace {

using namespace quire;

constexpr int kSums = 12;  // more than an instruction takes, as many as the registers hold
constexpr int kSteps = 4 << 20;

// Makes a value unknown to the compiler, which would do the same product, or two that are equal, once.
template <typename V>
inline void forget(V& value) {
#if defined(QUIRE_ISA_NEON)
  asm volatile("" : "+w"(value));
#elif defined(QUIRE_ISA_PORTABLE)
  asm volatile("" : "+m"(value));
#else
  asm volatile("" : "+x"(value));
#endif
}

template <typename V>
inline void forget_all(V (&values)[kSums]) {
  QUIRE_UNROLL
  for (int j = 0; j < kSums; ++j) forget(values[j]);
}

void multiply_codes() {
  vub w{};
  vb x{};
  DotU4::Sum sums[kSums] = {};
  forget(w);
  forget_all(sums);
  const DotU4::Codes codes = DotU4::prepare(w);
  for (int i = 0; i < kSteps; ++i) {
    QUIRE_UNROLL
    for (int j = 0; j < kSums; ++j) {
      forget(x);
      sums[j] = DotU4::step(sums[j], codes, x);
    }
  }
  forget_all(sums);
}

void multiply_floats() {
  vf w{}, x{};
  vf sums[kSums] = {};
  forget(w);
  forget_all(sums);
  for (int i = 0; i < kSteps; ++i) {
    QUIRE_UNROLL
    for (int j = 0; j < kSums; ++j) {
      forget(x);
      sums[j] = fma(w, x, sums[j]);
    }
  }
  forget_all(sums);
}

// Multiply-adds per second, the best of five passes.
double rate(void (*work)(), int num_threads, double per_step) {
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double found = per_step * kSums * kSteps * num_threads / took.count();
    if (found > best) best = found;
  }
  return best;
}

}  // namespace

int main(int, char** arguments) {
  const int num_threads = std::atoi(arguments[1]);
  const double codes = rate(multiply_codes, num_threads, 4 * kLanes);
  std::printf("%.6g %.6g\n", codes, rate(multiply_floats, num_threads, kLanes));
}
