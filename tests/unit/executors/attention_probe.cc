// Runs rope_store and paged_attention on what stdin says and writes what they give: tests drive the native
// sources through it on any instruction set, under an emulator too.
//
// Commands are a byte and its arguments, int32 and float32 as they lie in memory:
//   N format page_size layers kv_heads head_dim heads num_pages threads   new memory
//   F byte first count        fills pages [first, first + count) with that byte
//   S layer window soft_cap scale T S P R, batch arrays, rope [R, head_dim], qkv [T, ..]
//                             one step; writes q and out, [T, heads * head_dim] each
//   D page                    writes the bytes of a page
//   R window chunk T S P, batch arrays
//                             writes how many chunks of so many keys a kv head's rows read, as int32
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "attention.h"
#include "attention_plan.h"

namespace {

void read(void* to, size_t bytes) {
  if (bytes > 0 && std::fread(to, 1, bytes, stdin) != bytes) std::exit(3);
}
template <typename T>
T one() {
  T value;
  read(&value, sizeof value);
  return value;
}
template <typename T>
std::vector<T> many(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  read(values.data(), values.size() * sizeof(T));
  return values;
}
void write(const void* from, size_t bytes) {
  if (std::fwrite(from, 1, bytes, stdout) != bytes) std::exit(4);
}

QuireBatch batch_of(const std::vector<int32_t>& positions, const std::vector<int32_t>& starts,
                    const std::vector<int32_t>& lengths, const std::vector<int32_t>& table, int32_t width) {
  QuireBatch batch{};
  batch.num_tokens = static_cast<int32_t>(positions.size());
  batch.num_sequences = static_cast<int32_t>(lengths.size());
  batch.table_width = width;
  batch.positions = positions.data();
  batch.query_start = starts.data();
  batch.context_len = lengths.data();
  batch.page_table = table.data();
  return batch;
}

struct Probe {
  quire::KvMemory kv{};
  int32_t num_heads = 0;
  std::vector<uint8_t> memory;
  std::unique_ptr<quire::Pool> pool;

  void renew() {
    kv.format = static_cast<QuireKvFormat>(one<int32_t>());
    kv.page_size = one<int32_t>();
    kv.num_layers = one<int32_t>();
    kv.num_kv_heads = one<int32_t>();
    kv.head_dim = one<int32_t>();
    num_heads = one<int32_t>();
    const auto num_pages = one<int32_t>();
    pool = std::make_unique<quire::Pool>(one<int32_t>());
    kv.page_bytes = quire::kv_page_bytes(kv);
    memory.assign(static_cast<size_t>(num_pages * kv.page_bytes), 0xff);
    kv.pages = memory.data();
  }

  void fill() {
    const auto byte = one<int32_t>(), first = one<int32_t>(), count = one<int32_t>();
    std::memset(kv.pages + first * kv.page_bytes, byte, static_cast<size_t>(count * kv.page_bytes));
  }

  void step() {
    const auto layer = one<int32_t>(), window = one<int32_t>();
    const auto soft_cap = one<float>(), scale = one<float>();
    const auto num_tokens = one<int32_t>(), num_sequences = one<int32_t>(), width = one<int32_t>();
    const auto num_positions = one<int32_t>();
    const auto positions = many<int32_t>(num_tokens), starts = many<int32_t>(num_sequences + 1);
    const auto lengths = many<int32_t>(num_sequences);
    const auto table = many<int32_t>(static_cast<int64_t>(num_sequences) * width);
    const auto rope = many<float>(static_cast<int64_t>(num_positions) * kv.head_dim);
    const int64_t q_width = static_cast<int64_t>(num_heads) * kv.head_dim;
    const auto qkv = many<float>(num_tokens * (q_width + 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim));
    std::vector<int32_t> sequence_of(static_cast<size_t>(num_tokens));
    for (int32_t s = 0; s < num_sequences; ++s) {
      for (int32_t t = starts[s]; t < starts[s + 1]; ++t) sequence_of[static_cast<size_t>(t)] = s;
    }
    const QuireBatch batch = batch_of(positions, starts, lengths, table, width);
    std::vector<float> q(static_cast<size_t>(num_tokens * q_width)), out(q);
    quire::rope_store(*pool, kv, batch, sequence_of.data(), layer, rope.data(), num_heads, qkv.data(), q.data());
    std::memset(out.data(), 0xff, out.size() * sizeof(float));
    quire::paged_attention(*pool, kv, batch, {layer, num_heads, window, scale, soft_cap}, q.data(), out.data());
    write(q.data(), q.size() * sizeof(float));
    write(out.data(), out.size() * sizeof(float));
  }

  void count_reads() const {
    const auto window = one<int32_t>(), chunk = one<int32_t>();
    const auto num_tokens = one<int32_t>(), num_sequences = one<int32_t>(), width = one<int32_t>();
    const auto positions = many<int32_t>(num_tokens), starts = many<int32_t>(num_sequences + 1);
    const auto lengths = many<int32_t>(num_sequences);
    const auto table = many<int32_t>(static_cast<int64_t>(num_sequences) * width);
    const QuireBatch batch = batch_of(positions, starts, lengths, table, width);
    quire::AttentionPlan plan;
    quire::plan_attention(batch, {kv.page_size, num_heads, kv.num_kv_heads, window, chunk, pool->num_threads()},
                          plan);
    int32_t num_reads = 0;
    for (const quire::AttentionWork& work : plan.works) num_reads += work.last_chunk - work.first_chunk;
    write(&num_reads, sizeof num_reads);
  }
};

}  // namespace

int main() {
  Probe probe;
  for (int command = std::getchar(); command != EOF; command = std::getchar()) {
    try {
      switch (command) {
        case 'N':
          probe.renew();
          break;
        case 'F':
          probe.fill();
          break;
        case 'S':
          probe.step();
          break;
        case 'D':
          write(probe.kv.pages + one<int32_t>() * probe.kv.page_bytes, static_cast<size_t>(probe.kv.page_bytes));
          break;
        case 'R':
          probe.count_reads();
          break;
        default:
          return 2;
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 5;
    }
  }
  return 0;
}
