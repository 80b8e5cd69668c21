// Kernels that work row by row: embedding, norms, rotary embedding, activations, row choice.
// A task is a chunk of rows. An index outside its table reads row 0: padding may hold anything, and
// must neither fault nor change another row.
#include <algorithm>
#include <cmath>

#include "activation.h"
#include "command.h"
#include "vector.h"

namespace {

int64_t row_within(int64_t row, int64_t rows) { return row >= 0 && row < rows ? row : 0; }

struct Rows {
  int64_t first, last;
  Rows(int64_t task, const Arg& rows, const Arg& per_task)
      : first(task * per_task.i), last(std::min(rows.i, first + per_task.i)) {}
};

template <class T>
void take_rows(const Arg* args, int64_t task) {
  const T* table = pointer<const T>(args[0]);
  const int32_t* ids = pointer<const int32_t>(args[1]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, table_rows = args[6].i, stride = args[7].i;
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row)
    std::copy_n(table + row_within(ids[row], table_rows) * stride, width, out + row * width);
}

template <class T>
void take_scaled_rows(const Arg* args, int64_t task) {
  const T* table = pointer<const T>(args[0]);
  const int32_t* ids = pointer<const int32_t>(args[1]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, table_rows = args[6].i, stride = args[7].i;
  const float scale = float(args[8].f);
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const T* from = table + row_within(ids[row], table_rows) * stride;
    for (int64_t e = 0; e < width; e += kWidth)
      store(out + row * width + e, load(from + e, width - e) * scale, width - e);
  }
}

template <class T>
void norm_row(const T* x, const float* weight, float eps, int64_t width, T* out) {
  vf squares{};
  for (int64_t e = 0; e < width; e += kWidth) {
    vf value = load(x + e, width - e);
    squares += value * value;
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(squares) / float(width) + eps);
  for (int64_t e = 0; e < width; e += kWidth)
    store(out + e, load(x + e, width - e) * scale * load(weight + e, width - e), width - e);
}

template <class T>
void rms_norm(const Arg* args, int64_t task) {
  const T* x = pointer<const T>(args[0]);
  const float* weight = pointer<const float>(args[1]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, stride = args[6].i, heads = args[8].i;
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row)
    for (int64_t head = 0; head < heads; ++head)
      norm_row(x + row * stride + head * width, weight, float(args[7].f), width,
               out + (row * heads + head) * width);
}

template <class T>
void add_rms_norm(const Arg* args, int64_t task) {
  const T* x = pointer<const T>(args[0]);
  const float* weight = pointer<const float>(args[1]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, x_stride = args[6].i;
  const T* residual = pointer<const T>(args[8]);
  T* sum = pointer<T>(args[9]);
  const int64_t residual_stride = args[10].i;
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const T *first = x + row * x_stride, *second = residual + row * residual_stride;
    T* total = sum + row * width;
    for (int64_t e = 0; e < width; e += kWidth)
      store(total + e, load(first + e, width - e) + load(second + e, width - e), width - e);
    norm_row(total, weight, float(args[7].f), width, out + row * width);
  }
}

template <class T>
void rotate_head(const T* x, const float* cosines, const float* sines, int64_t half, T* out) {
  for (int64_t d = 0; d < half; d += kWidth) {
    const int64_t left = half - d;
    vf first = load(x + d, left), second = load(x + half + d, left);
    vf cosine = load(cosines + d, left), sine = load(sines + d, left);
    store(out + d, first * cosine - second * sine, left);
    store(out + half + d, second * cosine + first * sine, left);
  }
}

template <class T>
void rope(const Arg* args, int64_t task) {
  const T* x[2] = {pointer<const T>(args[0]), pointer<const T>(args[1])};
  T* out[2] = {pointer<T>(args[2]), pointer<T>(args[5])};
  const int32_t* positions = pointer<const int32_t>(args[6]);
  const float* table = pointer<const float>(args[7]);
  const int64_t heads[2] = {args[8].i, args[9].i}, strides[2] = {args[10].i, args[11].i};
  const int64_t dim = args[12].i, table_rows = args[13].i, half = args[14].i;
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const float* angles = table + row_within(positions[row], table_rows) * 2 * half;
    for (int i = 0; i < 2; ++i)
      for (int64_t head = 0; head < heads[i]; ++head) {
        const T* from = x[i] + row * strides[i] + head * dim;
        T* to = out[i] + (row * heads[i] + head) * dim;
        rotate_head(from, angles, angles + half, half, to);
        if (2 * half < dim) std::copy(from + 2 * half, from + dim, to + 2 * half);
      }
  }
}

// activation(gate) * up.
template <class T, class Activation>
void activate_mul(const Arg* args, int64_t task, Activation activation) {
  const T* gate_up = pointer<const T>(args[0]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, stride = args[6].i;
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    const T* gate = gate_up + row * stride;
    for (int64_t f = 0; f < width; f += kWidth) {
      const int64_t left = width - f;
      const vf x = load(gate + f, left), up = load(gate + width + f, left);
      store(out + row * width + f, activation(x) * up, left);
    }
  }
}

template <class T>
void silu_mul(const Arg* args, int64_t task) {
  activate_mul<T>(args, task, [](vf x) __attribute__((always_inline)) { return silu(x); });
}

template <class T>
void gelu_mul(const Arg* args, int64_t task) {
  activate_mul<T>(args, task, [](vf x) __attribute__((always_inline)) { return gelu(x); });
}

template <class T>
void soft_cap(const Arg* args, int64_t task) {
  const T* x = pointer<const T>(args[0]);
  T* out = pointer<T>(args[2]);
  const int64_t width = args[5].i, stride = args[6].i;
  const float cap = float(args[7].f);
  const Rows rows(task, args[3], args[4]);
  for (int64_t row = rows.first; row < rows.last; ++row)
    for (int64_t v = 0; v < width; v += kWidth) {
      const vf value = load(x + row * stride + v, width - v);
      store(out + row * width + v, hyperbolic_tangent(value / cap) * cap, width - v);
    }
}

}  // namespace

#define NORIA_ROW_KERNEL(name)                                                    \
  void name##_f32(const Arg* args, int64_t task) { name<float>(args, task); }     \
  void name##_bf16(const Arg* args, int64_t task) { name<bf16>(args, task); }

extern "C" {
NORIA_ROW_KERNEL(take_rows)
NORIA_ROW_KERNEL(take_scaled_rows)
NORIA_ROW_KERNEL(rms_norm)
NORIA_ROW_KERNEL(add_rms_norm)
NORIA_ROW_KERNEL(rope)
NORIA_ROW_KERNEL(silu_mul)
NORIA_ROW_KERNEL(gelu_mul)
NORIA_ROW_KERNEL(soft_cap)
}
