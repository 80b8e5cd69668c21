// A tile of keys and values, found in the block cache through a request's table.
//
// Tiles start at multiples of a fixed number of tokens, wherever the table starts. What is read of
// an FP8 cache is widened once for all rows: keys to T, as products take them, values to bf16.
#pragma once
#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "fp8.h"
#include "scratch.h"

template <class T, class C>
class KeyTile {
  static constexpr bool kIsStaged = std::is_same<C, fp8>::value;

 public:
  using Value = typename std::conditional<kIsStaged, bf16, C>::type;

  KeyTile(const Attention<T, C>& attention, int64_t kv_head, int64_t kv_heads, int64_t size)
      : a_(attention), kv_head_(kv_head), size_(size), width_(kv_heads * attention.dim) {}

  size_t bytes() const {
    return Scratch::bytes<T>(width_) + Scratch::bytes<T>(staged()) +
           Scratch::bytes<Value>(staged()) + Scratch::bytes<int32_t>(size_) +
           Scratch::bytes<const T*>(size_) + Scratch::bytes<const Value*>(size_);
  }

  void begin(Scratch& scratch, int64_t request) {
    zeros_ = scratch.take<T>(width_);
    staged_keys_ = scratch.take<T>(staged());
    staged_values_ = scratch.take<Value>(staged());
    valid_ = scratch.take<int32_t>(size_);
    keys_ = scratch.take<const T*>(size_);
    values_ = scratch.take<const Value*>(size_);
    std::fill_n(zeros_, width_, T{});
    table_ = a_.block_table + request * a_.table_width;
    first_ = (a_.block_offset ? int64_t(a_.block_offset[request]) : 0) * a_.block_size;
    last_ = first_ + a_.table_width * a_.block_size;
  }

  // Positions that the table covers.
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

  // Of each token the first head; all bits of `valid` are set where there is a token.
  const T* const* keys() const { return keys_; }
  const Value* const* values() const { return values_; }
  const int32_t* valid() const { return valid_; }

  // Finds the tokens of the tile that starts at `base`. Those without a block read zeros and are
  // not valid; those past `tokens` are padding of the tile.
  void locate(int64_t base, int64_t tokens) {
    const int64_t stride = a_.kv_heads * a_.dim;
    for (int64_t t = 0; t < size_; t += a_.block_size) {
      const int64_t block = t < tokens ? block_of(base + t) : -1;
      const int64_t at = (block * a_.block_size * a_.kv_heads + kv_head_) * a_.dim;
      const int64_t count = std::min(a_.block_size, size_ - t);
      for (int64_t i = 0; i < count; ++i) {
        const bool valid = block >= 0 && t + i < tokens;
        valid_[t + i] = valid ? -1 : 0;
        keys_[t + i] = valid ? staged(a_.k_cache + at + i * stride, t + i, staged_keys_) : zeros_;
        values_[t + i] = valid ? staged(a_.v_cache + at + i * stride, t + i, staged_values_)
                               : (const Value*)zeros_;
      }
    }
  }

  // Starts to fetch a tile while another is worked on. Real loads: a prefetch is dropped where the
  // page's translation is not at hand, as is usual in a large cache.
  void touch(int64_t token, int64_t last) const {
    constexpr int64_t kLine = 64 / sizeof(C);
    const int64_t stride = a_.kv_heads * a_.dim;
    for (; token < last; token += a_.block_size) {
      const int64_t block = block_of(token);
      if (block < 0) continue;
      const int64_t first = block * a_.block_size * stride + kv_head_ * a_.dim;
      for (int64_t i = 0; i < std::min(a_.block_size, last - token); ++i)
        for (int64_t d = 0; d < width_; d += kLine) {
          (void)*(const volatile char*)(a_.k_cache + first + i * stride + d);
          (void)*(const volatile char*)(a_.v_cache + first + i * stride + d);
        }
    }
  }

 private:
  int64_t staged() const { return kIsStaged ? size_ * width_ : 0; }

  int64_t block_of(int64_t token) const {
    if (token < first_ || token >= last_) return -1;
    const int64_t block = table_[(token - first_) / a_.block_size];
    return block < a_.num_blocks ? block : -1;
  }

  template <class To>
  const To* staged(const To* cached, int64_t, To*) const {
    return cached;
  }
  template <class To>
  const To* staged(const fp8* cached, int64_t token, To* rows) const {
    copy_row(cached, width_, rows + token * width_);
    return rows + token * width_;
  }

  const Attention<T, C>& a_;
  int64_t kv_head_, size_, width_;
  int64_t first_ = 0, last_ = 0;
  const int32_t* table_ = nullptr;
  T *zeros_ = nullptr, *staged_keys_ = nullptr;
  Value* staged_values_ = nullptr;
  int32_t* valid_ = nullptr;
  const T** keys_ = nullptr;
  const Value** values_ = nullptr;
};
