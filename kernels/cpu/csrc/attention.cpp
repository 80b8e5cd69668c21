// Writing keys and values into the block cache, and attention that reads them from there only.
//
// Prefill and decode run the same code. A row (one token) and a head go through the same operations
// in the same order whatever the bucket, the neighbours or the phase: key tiles start at multiples
// of a fixed number of tokens, scores and outputs are chains over ascending head dim and token, and
// a row takes part in a tile only with the tokens that it may see.
#include <algorithm>
#include <cfloat>

#include "command.h"
#include "panel.h"
#include "scratch.h"

namespace {

template <class T>
void write_kv(const Arg* args, int64_t task) {
  const T* k = pointer<const T>(args[0]);
  const T* v = pointer<const T>(args[1]);
  T* k_cache = pointer<T>(args[2]);
  T* v_cache = pointer<T>(args[3]);
  const int32_t* slots = pointer<const int32_t>(args[4]);
  const int64_t rows = args[5].i, k_stride = args[6].i, v_stride = args[7].i;
  const int64_t width = args[8].i, num_slots = args[9].i, rows_per_task = args[10].i;
  const int64_t last = std::min(rows, (task + 1) * rows_per_task);
  for (int64_t row = task * rows_per_task; row < last; ++row) {
    const int64_t slot = slots[row];
    if (slot < 0 || slot >= num_slots) continue;
    std::copy_n(k + row * k_stride, width, k_cache + slot * width);
    std::copy_n(v + row * v_stride, width, v_cache + slot * width);
  }
}

template <class T>
struct Attention {
  const T *q, *k_cache, *v_cache;
  const int32_t *block_table, *query_start_loc, *context_lens, *query_lens;
  T* out;
  int64_t rows, q_stride, requests, queries, table_width;
  int64_t num_blocks, block_size, heads, kv_heads, dim, tile_tokens, row_tile;
  float scale;

  explicit Attention(const Arg* args)
      : q(pointer<const T>(args[0])),
        k_cache(pointer<const T>(args[1])),
        v_cache(pointer<const T>(args[2])),
        block_table(pointer<const int32_t>(args[3])),
        query_start_loc(pointer<const int32_t>(args[4])),
        context_lens(pointer<const int32_t>(args[5])),
        query_lens(pointer<const int32_t>(args[6])),
        out(pointer<T>(args[7])),
        rows(args[8].i),
        q_stride(args[9].i),
        requests(args[10].i),
        queries(args[11].i),
        table_width(args[12].i),
        num_blocks(args[13].i),
        block_size(args[14].i),
        heads(args[15].i),
        kv_heads(args[16].i),
        dim(args[17].i),
        tile_tokens(args[18].i),
        row_tile(args[19].i),
        scale(float(args[20].f)) {}

  int64_t group() const { return heads / kv_heads; }

  // The request that owns a row, or -1. Decode rows are in request order, `queries` for each;
  // prefill rows are found by the requests' starts (few).
  int64_t request_of(int64_t row) const {
    if (!query_start_loc) return row % queries < query_lens[row / queries] ? row / queries : -1;
    for (int64_t p = 0; p < requests; ++p)
      if (row >= query_start_loc[p] && row < query_start_loc[p] + query_lens[p]) return p;
    return -1;
  }
  int64_t first_row(int64_t request) const {
    return query_start_loc ? query_start_loc[request] : request * queries;
  }
};

// Consecutive rows of one request with the query heads of one key/value head; index i stands for
// (row i / group, head i % group).
template <class T>
class Segment {
 public:
  Segment(const Attention<T>& attention, int64_t kv_head, int64_t request, int64_t row, int64_t rows)
      : a_(attention), kv_head_(kv_head), request_(request), row_(row), rows_(rows),
        group_(a_.group()), size_(rows * group_) {
    seen_ = a_.context_lens[request] + row - a_.first_row(request) + 1;
    padded_dim_ = (a_.dim + kPanel - 1) / kPanel * kPanel;
    padded_tokens_ = (a_.tile_tokens + kPanel - 1) / kPanel * kPanel;
    const int64_t k_size = padded_tokens_ / kPanel * panel_elements((const T*)nullptr, a_.dim);
    const int64_t v_size = padded_dim_ * a_.tile_tokens;
    Scratch& scratch = thread_scratch();
    scratch.begin(Scratch::bytes<T>(size_ * a_.dim) + Scratch::bytes<T>(k_size) +
                  Scratch::bytes<float>(v_size) + Scratch::bytes<float>(size_ * padded_tokens_) +
                  Scratch::bytes<float>(size_ * padded_dim_) + 3 * Scratch::bytes<float>(size_) +
                  Scratch::bytes<int32_t>(padded_tokens_));
    q_ = scratch.take<T>(size_ * a_.dim);
    k_ = scratch.take<T>(k_size);
    v_ = scratch.take<float>(v_size);
    scores_ = scratch.take<float>(size_ * padded_tokens_);
    sums_ = scratch.take<float>(size_ * padded_dim_);
    maxima_ = scratch.take<float>(size_);
    totals_ = scratch.take<float>(size_);
    decay_ = scratch.take<float>(size_);
    valid_ = scratch.take<int32_t>(padded_tokens_);
  }

  void run() {
    begin();
    const int64_t capacity = a_.table_width * a_.block_size;
    const int64_t last = std::min(capacity, seen_ + rows_ - 1);
    for (int64_t base = 0; base < last; base += a_.tile_tokens) {
      load_tile(base, std::min(a_.tile_tokens, last - base));
      // Rows are ascending in position: those that see nothing of this tile come first.
      const int64_t first = std::max<int64_t>(0, base + 1 - seen_) * group_;
      score(first);
      for (int64_t i = first; i < size_; ++i) weigh(i, tokens_of(i, base));
      add_values(first, base);
    }
    finish();
  }

 private:
  void begin() {
    for (int64_t i = 0; i < size_; ++i)
      std::copy_n(a_.q + (row_ + i / group_) * a_.q_stride + (kv_head_ * group_ + i % group_) * a_.dim,
                  a_.dim, q_ + i * a_.dim);
    std::fill_n(sums_, size_ * padded_dim_, 0.0f);
    std::fill_n(totals_, size_, 0.0f);
    std::fill_n(maxima_, size_, -FLT_MAX);
    std::fill_n(valid_, padded_tokens_, 0);
  }

  int64_t tokens_of(int64_t i, int64_t base) const {
    const int64_t capacity = a_.table_width * a_.block_size;
    return std::min(a_.tile_tokens, std::min(capacity, seen_ + i / group_) - base);
  }

  // Keys become panels of 16 tokens, values panels of 16 dims in fp32. Tokens without a block keep
  // zero values; whatever their keys hold is selected away.
  void load_tile(int64_t base, int64_t tokens) {
    const int32_t* table = a_.block_table + request_ * a_.table_width;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t block = table[(base + t) / a_.block_size];
      valid_[t] = block >= 0 && block < a_.num_blocks ? -1 : 0;
      if (!valid_[t]) {
        load_value(t, nullptr);
        continue;
      }
      const int64_t slot = block * a_.block_size + (base + t) % a_.block_size;
      const int64_t at = (slot * a_.kv_heads + kv_head_) * a_.dim;
      load_key(t, a_.k_cache + at);
      load_value(t, a_.v_cache + at);
    }
  }

  void load_key(int64_t t, const T* key) {
    constexpr int kStep = kPair<T>;
    T* column = k_ + t / kPanel * panel_elements(key, a_.dim) + t % kPanel * kStep;
    for (int64_t d = 0; d < a_.dim; d += kStep)
      std::memcpy(column + d * kPanel, key + d, sizeof(T) * kStep);
  }

  void load_value(int64_t t, const T* value) {
    for (int64_t d = 0; d < padded_dim_; d += kWidth) {
      float* to = v_ + d / kPanel * a_.tile_tokens * kPanel + t * kPanel + d % kPanel;
      store(to, value && d < a_.dim ? load(value + d, a_.dim - d) : vf{});
    }
  }

  void score(int64_t first) {
    const int64_t k_panel = panel_elements((const T*)nullptr, a_.dim);
    const int64_t panels = padded_tokens_ / kPanel;
    for (int64_t panel = 0; panel < panels; panel += kMaxPanels)
      for (int64_t i = first; i < size_; i += kMaxRows) {
        Product<T> product{q_ + i * a_.dim, a_.dim, k_ + panel * k_panel, k_panel, a_.dim,
                           scores_ + i * padded_tokens_ + panel * kPanel, padded_tokens_, nullptr,
                           a_.scale};
        multiply(product, std::min<int64_t>(kMaxRows, size_ - i),
                 std::min<int64_t>(kMaxPanels, panels - panel));
      }
  }

  // Online softmax of one row: scores become weights relative to the new maximum. With no valid
  // token the maximum stays, the decay is exactly 1 and all weights are 0.
  void weigh(int64_t i, int64_t tokens) {
    float* scores = scores_ + i * padded_tokens_;
    vf top = splat(maxima_[i]);
    for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
      vi valid = load_as<vi>(valid_ + t) & (vi)(lane_ids() < splat(int32_t(tokens - t)));
      top = max(top, select(valid, load(scores + t), splat(-FLT_MAX)));
    }
    const float maximum = max_lanes(top);
    vf total{};
    for (int64_t t = 0; t < padded_tokens_; t += kWidth) {
      vi valid = load_as<vi>(valid_ + t) & (vi)(lane_ids() < splat(int32_t(tokens - t)));
      vf weight = select(valid, exponential(load(scores + t) - maximum), vf{});
      store(scores + t, weight);
      total += weight;
    }
    decay_[i] = exponential(splat(maxima_[i] - maximum))[0];
    totals_[i] = totals_[i] * decay_[i] + sum_lanes(total);
    maxima_[i] = maximum;
  }

  void add_values(int64_t first, int64_t base) {
    const int64_t panel_size = a_.tile_tokens * kPanel, panels = padded_dim_ / kPanel;
    for (int64_t i = first; i < size_;) {
      // Rows that end at different tokens differ in k: they cannot share a product.
      const int64_t tokens = tokens_of(i, base);
      int64_t rows = 1;
      while (rows < kMaxRows && i + rows < size_ && tokens_of(i + rows, base) == tokens) ++rows;
      for (int64_t panel = 0; panel < panels; panel += kMaxPanels) {
        Product<float> product{scores_ + i * padded_tokens_, padded_tokens_, v_ + panel * panel_size,
                               panel_size, tokens, sums_ + i * padded_dim_ + panel * kPanel,
                               padded_dim_, decay_ + i, 1.0f};
        multiply(product, rows, std::min<int64_t>(kMaxPanels, panels - panel));
      }
      i += rows;
    }
  }

  void finish() {
    for (int64_t i = 0; i < size_; ++i) {
      T* to = a_.out + ((row_ + i / group_) * a_.heads + kv_head_ * group_ + i % group_) * a_.dim;
      for (int64_t d = 0; d < a_.dim; d += kWidth) {
        vf sum = load(sums_ + i * padded_dim_ + d);
        store(to + d, totals_[i] == 0.0f ? vf{} : sum / totals_[i], a_.dim - d);
      }
    }
  }

  const Attention<T>& a_;
  int64_t kv_head_, request_, row_, rows_, group_, size_;
  int64_t seen_;  // tokens that the first row sees
  int64_t padded_dim_, padded_tokens_;
  T *q_, *k_;
  float *v_, *scores_, *sums_, *maxima_, *totals_, *decay_;
  int32_t* valid_;
};

// A task is a tile of rows with one key/value head. The last rows see most: they start first.
template <class T>
void attend(const Arg* args, int64_t task) {
  Attention<T> attention(args);
  const int64_t tiles = (attention.rows + attention.row_tile - 1) / attention.row_tile;
  const int64_t kv_head = task % attention.kv_heads;
  int64_t row = (tiles - 1 - task / attention.kv_heads) * attention.row_tile;
  const int64_t last = std::min(attention.rows, row + attention.row_tile);
  while (row < last) {
    const int64_t request = attention.request_of(row);
    int64_t rows = 1;
    while (row + rows < last && attention.request_of(row + rows) == request) ++rows;
    if (request >= 0) {
      Segment<T>(attention, kv_head, request, row, rows).run();
    } else {
      const int64_t width = attention.group() * attention.dim;
      for (int64_t r = row; r < row + rows; ++r)
        std::fill_n(attention.out + (r * attention.kv_heads + kv_head) * width, width, T{});
    }
    row += rows;
  }
}

}  // namespace

extern "C" {
void write_kv_f32(const Arg* args, int64_t task) { write_kv<float>(args, task); }
void write_kv_bf16(const Arg* args, int64_t task) { write_kv<bf16>(args, task); }
void attend_f32(const Arg* args, int64_t task) { attend<float>(args, task); }
void attend_bf16(const Arg* args, int64_t task) { attend<bf16>(args, task); }
}
