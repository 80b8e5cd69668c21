// What changes logits before a token is chosen: penalties, bias and a mask. A task is a row, which
// is copied first. Ids outside the vocabulary are skipped, -1 among them.
#include <algorithm>
#include <cmath>

#include "command.h"
#include "vector.h"

namespace {

// Lists of ids, a row of `length` for each row of logits.
struct Ids {
  const int32_t* ids;
  int64_t length, vocab_size;
  template <class Visit>
  void each(Visit visit) const {
    for (int64_t i = 0; i < length; ++i)
      if (ids[i] >= 0 && ids[i] < vocab_size) visit(i, ids[i]);
  }
};

float* copy_row(const Arg* args, int64_t task, int64_t size) {
  float* out = pointer<float>(args[1]) + task * size;
  std::copy_n(pointer<const float>(args[0]) + task * size, size, out);
  return out;
}

}  // namespace

extern "C" {

void penalize(const Arg* args, int64_t task) {
  const int64_t size = args[2].i, length = args[4].i;
  const Ids listed{pointer<const int32_t>(args[3]) + task * length, length, size};
  const int32_t* counts = pointer<const int32_t>(args[5]) + task * length;
  const double repetition = pointer<const float>(args[6])[task];
  const double presence = pointer<const float>(args[7])[task];
  const double frequency = pointer<const float>(args[8])[task];
  float* out = copy_row(args, task, size);
  listed.each([&](int64_t i, int32_t id) {
    double logit = out[id];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    out[id] = float(logit - frequency * counts[i] - (counts[i] > 0 ? presence : 0.0));
  });
}

void add_bias(const Arg* args, int64_t task) {
  const int64_t size = args[2].i, length = args[4].i;
  const Ids listed{pointer<const int32_t>(args[3]) + task * length, length, size};
  const float* bias = pointer<const float>(args[5]) + task * length;
  float* out = copy_row(args, task, size);
  listed.each([&](int64_t i, int32_t id) { out[id] += bias[i]; });
}

void mask_logits(const Arg* args, int64_t task) {
  const int64_t size = args[2].i;
  const float* logits = pointer<const float>(args[0]) + task * size;
  const int32_t* words = pointer<const int32_t>(args[3]) + task * ((size + 31) / 32);
  float* out = pointer<float>(args[1]) + task * size;
  for (int64_t id = 0; id < size; id += kWidth) {
    const vi bits = (splat(words[id / 32] >> (id % 32)) >> lane_ids()) & 1;
    const vf x = load(logits + id, size - id);
    // Something that is not a number stays, so that its row is found out.
    store(out + id, select((bits != 0) | (x != x), x, splat(-INFINITY)), size - id);
  }
}
}
