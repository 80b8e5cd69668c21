// Logarithms of probabilities: of one given token, and of the most probable ones. A task is a row.
#include <algorithm>
#include <cmath>

#include "command.h"
#include "largest.h"
#include "scratch.h"

namespace {

// Probabilities of a row that has a largest logit. One that is infinite is all there is.
class Softmax {
 public:
  Softmax(const float* logits, int64_t size, float top)
      : logits_(logits), size_(size), top_(top), log_sum_(std::log(sum())) {}

  float log(float logit) const {
    const double below = logit == top_ ? 0.0 : double(logit) - double(top_);
    return float(below - log_sum_);
  }

 private:
  vf weigh(vf x) const { return exponential(select(x == splat(top_), vf{}, x - top_)); }

  // Short sums in floats, the long one in a double.
  double sum() const {
    constexpr int64_t kBlock = 16 * kWidth;
    double all = 0;
    for (int64_t block = 0; block < size_; block += kBlock) {
      vf part{};
      const int64_t end = std::min(size_, block + kBlock);
      int64_t id = block;
      for (; id + kWidth <= end; id += kWidth) part += weigh(load(logits_ + id));
      if (id < end) {
        float lanes[kWidth];
        std::fill_n(lanes, kWidth, -INFINITY);
        std::copy(logits_ + id, logits_ + end, lanes);
        part += weigh(load(lanes));
      }
      all += double(sum_lanes(part));
    }
    return all;
  }

  const float* logits_;
  int64_t size_;
  float top_;
  double log_sum_;
};

struct Ranked {
  float logit;
  int32_t id;
  bool operator<(const Ranked& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

// Leaves the first `num` tokens in rank order; `num` is at most the number of tokens. The heap's
// front is the last of those found so far, and few tokens are above it.
void find_top(const float* logits, int64_t size, int64_t num, Ranked* found) {
  if (num == 0) return;
  for (int64_t id = 0; id < num; ++id) found[id] = {logits[id], int32_t(id)};
  std::make_heap(found, found + num);
  const auto offer = [&](int64_t first, int64_t last) {
    for (int64_t id = first; id < last; ++id)
      if (logits[id] > found->logit) {
        std::pop_heap(found, found + num);
        found[num - 1] = {logits[id], int32_t(id)};
        std::push_heap(found, found + num);
      }
  };
  int64_t at = num;
  for (; at + kChunk <= size; at += kChunk) {
    const vf bound = splat(found->logit);
    if (any_in_chunk(logits + at, [&](vf x) { return vi(x > bound); })) offer(at, at + kChunk);
  }
  offer(at, size);
  std::sort_heap(found, found + num);
}

int32_t rank_of(const float* logits, int64_t size, int64_t id) {
  const float logit = logits[id];
  int32_t before = 0;
  for (int64_t other = 0; other < id; ++other) before += logits[other] >= logit;
  for (int64_t other = id + 1; other < size; ++other) before += logits[other] > logit;
  return before + 1;
}

}  // namespace

extern "C" void top_logprobs(const Arg* args, int64_t task) {
  const int64_t size = args[2].i, width = args[4].i;
  const float* logits = pointer<const float>(args[0]) + task * size;
  float* logprobs = pointer<float>(args[1]) + task * (1 + width);
  int32_t* top_ids = pointer<int32_t>(args[5]) + task * width;
  int32_t& rank = pointer<int32_t>(args[6])[task];
  const int64_t id = pointer<const int32_t>(args[3])[task];
  std::fill_n(logprobs, 1 + width, -INFINITY);
  std::fill_n(top_ids, width, -1);
  rank = 0;
  const int64_t best = largest(logits, size);
  if (best < 0) return;
  const Softmax softmax(logits, size, logits[best]);
  if (id >= 0 && id < size) {
    logprobs[0] = softmax.log(logits[id]);
    rank = rank_of(logits, size, id);
  }
  const int64_t num = std::min(width, size);
  Scratch& scratch = thread_scratch();
  scratch.begin(Scratch::bytes<Ranked>(num));
  Ranked* found = scratch.take<Ranked>(num);
  find_top(logits, size, num, found);
  for (int64_t i = 0; i < num; ++i) {
    logprobs[1 + i] = softmax.log(found[i].logit);
    top_ids[i] = found[i].id;
  }
}
