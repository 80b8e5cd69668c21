// Writing new keys and values into the block cache. A slot outside of it writes nothing.
#include <algorithm>

#include "command.h"
#include "vector.h"

namespace {

template <class T>
void write_kv(const Arg* args, int64_t task) {
  const T* k = pointer<const T>(args[0]);
  const T* v = pointer<const T>(args[1]);
  T* k_cache = pointer<T>(args[2]);
  T* v_cache = pointer<T>(args[3]);
  const int32_t* slots = pointer<const int32_t>(args[4]);
  const int64_t rows = args[5].i, k_stride = args[6].i, v_stride = args[7].i;
  const int64_t width = args[8].i, num_slots = args[9].i, rows_per_task = args[10].i;
  const int64_t last = std::min(rows, (task + 1) * rows_per_task);
  for (int64_t row = task * rows_per_task; row < last; ++row) {
    const int64_t slot = slots[row];
    if (slot < 0 || slot >= num_slots) continue;
    std::copy_n(k + row * k_stride, width, k_cache + slot * width);
    std::copy_n(v + row * v_stride, width, v_cache + slot * width);
  }
}

}  // namespace

extern "C" {
void write_kv_f32(const Arg* args, int64_t task) { write_kv<float>(args, task); }
void write_kv_bf16(const Arg* args, int64_t task) { write_kv<bf16>(args, task); }
}
