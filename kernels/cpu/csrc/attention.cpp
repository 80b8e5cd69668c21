// Attention that reads keys and values from the block cache only, new ones included.
//
// Prefill and decode run the same code. A row (one token) and a head go through the same operations
// in the same order whatever the bucket, the neighbours or the phase: key tiles start at multiples
// of a fixed number of tokens, scores and outputs are chains over ascending head dim and token, and
// a row takes part in a tile only with the tokens that it may see: none of what lies before its
// window or after itself is multiplied by anything.
#include <algorithm>
#include <cfloat>

#include "attention.h"
#include "key_tile.h"
#include "kv_panels.h"
#include "scratch.h"
#include "weighted_sum.h"

namespace {

// Consecutive rows of one request, with the query heads of some key/value heads. For one of those,
// index i stands for (row i / group, head i % group).
template <class T, class C>
class Segment {
  using Value = typename KeyTile<T, C>::Value;

 public:
  Segment(const Attention<T, C>& attention, int64_t kv_head, int64_t kv_heads)
      : a_(attention),
        kv_head_(kv_head),
        kv_heads_(kv_heads),
        group_(a_.group()),
        padded_dim_((a_.dim + kPanel - 1) / kPanel * kPanel),
        padded_tokens_((a_.tile_tokens + kPanel - 1) / kPanel * kPanel),
        tile_(a_, kv_head, kv_heads, padded_tokens_) {}

  void run(int64_t request, int64_t row, int64_t rows) {
    row_ = row;
    size_ = rows * group_;
    seen_ = a_.context_lens[request] + row - a_.first_row(request) + 1;
    begin(request);
    const int64_t last = std::min(tile_.last(), seen_ + rows - 1);
    const int64_t start = std::max(tile_.first(), start_of(0)) / a_.tile_tokens * a_.tile_tokens;
    for (int64_t base = start; base < last; base += a_.tile_tokens) {
      tile_.locate(base, std::min(a_.tile_tokens, last - base));
      tile_.touch(base + a_.tile_tokens, std::min(base + 2 * a_.tile_tokens, last));
      choose_rows(base, rows);
      for (int64_t head = 0; head < kv_heads_; ++head) {
        pack_keys(tile_.keys(), head * a_.dim, a_.dim, padded_tokens_, k_);
        score(head);
        if (a_.softcap != 0.0f) cap();
        weigh(head);
        if (size_ <= kFewRows) {
          add_few(head);
        } else {
          pack_values(tile_.values(), head * a_.dim, a_.dim, a_.tile_tokens, v_);
          add_values(head);
        }
      }
    }
    finish();
  }

 private:
  void begin(int64_t request) {
    const int64_t all = size_ * kv_heads_;
    const int64_t k_size = padded_tokens_ / kPanel * panel_elements((const T*)nullptr, a_.dim);
    const int64_t v_size = padded_dim_ * a_.tile_tokens;
    const int64_t vector = size_ + kWidth;  // vectors over rows may run past the last one
    Scratch& scratch = thread_scratch();
    scratch.begin(Scratch::bytes<T>(all * a_.dim) + Scratch::bytes<T>(k_size) +
                  Scratch::bytes<float>(v_size) + Scratch::bytes<float>(size_ * padded_tokens_) +
                  Scratch::bytes<float>(all * padded_dim_) +
                  2 * Scratch::bytes<float>(all + kWidth) + 2 * Scratch::bytes<float>(vector) +
                  Scratch::bytes<Span>(size_) + tile_.bytes());
    q_ = scratch.take<T>(all * a_.dim);
    k_ = scratch.take<T>(k_size);
    v_ = scratch.take<float>(v_size);
    scores_ = scratch.take<float>(size_ * padded_tokens_);
    sums_ = scratch.take<float>(all * padded_dim_);
    maxima_ = scratch.take<float>(all + kWidth);
    totals_ = scratch.take<float>(all + kWidth);
    decay_ = scratch.take<float>(vector);
    next_maxima_ = scratch.take<float>(vector);
    spans_ = scratch.take<Span>(size_);
    tile_.begin(scratch, request);
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
  }

  // The tokens of a tile that a row sees.
  struct Span {
    int32_t from, to;
    bool operator==(const Span& other) const { return from == other.from && to == other.to; }
  };

  // The first position that a row (not an index) sees.
  int64_t start_of(int64_t row) const {
    return a_.window ? std::max<int64_t>(0, seen_ + row - a_.window) : 0;
  }

  // Rows are ascending in position: those whose tokens all lie after the tile come first, those
  // whose windows have left it behind come last.
  void choose_rows(int64_t base, int64_t rows) {
    const int64_t first = std::max<int64_t>(0, base + 1 - seen_);
    const int64_t behind = base + a_.tile_tokens + a_.window - seen_;
    const int64_t end = a_.window ? std::min(rows, behind) : rows;
    for (int64_t row = first; row < end; ++row) {
      const int64_t to = std::min(tile_.last(), seen_ + row) - base;
      const Span span{int32_t(std::max<int64_t>(0, start_of(row) - base)),
                      int32_t(std::min(a_.tile_tokens, to))};
      std::fill_n(spans_ + row * group_, group_, span);
    }
    first_ = first * group_;
    end_ = end * group_;
  }

  void score(int64_t head) {
    const int64_t k_panel = panel_elements((const T*)nullptr, a_.dim);
    const int64_t panels = padded_tokens_ / kPanel;
    for (int64_t panel = 0; panel < panels; panel += kMaxPanels)
      for (int64_t i = first_; i < end_; i += kMaxRows) {
        Product<T> product{q_ + (head * size_ + i) * a_.dim,
                           a_.dim,
                           k_ + panel * k_panel,
                           k_panel,
                           a_.dim,
                           scores_ + i * padded_tokens_ + panel * kPanel,
                           padded_tokens_,
                           nullptr,
                           a_.scale};
        multiply(product, std::min<int64_t>(kMaxRows, end_ - i),
                 std::min<int64_t>(kMaxPanels, panels - panel));
      }
  }

  // Scores come in units of the cap.
  void cap() {
    for (int64_t at = first_ * padded_tokens_; at < end_ * padded_tokens_; at += kWidth)
      store(scores_ + at, hyperbolic_tangent(load(scores_ + at)) * a_.softcap);
  }

  vi valid_lanes(int64_t t, Span span) const {
    // Lanes before the span wrap around to numbers past it.
    const vu since = (vu)(lane_ids() + splat(int32_t(t) - span.from));
    return load_as<vi>(tile_.valid() + t) & (vi)(since < (vu)splat(span.to - span.from));
  }

  // Online softmax: scores become weights relative to a row's new maximum. With no valid token the
  // maximum stays, the decay is exactly 1 and all weights are 0.
  void weigh(int64_t head) {
    float* maxima = maxima_ + head * size_;
    float* totals = totals_ + head * size_;
    for (int64_t i = first_; i < end_; ++i) {
      const Span span = spans_[i];
      vf top = splat(maxima[i]);
      for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
        vf scores = load(scores_ + i * padded_tokens_ + t);
        top = max(top, select(valid_lanes(t, span), scores, splat(-FLT_MAX)));
      }
      next_maxima_[i] = max_lanes(top);
    }
    for (int64_t i = first_; i < end_; i += kWidth)
      store(decay_ + i, exponential(load(maxima + i) - load(next_maxima_ + i)));
    for (int64_t i = first_; i < end_; ++i) {
      const Span span = spans_[i];
      vf total{};
      for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
        float* scores = scores_ + i * padded_tokens_ + t;
        vf weights = exponential(load(scores) - next_maxima_[i]);
        weights = select(valid_lanes(t, span), weights, vf{});
        store(scores, weights);
        total += weights;
      }
      totals[i] = totals[i] * decay_[i] + sum_lanes(total);
      maxima[i] = next_maxima_[i];
    }
  }

  void add_values(int64_t head) {
    const int64_t panel_size = a_.tile_tokens * kPanel, panels = padded_dim_ / kPanel;
    for (int64_t i = first_; i < end_;) {
      // Rows that see different tokens differ in k: they cannot share a product.
      const Span span = spans_[i];
      int64_t rows = 1;
      while (rows < kMaxRows && i + rows < end_ && spans_[i + rows] == span) ++rows;
      for (int64_t panel = 0; panel < panels; panel += kMaxPanels) {
        Product<float> product{scores_ + i * padded_tokens_ + span.from,
                               padded_tokens_,
                               v_ + panel * panel_size + span.from * kPanel,
                               panel_size,
                               span.to - span.from,
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
  // would cost more than they save. All heads of a token see the same tokens.
  void add_few(int64_t head) {
    for (int64_t first = first_, i = first_; i < end_; ++i) {
      const Span span = spans_[i];
      if (i + 1 < end_ && spans_[i + 1] == span) continue;
      const WeightedSum<Value> sum{scores_ + first * padded_tokens_ + span.from,
                                   padded_tokens_,
                                   decay_ + first,
                                   tile_.values() + span.from,
                                   head * a_.dim,
                                   span.to - span.from,
                                   a_.dim,
                                   sums_ + (head * size_ + first) * padded_dim_,
                                   padded_dim_};
      add_weighted(sum, i + 1 - first);
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
        sum = totals_[at] == 0.0f ? vf{} : sum / totals_[at];
        store(to + d, sum * a_.v_scale, a_.dim - d);
      }
    }
  }

  const Attention<T, C>& a_;
  int64_t kv_head_, kv_heads_, group_;
  int64_t padded_dim_, padded_tokens_;
  KeyTile<T, C> tile_;
  int64_t row_, size_;
  int64_t seen_;  // tokens up to the first row, its own included
  int64_t first_, end_;  // rows that see something of the tile
  T *q_, *k_;
  float *v_, *scores_, *sums_, *maxima_, *totals_, *decay_, *next_maxima_;
  Span* spans_;
};

// A task is a tile of rows with some key/value heads. The last rows see most: they start first.
template <class T, class C>
void attend(const Arg* args, int64_t task) {
  Attention<T, C> attention(args);
  const int64_t kv_heads = attention.task_heads;
  const int64_t parts = attention.kv_heads / kv_heads;
  const int64_t tiles = (attention.rows + attention.row_tile - 1) / attention.row_tile;
  const int64_t kv_head = task % parts * kv_heads;
  int64_t row = (tiles - 1 - task / parts) * attention.row_tile;
  const int64_t last = std::min(attention.rows, row + attention.row_tile);
  Segment<T, C> segment(attention, kv_head, kv_heads);
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
void attend_f32_f32(const Arg* args, int64_t task) { attend<float, float>(args, task); }
void attend_bf16_bf16(const Arg* args, int64_t task) { attend<bf16, bf16>(args, task); }
void attend_f32_fp8(const Arg* args, int64_t task) { attend<float, fp8>(args, task); }
void attend_bf16_fp8(const Arg* args, int64_t task) { attend<bf16, fp8>(args, task); }
}
