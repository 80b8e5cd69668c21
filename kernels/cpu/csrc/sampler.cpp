// Token choice: the largest logit, or a draw after min-p, top-k and top-p. A task is a row.
//
// Tokens rank by logit, then by lower id. All filters keep a prefix of that order. That of top-k or
// top-p is one Cut, found by radix selection (a histogram of the leading bits, then only the tokens
// that share them), never by sorting the vocabulary. Weights and sums are doubles.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <vector>

#include "command.h"
#include "largest.h"
#include "scratch.h"
#include "vector.h"

namespace {

typedef double vd __attribute__((vector_size(kWidth * 4)));
typedef int64_t vl __attribute__((vector_size(kWidth * 4)));
constexpr int kDoubles = kWidth / 2;

// e^x for x <= 0: Cody-Waite reduction, Taylor to x^13 / 13!. Exactly 1 at 0, 0 below -708.
vd exponential(vd x) {
  vd clamped = x > -708.0 ? x : vd{} - 708.0;
  vd shifted = clamped * 1.4426950408889634 + 6755399441055744.0;
  vd n = shifted - 6755399441055744.0;
  vd r = clamped - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
  vd p = r * (1.0 / 6227020800) + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  vd scaled = (vd)((vl)p + (((vl)shifted) << 52));
  return x > -708.0 ? scaled : vd{};
}

// Order of the unsigned keys is the order of the logits; both zeros are one key.
uint32_t rank_key(float logit) {
  const float value = logit + 0.0f;
  const uint32_t bits = load_as<uint32_t>(&value);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}

// Keeps the tokens with a larger key, and of those with this key the ids up to the last.
struct Cut {
  uint32_t key = 0;
  int64_t last_id = INT64_MAX - 1;
};

// Keeps tokens in rank order as long as the mass of those before is below the goal.
class Selection {
 public:
  Selection(const uint32_t* keys, std::vector<int32_t>& ids) : keys_(keys), ids_(ids) {}

  template <class Mass>
  Cut run(Mass mass, double goal) {
    for (int shift : {21, 10, 0})
      if (!narrow(mass, goal, shift)) return Cut{};
    Cut cut{keys_[ids_.front()], ids_.front()};
    for (int32_t id : ids_) {
      if (before_ >= goal) break;
      cut.last_id = id;
      before_ += mass(id);
    }
    return cut;
  }

 private:
  // Reduces the candidates to those that share the next bits with the token at the goal.
  template <class Mass>
  bool narrow(Mass mass, double goal, int shift) {
    std::fill_n(sums_, kBuckets, 0.0);
    for (int32_t id : ids_) sums_[bucket(id, shift)] += mass(id);
    for (int b = kBuckets - 1; b >= 0; --b) {
      if (before_ + sums_[b] < goal) {
        before_ += sums_[b];
        continue;
      }
      auto other = [&](int32_t id) { return bucket(id, shift) != b; };
      ids_.erase(std::remove_if(ids_.begin(), ids_.end(), other), ids_.end());
      return !ids_.empty();
    }
    return false;
  }

  int bucket(int32_t id, int shift) const { return int(keys_[id] >> shift) & (kBuckets - 1); }

  static constexpr int kBuckets = 2048;
  const uint32_t* keys_;
  std::vector<int32_t>& ids_;
  double before_ = 0;
  double sums_[kBuckets];
};

class Draw {
 public:
  // Drops tokens that weigh less than min_p; the largest logit, `top`, weighs 1.
  Draw(const float* logits, int64_t size, float top, float temperature, double min_p)
      : size_(size), padded_((size + kDoubles - 1) / kDoubles * kDoubles) {
    Scratch& scratch = thread_scratch();
    const int64_t blocks = (padded_ + kBlock - 1) / kBlock;
    scratch.begin(Scratch::bytes<double>(padded_) + Scratch::bytes<double>(blocks) +
                  Scratch::bytes<uint32_t>(size_));
    weights_ = scratch.take<double>(padded_);
    sums_ = scratch.take<double>(blocks);
    keys_ = scratch.take<uint32_t>(size_);
    weigh(logits, top, temperature, min_p);
  }

  void keep_top_k(int64_t k) {
    begin(std::max(reached_by(k), DBL_MIN));
    keep(Selection(keys_, ids_).run([](int32_t) { return 1.0; }, double(k)));
  }

  void keep_top_p(double p) {
    const double all = total();
    // All tokens lighter than this together weigh at most half of what may be dropped: the last
    // token to keep is none of them. They are most of the vocabulary.
    begin(std::max(0.5 * (1 - p) * all / double(size_), DBL_MIN));
    // A goal above 0 keeps at least the first token.
    const double goal = std::max(p * all, DBL_MIN);
    keep(Selection(keys_, ids_).run([this](int32_t id) { return weights_[id]; }, goal));
  }

  // The first token in id order at which the sum exceeds the goal, found by blocks: one long chain
  // of additions would take longer than all the rest.
  int32_t walk(double uniform) {
    const double goal = uniform * total();
    double sum = 0;
    int64_t block = 0;
    while (block + kBlock < padded_ && sum + sums_[block / kBlock] <= goal) {
      sum += sums_[block / kBlock];
      block += kBlock;
    }
    for (int64_t id = block; id < size_; ++id) {
      sum += weights_[id];
      if (sum > goal && weights_[id] > 0) return int32_t(id);
    }
    return int32_t(last_kept());  // the sum of blocks was rounded up
  }

 private:
  void weigh(const float* logits, float top, float temperature, double min_p) {
    for (int64_t id = 0; id < size_; ++id) keys_[id] = rank_key(logits[id]);
    for (int64_t id = 0; id < size_; ++id) {
      // The largest may be infinite, and infinity minus itself is not a number.
      const double below = double(logits[id]) - double(top);
      weights_[id] = (logits[id] == top ? 0.0 : below) / double(temperature);
    }
    std::fill(weights_ + size_, weights_ + padded_, -INFINITY);
    for (int64_t id = 0; id < padded_; id += kDoubles) {
      vd weight = exponential(load_as<vd>(weights_ + id));
      weight = weight < min_p ? vd{} : weight;
      std::memcpy(weights_ + id, &weight, sizeof(weight));
    }
  }

  double total() {
    double all = 0;
    for (int64_t block = 0; block < padded_; block += kBlock) {
      vd sum{};
      for (int64_t id = block; id < std::min(padded_, block + kBlock); id += kDoubles)
        sum += load_as<vd>(weights_ + id);
      double& block_sum = sums_[block / kBlock] = 0;
      for (int lane = 0; lane < kDoubles; ++lane) block_sum += sum[lane];
      all += block_sum;
    }
    return all;
  }

  int64_t last_kept() const {
    int64_t id = size_ - 1;
    while (id > 0 && weights_[id] == 0) --id;
    return id;
  }

  // Candidates are the tokens of at least this weight, which most vectors have none of.
  void begin(double least) {
    constexpr int64_t kStep = 8 * kDoubles;
    ids_.resize(size_t(size_));
    size_t count = 0;
    for (int64_t first = 0; first < size_; first += kStep) {
      const int64_t end = std::min(padded_, first + kStep);
      vl found{};
      for (int64_t id = first; id < end; id += kDoubles)
        found |= load_as<vd>(weights_ + id) >= least;
      if (!any_lane((vi)found)) continue;
      for (int64_t id = first; id < std::min(size_, end); ++id) {
        ids_[count] = int32_t(id);
        count += weights_[id] >= least;
      }
    }
    ids_.resize(count);
  }

  // A weight that at least k tokens have: the k-th of the largest of each block, less what the
  // exponential may be off. 0 if there are not as many blocks.
  double reached_by(int64_t k) {
    const int64_t blocks = (padded_ + kBlock - 1) / kBlock;
    if (k > blocks) return 0;
    for (int64_t block = 0; block < blocks; ++block) {
      vd top{};
      const int64_t end = std::min(padded_, (block + 1) * kBlock);
      for (int64_t id = block * kBlock; id < end; id += kDoubles) {
        const vd weight = load_as<vd>(weights_ + id);
        top = weight > top ? weight : top;
      }
      sums_[block] = 0;
      for (int lane = 0; lane < kDoubles; ++lane) sums_[block] = std::max(sums_[block], top[lane]);
    }
    std::nth_element(sums_, sums_ + k - 1, sums_ + blocks, std::greater<double>());
    return sums_[k - 1] * (1 - 1e-12);
  }

  void keep(const Cut& cut) {
    const int64_t end = std::min(size_, cut.last_id + 1);
    for (int64_t id = 0; id < end; ++id) weights_[id] = keys_[id] >= cut.key ? weights_[id] : 0.0;
    for (int64_t id = end; id < size_; ++id) weights_[id] = keys_[id] > cut.key ? weights_[id] : 0.0;
  }

  static constexpr int64_t kBlock = 256;
  int64_t size_, padded_;
  double *weights_, *sums_;
  uint32_t* keys_;
  std::vector<int32_t> ids_;
};

}  // namespace

extern "C" {

void greedy(const Arg* args, int64_t task) {
  const float* logits = pointer<const float>(args[0]);
  const int64_t size = args[2].i;
  pointer<int32_t>(args[1])[task] = int32_t(largest(logits + task * size, size));
}

void sample(const Arg* args, int64_t task) {
  const int64_t size = args[2].i;
  const float* logits = pointer<const float>(args[0]) + task * size;
  const float temperature = pointer<const float>(args[3])[task];
  const int64_t top_k = pointer<const int32_t>(args[4])[task];
  const float top_p = pointer<const float>(args[5])[task];
  const double uniform = args[7].i ? pointer<const double>(args[6])[task]
                                   : double(pointer<const float>(args[6])[task]);
  const float min_p = pointer<const float>(args[8])[task];
  int32_t& out = pointer<int32_t>(args[1])[task];
  out = int32_t(largest(logits, size));
  if (temperature == 0.0f || out < 0) return;
  Draw draw(logits, size, logits[out], temperature, min_p);
  if (top_k > 0 && top_k < size) draw.keep_top_k(top_k);
  if (top_p < 1.0f) draw.keep_top_p(top_p);
  out = draw.walk(uniform);
}
}
