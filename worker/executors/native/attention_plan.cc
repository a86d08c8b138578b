#include "attention_plan.h"

#include <algorithm>

namespace quire {
namespace {

class Planner {
 public:
  Planner(const QuireBatch& batch, const AttentionShape& shape, AttentionPlan& plan)
      : batch_(batch), shape_(shape), plan_(plan) {
    const int32_t rows_per_query = shape.num_heads / shape.num_kv_heads;
    for (max_members_ = 1; 2 * max_members_ * rows_per_query <= kTileRows && max_members_ < 16;) max_members_ *= 2;
  }

  void plan() {
    plan_.tokens.clear();
    plan_.works.clear();
    plan_.splits.clear();
    plan_.split_of.assign(static_cast<size_t>(batch_.num_tokens), -1);
    plan_.num_states = 0;
    std::vector<int32_t> decoding;
    for (int32_t s = 0; s < batch_.num_sequences; ++s) {
      if (batch_.query_start[s + 1] - batch_.query_start[s] == 1) {
        decoding.push_back(s);
      } else {
        add_tiles(s);
      }
    }
    add_decoding(decoding);
    // The largest first, so that no thread is left with one when the others are done.
    std::stable_sort(plan_.works.begin(), plan_.works.end(),
                     [&](const AttentionWork& a, const AttentionWork& b) { return cost(a) > cost(b); });
  }

 private:
  int64_t cost(const AttentionWork& work) const {
    return static_cast<int64_t>(work.last_chunk - work.first_chunk) * (work.num_members + 1);
  }
  int32_t position(int32_t sequence) const { return batch_.positions[batch_.query_start[sequence]]; }
  int32_t first_chunk(int32_t position) const {
    return shape_.window > 0 ? std::max(0, position + 1 - shape_.window) / shape_.chunk : 0;
  }
  int32_t last_chunk(int32_t position) const { return position / shape_.chunk + 1; }

  // Tiles are cut at multiples of their size, so none straddles a block of keys.
  void add_tiles(int32_t sequence) {
    int32_t token = batch_.query_start[sequence];
    const int32_t end = batch_.query_start[sequence + 1];
    while (token < end) {
      const int32_t at = batch_.positions[token];
      const int32_t count = std::min(end - token, max_members_ - at % max_members_);
      const int32_t first_member = static_cast<int32_t>(plan_.tokens.size());
      for (int32_t i = 0; i < count; ++i) plan_.tokens.push_back(token + i);
      plan_.works.push_back({first_member, count, first_chunk(at), last_chunk(at + count - 1), true});
      token += count;
    }
  }

  void add_decoding(std::vector<int32_t>& sequences) {
    std::sort(sequences.begin(), sequences.end(), [&](int32_t a, int32_t b) {
      const int32_t* pages = batch_.page_table;
      const int64_t width = batch_.table_width;
      return std::lexicographical_compare(pages + a * width, pages + a * width + num_pages(a), pages + b * width,
                                          pages + b * width + num_pages(b));
    });
    const size_t count = sequences.size();
    // shared[i]: leading chunks that sequence i reads from the same pages as its neighbour i + 1.
    std::vector<int32_t> shared(count, 0);
    for (size_t i = 0; i + 1 < count; ++i) shared[i] = shared_chunks(sequences[i], sequences[i + 1]);
    const bool is_few = (plan_.works.size() + count) * shape_.num_kv_heads < 4u * shape_.num_threads;
    std::vector<int32_t> own(count);
    for (size_t i = 0; i < count; ++i) {
      const int32_t at = position(sequences[i]);
      own[i] = std::max({first_chunk(at), shared[i], i > 0 ? shared[i - 1] : 0});
      const bool is_split = own[i] > first_chunk(at) || (is_few && last_chunk(at) - first_chunk(at) > 1);
      if (is_split) split(sequences[i]);
    }
    add_shared(sequences, shared);
    for (size_t i = 0; i < count; ++i) add_own(sequences[i], own[i], is_few);
  }

  int32_t num_pages(int32_t sequence) const { return position(sequence) / shape_.page_size + 1; }

  // Leading chunks that lie in the same pages for both sequences and end where both see them; 0 where a window hides
  // all of these from one of the two.
  int32_t shared_chunks(int32_t a, int32_t b) const {
    const int32_t whole = std::min(position(a), position(b)) + 1;
    const int32_t most = std::min(num_pages(a), num_pages(b));
    const int32_t* pages_a = batch_.page_table + a * static_cast<int64_t>(batch_.table_width);
    const int32_t* pages_b = batch_.page_table + b * static_cast<int64_t>(batch_.table_width);
    int32_t same = 0;
    while (same < most && pages_a[same] == pages_b[same]) ++same;
    const auto chunks =
        static_cast<int32_t>(std::min<int64_t>(whole, static_cast<int64_t>(same) * shape_.page_size) / shape_.chunk);
    return chunks > std::max(first_chunk(position(a)), first_chunk(position(b))) ? chunks : 0;
  }

  void split(int32_t sequence) {
    const int32_t token = batch_.query_start[sequence], at = position(sequence);
    plan_.split_of[static_cast<size_t>(token)] = static_cast<int32_t>(plan_.splits.size());
    plan_.splits.push_back({token, first_chunk(at), last_chunk(at), plan_.num_states});
    plan_.num_states += static_cast<int64_t>(last_chunk(at) - first_chunk(at)) * shape_.num_heads;
  }

  // One work per chunk and group of sequences that read it from the same pages.
  void add_shared(const std::vector<int32_t>& sequences, const std::vector<int32_t>& shared) {
    const int32_t deepest = shared.empty() ? 0 : *std::max_element(shared.begin(), shared.end());
    for (int32_t chunk = 0; chunk < deepest; ++chunk) {
      for (size_t i = 0; i < sequences.size();) {
        size_t last = i;
        while (last + 1 < sequences.size() && shared[last] > chunk) ++last;
        if (last > i) add_group(sequences, i, last + 1, chunk);
        i = last + 1;
      }
    }
  }

  // Of sequences [first, last) those that see the chunk read it together.
  void add_group(const std::vector<int32_t>& sequences, size_t first, size_t last, int32_t chunk) {
    while (first < last) {
      const int32_t first_member = static_cast<int32_t>(plan_.tokens.size());
      int32_t count = 0;
      for (; first < last && count < max_members_; ++first) {
        if (first_chunk(position(sequences[first])) > chunk) continue;
        plan_.tokens.push_back(batch_.query_start[sequences[first]]);
        ++count;
      }
      if (count > 0) plan_.works.push_back({first_member, count, chunk, chunk + 1, false});
    }
  }

  void add_own(int32_t sequence, int32_t first, bool is_few) {
    const int32_t token = batch_.query_start[sequence], last = last_chunk(position(sequence));
    const bool is_whole = plan_.split_of[static_cast<size_t>(token)] < 0;
    const int32_t step = is_few && !is_whole ? 1 : std::max(1, last - first);
    for (; first < last; first += step) {
      plan_.works.push_back({static_cast<int32_t>(plan_.tokens.size()), 1, first, std::min(last, first + step),
                             is_whole});
      plan_.tokens.push_back(token);
    }
  }

  const QuireBatch& batch_;
  const AttentionShape& shape_;
  AttentionPlan& plan_;
  int32_t max_members_;
};

}  // namespace

void plan_attention(const QuireBatch& batch, const AttentionShape& shape, AttentionPlan& plan) {
  Planner(batch, shape, plan).plan();
}

}  // namespace quire
