// Choosing experts per row, and grouping rows by expert.
#include <algorithm>
#include <cmath>

#include "command.h"
#include "scratch.h"
#include "vector.h"

namespace {

// One row's logits in fp32, as softmax weights and as ranks.
class Choice {
 public:
  template <class T>
  Choice(const T* logits, int64_t experts) : experts_(experts) {
    const int64_t padded = (experts + kWidth - 1) / kWidth * kWidth;
    Scratch& scratch = thread_scratch();
    scratch.begin(2 * Scratch::bytes<float>(padded) + Scratch::bytes<bool>(experts));
    mass_ = scratch.take<float>(padded);
    ranks_ = scratch.take<float>(padded);
    is_taken_ = scratch.take<bool>(experts);
    std::fill_n(is_taken_, experts, false);
    std::fill_n(mass_, padded, -INFINITY);
    float top = -INFINITY;
    bool has_nan = false;
    for (int64_t i = 0; i < experts; ++i) {
      mass_[i] = to_float(logits[i]);
      has_nan |= mass_[i] != mass_[i];
      ranks_[i] = mass_[i] == mass_[i] ? mass_[i] : -INFINITY;
      top = std::max(top, ranks_[i]);
    }
    // A logit that is not a number makes every weight of its row one.
    if (has_nan) top = NAN;
    vf sum{};
    for (int64_t i = 0; i < padded; i += kWidth) {
      const vf mass = exponential(load(mass_ + i) - top);
      store(mass_ + i, mass);
      sum += load(mass_ + i, experts - i);
    }
    total_ = sum_lanes(sum);
  }

  // The lowest id of the largest logit that was not taken yet.
  int32_t take() {
    int64_t best = -1;
    for (int64_t i = 0; i < experts_; ++i)
      if (!is_taken_[i] && (best < 0 || ranks_[i] > ranks_[best])) best = i;
    is_taken_[best] = true;
    return int32_t(best);
  }

  float mass(int32_t expert) const { return mass_[expert]; }
  float total() const { return total_; }

 private:
  int64_t experts_;
  float *mass_, *ranks_;
  bool* is_taken_;
  float total_;
};

template <class T>
void route(const Arg* args, int64_t task) {
  const T* logits = pointer<const T>(args[0]);
  const int32_t* mask = pointer<const int32_t>(args[1]);
  const int64_t num_rows = args[4].i, rows_per_task = args[5].i, stride = args[6].i;
  const int64_t num_experts = args[7].i, ranks = args[8].i;
  const bool normalize = args[9].i != 0;
  const int64_t last = std::min(num_rows, (task + 1) * rows_per_task);
  for (int64_t row = task * rows_per_task; row < last; ++row) {
    int32_t* experts = pointer<int32_t>(args[2]) + row * ranks;
    float* weights = pointer<float>(args[3]) + row * ranks;
    if (mask[row] == 0) {
      std::fill_n(experts, ranks, -1);
      std::fill_n(weights, ranks, 0.0f);
      continue;
    }
    Choice choice(logits + row * stride, num_experts);
    float chosen = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      experts[rank] = choice.take();
      weights[rank] = choice.mass(experts[rank]);
      chosen += weights[rank];
    }
    const float total = normalize ? chosen : choice.total();
    for (int64_t rank = 0; rank < ranks; ++rank) weights[rank] /= total;
  }
}

}  // namespace

extern "C" {

void route_f32(const Arg* args, int64_t task) { route<float>(args, task); }
void route_bf16(const Arg* args, int64_t task) { route<bf16>(args, task); }

// Sorts the places [R, A] of known experts by expert, in the order of rows: those of expert x are
// starts[x] .. starts[x + 1], each with its row; places holds where a place went, or -1.
void group_rows(const Arg* args, int64_t) {
  const int32_t* experts = pointer<const int32_t>(args[0]);
  int32_t* starts = pointer<int32_t>(args[1]);
  int32_t* rows = pointer<int32_t>(args[2]);
  int32_t* places = pointer<int32_t>(args[3]);
  const int64_t count = args[4].i, ranks = args[5].i, num_experts = args[6].i;
  auto is_known = [&](int64_t i) { return experts[i] >= 0 && experts[i] < num_experts; };
  std::fill_n(starts, num_experts + 1, 0);
  for (int64_t i = 0; i < count; ++i)
    if (is_known(i)) ++starts[experts[i] + 1];
  for (int64_t x = 0; x < num_experts; ++x) starts[x + 1] += starts[x];
  Scratch& scratch = thread_scratch();
  scratch.begin(Scratch::bytes<int32_t>(num_experts));
  int32_t* next = scratch.take<int32_t>(num_experts);
  std::copy_n(starts, num_experts, next);
  for (int64_t i = 0; i < count; ++i) {
    places[i] = is_known(i) ? next[experts[i]]++ : -1;
    if (places[i] >= 0) rows[places[i]] = int32_t(i / ranks);
  }
}
}
