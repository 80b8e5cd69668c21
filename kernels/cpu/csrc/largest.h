// The search that all token choice starts with.
#pragma once
#include <cmath>

#include "vector.h"

inline bool any_lane(vi mask) {
  typedef int64_t vw __attribute__((vector_size(kWidth * 4)));
  const vw words = (vw)mask;
  int64_t all = 0;
  for (int i = 0; i < kWidth / 2; ++i) all |= words[i];
  return all != 0;
}

constexpr int kChains = 4;
constexpr int64_t kChunk = kChains * kWidth;

// Whether a chunk holds a logit for which the comparison with all lanes of `bound` is true.
template <class Compare>
inline bool any_in_chunk(const float* logits, Compare compare) {
  vi found = compare(load(logits));
  for (int c = 1; c < kChains; ++c) found |= compare(load(logits + c * kWidth));
  return any_lane(found);
}

// The lowest id of the largest logit; -1 if a logit is not a number, or none is above -infinity.
inline int64_t largest(const float* logits, int64_t size) {
  vf top[kChains];
  vi is_nan[kChains] = {};
  for (vf& t : top) t = splat(-INFINITY);
  int64_t at = 0;
  for (; at + kChunk <= size; at += kChunk)
    for (int c = 0; c < kChains; ++c) {
      const vf x = load(logits + at + c * kWidth);
      top[c] = max(top[c], x);
      is_nan[c] |= x != x;
    }
  float best = max_lanes(max(max(top[0], top[1]), max(top[2], top[3])));
  bool has_nan = any_lane(is_nan[0] | is_nan[1] | is_nan[2] | is_nan[3]);
  for (; at < size; ++at) {
    best = logits[at] > best ? logits[at] : best;
    has_nan |= logits[at] != logits[at];
  }
  if (has_nan || best == -INFINITY) return -1;
  const vf bests = splat(best);
  int64_t id = 0;
  while (id + kChunk <= size &&
         !any_in_chunk(logits + id, [&](vf x) { return vi(x == bests); }))
    id += kChunk;
  while (logits[id] != best) ++id;
  return id;
}
