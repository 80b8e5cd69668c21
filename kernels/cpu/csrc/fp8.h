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

inline vf load(const fp8* p) {
  const vu bits = __builtin_convertvector(load_as<vb>(p), vu);
  const vu sign = (bits & 0x80u) << 24, size = bits & 0x7fu;
  // Exponent 0 counts 2^-9; others move from a bias of 7 to one of 127.
  const vf small = __builtin_convertvector((vi)size, vf) * 0.001953125f;
  const vf normal = (vf)((size << 20) + 0x3c000000u);
  const vf number = select((vi)size < splat(8), small, normal);
  const vf signed_number = (vf)((vu)number | sign);
  return select((vi)size == splat(0x7f), splat(__builtin_nanf("")), signed_number);
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
