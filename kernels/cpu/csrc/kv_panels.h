// Keys and values of a tile of tokens, packed into panels for products.
#pragma once
#include <cstring>

#include "panel.h"

// Panels of 16 tokens: 32-bit units (a float or a pair of bf16) are transposed in squares.
template <class T>
void pack_keys(const T* const* rows, int64_t from, int64_t dim, int64_t tokens, T* out) {
  const int64_t units = dim / kPair<T>;
  for (int64_t t = 0; t < tokens; t += kWidth, rows += kWidth) {
    uint32_t* panel = (uint32_t*)out + t / kPanel * units * kPanel + t % kPanel;
    int64_t unit = 0;
    for (; unit + kWidth <= units; unit += kWidth) {
      vi square[kWidth];
      for (int i = 0; i < kWidth; ++i)
        square[i] = load_as<vi>(rows[i] + from + unit * kPair<T>);
      transpose(square);
      for (int i = 0; i < kWidth; ++i)
        std::memcpy(panel + (unit + i) * kPanel, &square[i], sizeof(vi));
    }
    for (; unit < units; ++unit)
      for (int i = 0; i < kWidth; ++i)
        panel[unit * kPanel + i] = load_as<uint32_t>(rows[i] + from + unit * kPair<T>);
  }
}

// Panels of 16 dims in fp32.
template <class T>
void pack_values(const T* const* rows, int64_t from, int64_t dim, int64_t tokens, float* out) {
  const int64_t padded_dim = (dim + kPanel - 1) / kPanel * kPanel;
  for (int64_t d = 0; d < padded_dim; d += kWidth) {
    float* panel = out + d / kPanel * tokens * kPanel + d % kPanel;
    const int64_t count = dim - d;
    for (int64_t t = 0; t < tokens; ++t)
      store(panel + t * kPanel, count > 0 ? load(rows[t] + from + d, count) : vf{});
  }
}
