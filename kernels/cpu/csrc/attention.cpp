// Attention that reads keys and values from the block cache only, new ones included.
//
// Prefill and decode run the same code. A row (one token) and a head go through the same operations
// in the same order whatever the bucket, the neighbours or the phase: key tiles start at multiples
// of a fixed number of tokens, scores and outputs are chains over ascending head dim and token, and
// a row takes part in a tile only with the tokens that it may see.
#include <algorithm>
#include <cfloat>

#include "attention.h"
#include "kv_panels.h"
#include "scratch.h"
#include "weighted_sum.h"

namespace {

// Consecutive rows of one request, with the query heads of some key/value heads. For one of those,
// index i stands for (row i / group, head i % group).
template <class T>
class Segment {
 public:
  Segment(const Attention<T>& attention, int64_t kv_head, int64_t kv_heads)
      : a_(attention), kv_head_(kv_head), kv_heads_(kv_heads), group_(a_.group()) {
    padded_dim_ = (a_.dim + kPanel - 1) / kPanel * kPanel;
    padded_tokens_ = (a_.tile_tokens + kPanel - 1) / kPanel * kPanel;
  }

  void run(int64_t request, int64_t row, int64_t rows) {
    request_ = request;
    row_ = row;
    size_ = rows * group_;
    seen_ = a_.context_lens[request] + row - a_.first_row(request) + 1;
    const int64_t capacity = a_.table_width * a_.block_size;
    const int64_t last = std::min(capacity, seen_ + rows - 1);
    begin();
    for (int64_t base = 0; base < last; base += a_.tile_tokens) {
      locate(base, std::min(a_.tile_tokens, last - base));
      touch(base + a_.tile_tokens, std::min(base + 2 * a_.tile_tokens, last));
      // Rows are ascending in position: those that see nothing of this tile come first.
      const int64_t first = std::max<int64_t>(0, base + 1 - seen_) * group_;
      for (int64_t head = 0; head < kv_heads_; ++head) {
        pack_keys(k_rows_, head * a_.dim, a_.dim, padded_tokens_, k_);
        score(head, first);
        weigh(head, first, base);
        if (size_ <= kFewRows) {
          add_few(head, first, base);
        } else {
          pack_values(v_rows_, head * a_.dim, a_.dim, a_.tile_tokens, v_);
          add_values(head, first, base);
        }
      }
    }
    finish();
  }

 private:
  void begin() {
    const int64_t all = size_ * kv_heads_;
    const int64_t k_size = padded_tokens_ / kPanel * panel_elements((const T*)nullptr, a_.dim);
    const int64_t v_size = padded_dim_ * a_.tile_tokens;
    const int64_t vector = size_ + kWidth;  // vectors over rows may run past the last one
    Scratch& scratch = thread_scratch();
    scratch.begin(Scratch::bytes<T>(all * a_.dim) + Scratch::bytes<T>(k_size) +
                  Scratch::bytes<float>(v_size) + Scratch::bytes<float>(size_ * padded_tokens_) +
                  Scratch::bytes<float>(all * padded_dim_) +
                  2 * Scratch::bytes<float>(all + kWidth) + 2 * Scratch::bytes<float>(vector) +
                  Scratch::bytes<T>(kv_heads_ * a_.dim) +
                  Scratch::bytes<int32_t>(padded_tokens_) +
                  2 * Scratch::bytes<const T*>(padded_tokens_));
    q_ = scratch.take<T>(all * a_.dim);
    k_ = scratch.take<T>(k_size);
    v_ = scratch.take<float>(v_size);
    scores_ = scratch.take<float>(size_ * padded_tokens_);
    sums_ = scratch.take<float>(all * padded_dim_);
    maxima_ = scratch.take<float>(all + kWidth);
    totals_ = scratch.take<float>(all + kWidth);
    decay_ = scratch.take<float>(vector);
    next_maxima_ = scratch.take<float>(vector);
    zeros_ = scratch.take<T>(kv_heads_ * a_.dim);
    valid_ = scratch.take<int32_t>(padded_tokens_);
    k_rows_ = scratch.take<const T*>(padded_tokens_);
    v_rows_ = scratch.take<const T*>(padded_tokens_);
    for (int64_t head = 0; head < kv_heads_; ++head)
      for (int64_t i = 0; i < size_; ++i) {
        const int64_t from = (kv_head_ + head) * group_ + i % group_;
        std::copy_n(a_.q + (row_ + i / group_) * a_.q_stride + from * a_.dim, a_.dim,
                    q_ + (head * size_ + i) * a_.dim);
      }
    std::fill_n(sums_, all * padded_dim_, 0.0f);
    std::fill_n(totals_, all, 0.0f);
    std::fill_n(maxima_, all, -FLT_MAX);
    std::fill_n(next_maxima_, vector, -FLT_MAX);
    std::fill_n(zeros_, kv_heads_ * a_.dim, T{});
  }

  int64_t tokens_of(int64_t i, int64_t base) const {
    const int64_t capacity = a_.table_width * a_.block_size;
    return std::min(a_.tile_tokens, std::min(capacity, seen_ + i / group_) - base);
  }

  int64_t block_of(int64_t token) const {
    const int64_t block = a_.block_table[request_ * a_.table_width + token / a_.block_size];
    return block < a_.num_blocks ? block : -1;
  }

  // Finds the first head of each token of a tile in the caches. Tokens without a block read zeros
  // and are not valid; those past the last one are padding of the tile.
  void locate(int64_t base, int64_t tokens) {
    const int64_t stride = a_.kv_heads * a_.dim;
    for (int64_t t = 0; t < padded_tokens_; t += a_.block_size) {
      const int64_t block = t < tokens ? block_of(base + t) : -1;
      const int64_t at = (block * a_.block_size * a_.kv_heads + kv_head_) * a_.dim;
      const int64_t count = std::min(a_.block_size, padded_tokens_ - t);
      for (int64_t i = 0; i < count; ++i) {
        const bool valid = block >= 0 && t + i < tokens;
        valid_[t + i] = valid ? -1 : 0;
        k_rows_[t + i] = valid ? a_.k_cache + at + i * stride : zeros_;
        v_rows_[t + i] = valid ? a_.v_cache + at + i * stride : zeros_;
      }
    }
  }

  // Starts to fetch the next tile while this one is worked on. Real loads: a prefetch is dropped
  // where the page's translation is not at hand, as is usual in a large cache.
  void touch(int64_t token, int64_t last) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    const int64_t stride = a_.kv_heads * a_.dim;
    for (; token < last; token += a_.block_size) {
      const int64_t block = block_of(token);
      if (block < 0) continue;
      const int64_t first = block * a_.block_size * stride + kv_head_ * a_.dim;
      for (int64_t i = 0; i < std::min(a_.block_size, last - token); ++i)
        for (int64_t d = 0; d < kv_heads_ * a_.dim; d += kLine) {
          (void)*(const volatile char*)(a_.k_cache + first + i * stride + d);
          (void)*(const volatile char*)(a_.v_cache + first + i * stride + d);
        }
    }
  }

  void score(int64_t head, int64_t first) {
    const int64_t k_panel = panel_elements((const T*)nullptr, a_.dim);
    const int64_t panels = padded_tokens_ / kPanel;
    for (int64_t panel = 0; panel < panels; panel += kMaxPanels)
      for (int64_t i = first; i < size_; i += kMaxRows) {
        Product<T> product{q_ + (head * size_ + i) * a_.dim,
                           a_.dim,
                           k_ + panel * k_panel,
                           k_panel,
                           a_.dim,
                           scores_ + i * padded_tokens_ + panel * kPanel,
                           padded_tokens_,
                           nullptr,
                           a_.scale};
        multiply(product, std::min<int64_t>(kMaxRows, size_ - i),
                 std::min<int64_t>(kMaxPanels, panels - panel));
      }
  }

  vi valid_lanes(int64_t t, int64_t tokens) const {
    return load_as<vi>(valid_ + t) & (vi)(lane_ids() < splat(int32_t(tokens - t)));
  }

  // Online softmax: scores become weights relative to a row's new maximum. With no valid token the
  // maximum stays, the decay is exactly 1 and all weights are 0.
  void weigh(int64_t head, int64_t first, int64_t base) {
    float* maxima = maxima_ + head * size_;
    float* totals = totals_ + head * size_;
    for (int64_t i = first; i < size_; ++i) {
      const int64_t tokens = tokens_of(i, base);
      vf top = splat(maxima[i]);
      for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
        vf scores = load(scores_ + i * padded_tokens_ + t);
        top = max(top, select(valid_lanes(t, tokens), scores, splat(-FLT_MAX)));
      }
      next_maxima_[i] = max_lanes(top);
    }
    for (int64_t i = first; i < size_; i += kWidth)
      store(decay_ + i, exponential(load(maxima + i) - load(next_maxima_ + i)));
    for (int64_t i = first; i < size_; ++i) {
      const int64_t tokens = tokens_of(i, base);
      vf total{};
      for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
        float* scores = scores_ + i * padded_tokens_ + t;
        vf weights = exponential(load(scores) - next_maxima_[i]);
        weights = select(valid_lanes(t, tokens), weights, vf{});
        store(scores, weights);
        total += weights;
      }
      totals[i] = totals[i] * decay_[i] + sum_lanes(total);
      maxima[i] = next_maxima_[i];
    }
  }

  void add_values(int64_t head, int64_t first, int64_t base) {
    const int64_t panel_size = a_.tile_tokens * kPanel, panels = padded_dim_ / kPanel;
    for (int64_t i = first; i < size_;) {
      // Rows that end at different tokens differ in k: they cannot share a product.
      const int64_t tokens = tokens_of(i, base);
      int64_t rows = 1;
      while (rows < kMaxRows && i + rows < size_ && tokens_of(i + rows, base) == tokens) ++rows;
      for (int64_t panel = 0; panel < panels; panel += kMaxPanels) {
        Product<float> product{scores_ + i * padded_tokens_,
                               padded_tokens_,
                               v_ + panel * panel_size,
                               panel_size,
                               tokens,
                               sums_ + (head * size_ + i) * padded_dim_ + panel * kPanel,
                               padded_dim_,
                               decay_ + i,
                               1.0f};
        multiply(product, rows, std::min<int64_t>(kMaxPanels, panels - panel));
      }
      i += rows;
    }
  }

  // The same chains as add_values, over values as they lie in the cache: for a few rows, panels
  // would cost more than they save. Every tile of a row with one query ends at the same token.
  void add_few(int64_t head, int64_t first, int64_t base) {
    for (int64_t i = first; i < size_; ++i)
      if (i + 1 == size_ || tokens_of(i + 1, base) != tokens_of(i, base)) {
        add_weighted(WeightedSum<T>{scores_ + first * padded_tokens_, padded_tokens_,
                                    decay_ + first, v_rows_, head * a_.dim, tokens_of(i, base),
                                    a_.dim, sums_ + (head * size_ + first) * padded_dim_,
                                    padded_dim_},
                     i + 1 - first);
        first = i + 1;
      }
  }

  void finish() {
    for (int64_t at = 0; at < kv_heads_ * size_; ++at) {
      const int64_t row = row_ + at % size_ / group_;
      const int64_t head = (kv_head_ + at / size_) * group_ + at % group_;
      T* to = a_.out + (row * a_.heads + head) * a_.dim;
      for (int64_t d = 0; d < a_.dim; d += kWidth) {
        vf sum = load(sums_ + at * padded_dim_ + d);
        store(to + d, totals_[at] == 0.0f ? vf{} : sum / totals_[at], a_.dim - d);
      }
    }
  }

  const Attention<T>& a_;
  int64_t kv_head_, kv_heads_, group_;
  int64_t padded_dim_, padded_tokens_;
  int64_t request_, row_, size_;
  int64_t seen_;  // tokens that the first row sees
  T *q_, *k_;
  float *v_, *scores_, *sums_, *maxima_, *totals_, *decay_, *next_maxima_;
  T* zeros_;
  int32_t* valid_;
  const T **k_rows_, **v_rows_;
};

// A task is a tile of rows with some key/value heads. The last rows see most: they start first.
template <class T>
void attend(const Arg* args, int64_t task) {
  Attention<T> attention(args);
  const int64_t kv_heads = attention.task_heads;
  const int64_t parts = attention.kv_heads / kv_heads;
  const int64_t tiles = (attention.rows + attention.row_tile - 1) / attention.row_tile;
  const int64_t kv_head = task % parts * kv_heads;
  int64_t row = (tiles - 1 - task / parts) * attention.row_tile;
  const int64_t last = std::min(attention.rows, row + attention.row_tile);
  Segment<T> segment(attention, kv_head, kv_heads);
  while (row < last) {
    const int64_t request = attention.request_of(row);
    int64_t rows = 1;
    while (row + rows < last && attention.request_of(row + rows) == request) ++rows;
    if (request >= 0) {
      segment.run(request, row, rows);
    } else {
      const int64_t width = attention.group() * attention.dim;
      for (int64_t r = row; r < row + rows; ++r)
        std::fill_n(attention.out + (r * attention.kv_heads + kv_head) * width, kv_heads * width,
                    T{});
    }
    row += rows;
  }
}

}  // namespace

extern "C" {
void attend_f32(const Arg* args, int64_t task) { attend<float>(args, task); }
void attend_bf16(const Arg* args, int64_t task) { attend<bf16>(args, task); }
}
