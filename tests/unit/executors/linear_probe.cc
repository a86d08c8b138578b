// Runs products of one packed weight for linear_probe.py: a request on stdin, all outputs on stdout.
//
// Request: int32 kind, rows, cols, group, has_bias, num_runs; codes, scales and offsets, or values; the bias; then
// a run at a time int32 compute, num_threads, num_rows, stride and x. Answer: an error's text, or "ok" and the
// bytes used, a line end, the weight's rows as float32 and, run by run, y [num_rows, stride]: NaN where it was not
// written.

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "linear.h"
#include "packed.h"

namespace {

template <typename T>
std::vector<T> read(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  const size_t num_read = std::fread(values.data(), sizeof(T), values.size(), stdin);
  if (num_read != values.size()) throw std::runtime_error("the request ends early");
  return values;
}

void write(const std::vector<float>& values) { std::fwrite(values.data(), sizeof(float), values.size(), stdout); }

// Memory as a packed file gives it: aligned, and anything in it before.
struct Packed {
  explicit Packed(int64_t num_bytes) : room(static_cast<size_t>(num_bytes) + 64, 0xff) {}
  void* data() { return room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64; }
  std::vector<uint8_t> room;
};

void answer() {
  const auto head = read<int32_t>(6);
  const int32_t kind = head[0], rows = head[1], cols = head[2], group = head[3];
  const int64_t count = static_cast<int64_t>(rows) * cols;
  Packed packed(quire::packed_bytes(kind, rows, cols, group));
  if (quire::is_quantised(kind)) {
    const auto codes = read<uint8_t>(count);
    const auto scales = read<float>(count / group), offsets = read<float>(count / group);
    quire::pack_codes(kind, rows, cols, group, codes.data(), scales.data(), offsets.data(), packed.data());
  } else {
    quire::pack_floats(kind, rows, cols, read<float>(count).data(), packed.data());
  }
  const QuireWeight weight{kind, rows, cols, group, packed.data()};
  const auto bias = read<float>(head[4] ? rows : 0);
  std::printf("ok %lld\n", static_cast<long long>(quire::used_bytes(weight)));
  std::vector<float> row(static_cast<size_t>(cols));
  for (int32_t i = 0; i < rows; ++i) {
    quire::read_row(weight, i, row.data());
    write(row);
  }
  quire::Activations activations;
  for (int32_t run = 0; run < head[5]; ++run) {
    const auto shape = read<int32_t>(4);
    const auto x = read<float>(static_cast<int64_t>(shape[2]) * cols);
    std::vector<float> y(static_cast<size_t>(shape[2]) * static_cast<size_t>(shape[3]), std::nanf(""));
    quire::Pool pool(shape[1]);
    activations.prepare(pool, x.data(), shape[2], cols, static_cast<QuireCompute>(shape[0]));
    quire::linear(pool, weight, activations, head[4] ? bias.data() : nullptr, y.data(), shape[3]);
    write(y);
  }
}

}  // namespace

int main() {
  try {
    answer();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
}
