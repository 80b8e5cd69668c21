#include "panel.h"

namespace {

// One step along k: a float, or a pair of bf16.
template <class T>
struct Step;

template <>
struct Step<float> {
  static constexpr int kSize = 1;
  using A = float;
  static A take(const float* a) { return *a; }
  static A take_last(const float* a) { return *a; }
  using B = vf;
  static B column(const float* b) { return load(b); }
  static vf add(vf sum, A a, B b) { return sum + splat(a) * b; }
};

template <>
struct Step<bf16> {
  static constexpr int kSize = 2;
  using A = uint32_t;
  static A take(const bf16* a) { return load_as<uint32_t>(a); }
  static A take_last(const bf16* a) { return a->bits; }
#ifdef __AVX512BF16__
  using B = __m512bh;
  static B column(const bf16* b) { return load_as<__m512bh>(b); }
  static vf add(vf sum, A a, B b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), b);
  }
#else
  struct B {
    vf even, odd;
  };
  static B column(const bf16* b) {
    vu pairs = load_as<vu>(b);
    return {(vf)(pairs << 16), (vf)(pairs & 0xffff0000u)};
  }
  static vf add(vf sum, A a, B b) {
    uint32_t even = a << 16, odd = a & 0xffff0000u;
    sum = sum + splat(load_as<float>(&even)) * b.even;
    return sum + splat(load_as<float>(&odd)) * b.odd;
  }
#endif
};

// Into the second-level cache: the first is for the tile that is being computed.
inline void fetch(const char* line) { __builtin_prefetch(line, 0, 2); }

// R rows, N panels, L lines ahead.
template <int R, int N, int L, class T>
void multiply_tile(const Product<T>& product) {
  using S = Step<T>;
  constexpr int V = N * kVectors;
  const int64_t a_stride = product.a_stride, b_stride = product.b_stride;
  vf sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const float* out = product.out + r * product.out_stride + v * kWidth;
      sums[r][v] = product.decay ? load(out) * product.decay[r] : vf{};
    }
  const T* a = product.a;
  const T* b = product.b;
  const char* ahead = reinterpret_cast<const char*>(product.ahead);
  auto step = [&](auto take) __attribute__((always_inline)) {
    typename S::B columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      columns[v] = S::column(b + v / kVectors * b_stride + v % kVectors * kWidth * S::kSize);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename S::A value = take(a + r * a_stride);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = S::add(sums[r][v], value, columns[v]);
    }
    a += S::kSize;
    b += kPanel * S::kSize;
#pragma GCC unroll 4
    for (int line = 0; line < L; ++line) fetch(ahead + line * kLine);
    ahead += L * kLine;
  };
  for (int64_t left = product.k / S::kSize; left > 0; --left) step(S::take);
  // The element after an odd row's last one belongs to another row: it is not read, for it may be
  // NaN.
  if (product.k % S::kSize) step(S::take_last);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      store(product.out + r * product.out_stride + v * kWidth, sums[r][v] * product.scale);
}

template <int N, int L, class T>
void multiply_rows(const Product<T>& product, int64_t rows) {
  switch (rows) {
    case 1: return multiply_tile<1, N, L>(product);
    case 2: return multiply_tile<2, N, L>(product);
    case 3: return multiply_tile<3, N, L>(product);
    case 4: return multiply_tile<4, N, L>(product);
  }
  if constexpr (kMaxRows > 4) {
    switch (rows) {
      case 5: return multiply_tile<5, N, L>(product);
      case 6: return multiply_tile<6, N, L>(product);
      case 7: return multiply_tile<7, N, L>(product);
      case 8: return multiply_tile<8, N, L>(product);
    }
  }
}

template <class T>
void multiply_panels(const Product<T>& product, int64_t rows, int64_t panels) {
  if constexpr (kMaxPanels > 1) {
    if (panels == 1) return multiply_rows<1, 0>(product, rows);
    if (panels == 2) return multiply_rows<2, 0>(product, rows);
  }
  switch (product.ahead_lines) {
    case 1: return multiply_rows<kMaxPanels, 1>(product, rows);
    case 2: return multiply_rows<kMaxPanels, 2>(product, rows);
    case 3: return multiply_rows<kMaxPanels, 3>(product, rows);
  }
  multiply_rows<kMaxPanels, 0>(product, rows);
}

}  // namespace

void multiply(const Product<float>& product, int64_t rows, int64_t panels) {
  multiply_panels(product, rows, panels);
}
void multiply(const Product<bf16>& product, int64_t rows, int64_t panels) {
  multiply_panels(product, rows, panels);
}
