// Vectors of the width that the compiler's target offers, in GCC's vector extension: one source for
// AVX-512 (16 floats), AVX2 (8) and anything else (4).
//
// bf16 is a storage type only: it is widened when it is loaded and rounded (to nearest, ties to
// even) when it is stored.
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float vf __attribute__((vector_size(kWidth * 4)));
typedef int32_t vi __attribute__((vector_size(kWidth * 4)));
typedef uint32_t vu __attribute__((vector_size(kWidth * 4)));
typedef uint16_t vh __attribute__((vector_size(kWidth * 2)));

struct bf16 {
  uint16_t bits;
};

template <class V>
inline V load_as(const void* source) {
  V value;
  std::memcpy(&value, source, sizeof(V));
  return value;
}

inline vf splat(float x) { return x - vf{}; }
inline vi splat(int32_t x) { return x - vi{}; }

inline vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }
// Both keep `a` where `b` is not a number.
inline vf max(vf a, vf b) { return b > a ? b : a; }
inline vf min(vf a, vf b) { return b < a ? b : a; }

inline vf widen(vh bits) { return (vf)(__builtin_convertvector(bits, vu) << 16); }
inline vh narrow(vf x) {
  vu bits = (vu)x;
  vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  vu quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : quiet, vh);
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  return load_as<float>(&bits);
}

inline vf load(const float* p) { return load_as<vf>(p); }
inline vf load(const bf16* p) { return widen(load_as<vh>(p)); }
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof(x)); }
inline void store(bf16* p, vf x) {
  vh bits = narrow(x);
  std::memcpy(p, &bits, sizeof(bits));
}

// The first `count` lanes; the others are 0 and are not read.
template <class T>
inline vf load(const T* p, int64_t count) {
  if (count >= kWidth) return load(p);
  T lanes[kWidth] = {};
  std::memcpy(lanes, p, size_t(count) * sizeof(T));
  return load(lanes);
}
template <class T>
inline void store(T* p, vf x, int64_t count) {
  if (count >= kWidth) return store(p, x);
  T lanes[kWidth];
  store(lanes, x);
  std::memcpy(p, lanes, size_t(count) * sizeof(T));
}

inline vi lane_ids() {
  vi ids;
  for (int i = 0; i < kWidth; ++i) ids[i] = i;
  return ids;
}

// Each lane's partner at a distance: adding it for 8, 4, 2, 1 is a halving tree whose order depends
// on the width only.
inline vf swap_lanes(vf x, int distance) { return __builtin_shuffle(x, lane_ids() ^ distance); }

inline float sum_lanes(vf x) {
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) x += swap_lanes(x, half);
  return x[0];
}
inline float max_lanes(vf x) {
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2) x = max(x, swap_lanes(x, half));
  return x[0];
}

// Turns rows into columns: each round interleaves row i with row i + kWidth / 2.
inline void transpose(vi (&rows)[kWidth]) {
  vi low, high;
  for (int i = 0; i < kWidth; ++i) {
    low[i] = i / 2 + i % 2 * kWidth;
    high[i] = low[i] + kWidth / 2;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kWidth; round *= 2) {
    vi next[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
  }
}

// e^x to about 1 unit in the last place; exactly 1 at 0, 0 below -87.3, infinity above 88.72.
// (Cody-Waite reduction by ln 2, then the Taylor series to x^7 / 7!.)
inline vf exponential(vf x) {
  vf clamped = max(min(x, splat(88.72f)), splat(-87.3f));
  vf shifted = clamped * 1.44269504f + 12582912.0f;
  vf n = shifted - 12582912.0f;
  vf r = clamped - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  vf p = splat(1.98412698e-4f);
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  vi exponent = ((vi)shifted - 0x4b400000) << 23;
  vf scaled = (vf)((vi)p + exponent);
  scaled = select(x > splat(88.72f), splat(__builtin_inff()), scaled);
  return select(x < splat(-87.3f), vf{}, scaled);
}

// tanh x to 2 units in the last place (measured: 1.3), odd to the last bit, exactly 1 from 9.02 on;
// NaN stays NaN. Below 0.625 an odd polynomial: x^3 times a least-squares fit in x^2 of relative
// error 4e-9; above, 1 - 2 / (e^2x + 1).
inline vf hyperbolic_tangent(vf x) {
  const vu sign = (vu)x & 0x80000000u;
  const vf size = (vf)((vu)x & 0x7fffffffu);
  const vf square = size * size;
  vf p = splat(-5.71699953e-3f);
  p = p * square + 2.06505433e-2f;
  p = p * square - 5.37434817e-2f;
  p = p * square + 1.33314908e-1f;
  p = p * square - 3.33332837e-1f;
  const vf small = p * (square * size) + size;
  const vf large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  const vf result = select(size < splat(0.625f), small, large);
  return select(x == x, (vf)((vu)result | sign), x);
}
