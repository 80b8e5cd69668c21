// Sums of values as they lie in the cache, weighted for a few rows at once.
//
// Each result is one chain of additions over ascending tokens, as in panel.h: how many rows or
// columns are handled together changes no bit.
#pragma once
#include "vector.h"

constexpr int64_t kFewRows = 4;
constexpr int kFewVectors = kWidth == 16 ? 4 : 2;

// out[r, :] = out[r, :] * decay[r] + sum over t of weights[r, t] * values[t][from ..].
template <class T>
struct WeightedSum {
  const float* weights;
  int64_t weights_stride;
  const float* decay;
  const T* const* values;
  int64_t from;
  int64_t tokens;
  int64_t dim;
  float* out;
  int64_t out_stride;
};

template <int R, int V, class T>
void add_block(const WeightedSum<T>& sum, int64_t d) {
  float* out = sum.out + d;
  const int64_t from = sum.from + d, left = sum.dim - d;
  vf sums[R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sums[r][v] = load(out + r * sum.out_stride + v * kWidth) * sum.decay[r];
  for (int64_t t = 0; t < sum.tokens; ++t) {
    const T* row = sum.values[t] + from;
    vf values[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) values[v] = V > 1 ? load(row + v * kWidth) : load(row, left);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v)
        sums[r][v] = sums[r][v] + splat(sum.weights[r * sum.weights_stride + t]) * values[v];
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + r * sum.out_stride + v * kWidth, sums[r][v]);
}

template <int V, class T>
void add_columns(const WeightedSum<T>& sum, int64_t rows, int64_t d) {
  switch (rows) {
    case 1: return add_block<1, V>(sum, d);
    case 2: return add_block<2, V>(sum, d);
    case 3: return add_block<3, V>(sum, d);
    case 4: return add_block<4, V>(sum, d);
  }
}

// At most kFewRows rows.
template <class T>
void add_weighted(const WeightedSum<T>& sum, int64_t rows) {
  int64_t d = 0;
  for (; d + kFewVectors * kWidth <= sum.dim; d += kFewVectors * kWidth)
    add_columns<kFewVectors>(sum, rows, d);
  for (; d < sum.dim; d += kWidth) add_columns<1>(sum, rows, d);
}
