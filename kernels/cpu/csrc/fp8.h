// FP8 numbers (4 bits of exponent, 3 of mantissa, no infinities) in vectors of floats: a storage
// type only, exact in every type that is computed with.
//
// Stored numbers are rounded to nearest, ties to even; beyond 448 they are 448. NaN stays NaN.
#pragma once
#include "vector.h"

struct fp8 {
  uint8_t bits;
};

typedef uint8_t vb __attribute__((vector_size(kWidth)));

// Twice as many lanes, of 16 bits.
constexpr int kNarrow = 2 * kWidth;
typedef uint8_t vnb __attribute__((vector_size(kNarrow)));
typedef uint16_t vnh __attribute__((vector_size(kNarrow * 2)));

inline vnh min(vnh a, vnh b) { return b < a ? b : a; }

// The same numbers in bf16, from size bits m: 0x3c00 + 16 m moves the exponent from a bias of 7 to
// one of 127. Below 2^-6, m counts 2^-9: there the bits lie on steeper lines, all of them tangents
// of one concave curve, down to 2^-9.
inline vnh to_bf16(vnb codes) {
  const vnh bits = __builtin_convertvector(codes, vnh), size = bits & 0x7f;
  vnh number = min((size << 4) + 0x3c00, (size << 5) + 0x3b80);
  number = min(number, min((size << 6) + 0x3b00, (size << 7) + 0x3a80));
  number = size == 0 ? vnh{} : number;
  number = size == 0x7f ? vnh{} + 0x7fc0 : number;
  return number | (bits & 0x80) << 8;
}

inline void store(bf16* p, vnh bits) { std::memcpy(p, &bits, sizeof(bits)); }
inline void store(float* p, vnh bits) {
  vh halves[2];
  std::memcpy(halves, &bits, sizeof(bits));
  store(p, widen(halves[0]));
  store(p + kWidth, widen(halves[1]));
}

// Widens a row to floats or bf16.
template <class T>
inline void copy_row(const fp8* from, int64_t width, T* to) {
  int64_t d = 0;
  for (; d + kNarrow <= width; d += kNarrow) store(to + d, to_bf16(load_as<vnb>(from + d)));
  if (d == width) return;
  fp8 codes[kNarrow] = {};
  T numbers[kNarrow];
  std::memcpy(codes, from + d, size_t(width - d));
  store(numbers, to_bf16(load_as<vnb>(codes)));
  std::memcpy(to + d, numbers, size_t(width - d) * sizeof(T));
}

inline void store(fp8* p, vf x) {
  const vu sign = ((vu)x >> 24) & 0x80u;
  const vf size = min((vf)((vu)x & 0x7fffffffu), splat(448.0f));
  // One unit in the last place of 2^14 is 2^-9: the sum is rounded there.
  const vu small = (vu)(size + 16384.0f) - (vu)splat(16384.0f);
  const vu bits = (vu)size;
  const vu normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - 0x3c0u;
  vu code = size < splat(0.015625f) ? small : normal;
  code = x == x ? code : (vu)splat(0x7f);
  const vb bytes = __builtin_convertvector(code | sign, vb);
  std::memcpy(p, &bytes, sizeof(bytes));
}
