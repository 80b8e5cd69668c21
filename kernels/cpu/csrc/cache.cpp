// Writing new keys and values into the block cache. A slot outside of it writes nothing.
#include <algorithm>

#include "command.h"
#include "fp8.h"

namespace {

template <class T>
void write_row(const T* from, int64_t width, float, T* to) {
  std::copy_n(from, width, to);
}

template <class T>
void write_row(const T* from, int64_t width, float scale, fp8* to) {
  for (int64_t d = 0; d < width; d += kWidth)
    store(to + d, load(from + d, width - d) / splat(scale), width - d);
}

// T is computed with, C is stored.
template <class T, class C>
void write_kv(const Arg* args, int64_t task) {
  const T* k = pointer<const T>(args[0]);
  const T* v = pointer<const T>(args[1]);
  C* k_cache = pointer<C>(args[2]);
  C* v_cache = pointer<C>(args[3]);
  const int32_t* slots = pointer<const int32_t>(args[4]);
  const int64_t rows = args[5].i, k_stride = args[6].i, v_stride = args[7].i;
  const int64_t width = args[8].i, num_slots = args[9].i, rows_per_task = args[10].i;
  const float k_scale = float(args[11].f), v_scale = float(args[12].f);
  const int64_t last = std::min(rows, (task + 1) * rows_per_task);
  for (int64_t row = task * rows_per_task; row < last; ++row) {
    const int64_t slot = slots[row];
    if (slot < 0 || slot >= num_slots) continue;
    write_row(k + row * k_stride, width, k_scale, k_cache + slot * width);
    write_row(v + row * v_stride, width, v_scale, v_cache + slot * width);
  }
}

}  // namespace

extern "C" {
void write_kv_f32_f32(const Arg* args, int64_t task) { write_kv<float, float>(args, task); }
void write_kv_bf16_bf16(const Arg* args, int64_t task) { write_kv<bf16, bf16>(args, task); }
void write_kv_f32_fp8(const Arg* args, int64_t task) { write_kv<float, fp8>(args, task); }
void write_kv_bf16_fp8(const Arg* args, int64_t task) { write_kv<bf16, fp8>(args, task); }
}
