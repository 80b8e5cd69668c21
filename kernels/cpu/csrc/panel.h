// Products of a few rows with panels of 16 columns, the core of linear layers and of attention.
//
// A panel holds 16 columns for all k: float [k][16], or bf16 [k/2][16][2] (pairs, the operand order
// of vdpbf16ps; an odd k is padded with a zero). Every result is one chain of fp32 additions over
// ascending k whatever the number of rows and panels handled at once. This is what makes results
// independent of the batch.
#pragma once
#include "vector.h"

constexpr int kPanel = 16;
constexpr int kVectors = kPanel / kWidth;  // vectors per panel
constexpr int kMaxRows = kWidth == 16 ? 8 : 4;  // 8 x 3 of 32 registers, or 4 x 1 x 2 of 16
constexpr int kMaxPanels = kWidth == 16 ? 3 : 1;

constexpr int kLine = 64;  // bytes
constexpr int kMaxAhead = 3;

// Elements of k that lie side by side.
template <class T>
constexpr int kPair = sizeof(T) == 2 ? 2 : 1;

inline int64_t panel_elements(const float*, int64_t k) { return k * kPanel; }
inline int64_t panel_elements(const bf16*, int64_t k) { return (k + 1) / 2 * 2 * kPanel; }

// rows (a) times panels (b), into rows of floats.
template <class T>
struct Product {
  const T* a;
  int64_t a_stride;
  const T* b;
  int64_t b_stride;
  int64_t k;
  float* out;
  int64_t out_stride;
  // Null: sums start at 0. Else they start at out * decay, one factor per row.
  const float* decay;
  float scale;  // of the finished sums
  // What is read next: this many lines of it (0 to kMaxAhead) are fetched per step along k.
  int ahead_lines = 0;
  const T* ahead = nullptr;
};

// At most kMaxRows rows and kMaxPanels panels. Whole panels are written. Only products of
// kMaxPanels panels fetch ahead.
void multiply(const Product<float>& product, int64_t rows, int64_t panels);
void multiply(const Product<bf16>& product, int64_t rows, int64_t panels);
