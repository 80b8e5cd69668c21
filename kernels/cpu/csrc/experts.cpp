// Expert MLPs over rows grouped by expert (group_rows in route.cpp), weights packed as panels.
//
// A task is a few panels of one expert, for the rows of that expert: rows of no expert are read and
// multiplied nowhere, and an expert without rows costs nothing.
#include <algorithm>

#include "activation.h"
#include "command.h"
#include "panel.h"
#include "scratch.h"

namespace {

constexpr int64_t kColumns = kMaxPanels * kPanel;

inline vf rounded(vf x, const float*) { return x; }
inline vf rounded(vf x, const bf16*) { return widen(narrow(x)); }

// Which panels of which expert a task multiplies with which grouped rows.
struct Share {
  int64_t expert, first_panel, last_panel, first_row, last_row, step;

  Share(int64_t task, const int32_t* starts, int64_t panels, int64_t group) {
    const int64_t groups = (panels + group - 1) / group;
    expert = task / groups;
    first_panel = task % groups * group;
    last_panel = std::min(panels, first_panel + group);
    first_row = starts[expert];
    last_row = starts[expert + 1];
    // Equal steps: 9 rows run as 5 and 4 rather than as 8 and 1.
    const int64_t steps = std::max<int64_t>(1, (last_row - first_row + kMaxRows - 1) / kMaxRows);
    step = (last_row - first_row + steps - 1) / steps;
  }

  // Calls `multiply_step(panel, panels, row, rows)` for tiles of panels and of rows.
  template <class F>
  void each(F multiply_step) const {
    for (int64_t panel = first_panel; panel < last_panel; panel += kMaxPanels)
      for (int64_t row = first_row; row < last_row; row += step)
        multiply_step(panel, std::min<int64_t>(kMaxPanels, last_panel - panel), row,
                      std::min(step, last_row - row));
  }

  // While the first rows are multiplied, the next panels come into the second-level cache.
  template <class T>
  void fetch_next(Product<T>& product, int64_t row) const {
    if (row != first_row) return;
    product.ahead = product.b + kMaxPanels * product.b_stride;
    product.ahead_lines = kMaxPanels;
  }
};

// out[grouped row] = silu(x * gate) * up: panels of gate, then of up, for each expert.
template <class T>
void expert_gate_up(const Arg* args, int64_t task) {
  const T* x = pointer<const T>(args[0]);
  const int32_t* rows = pointer<const int32_t>(args[2]);
  const T* packed = pointer<const T>(args[3]);
  T* out = pointer<T>(args[4]);
  const int64_t inputs = args[5].i, outputs = args[6].i, x_stride = args[7].i;
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  const Share share(task, pointer<const int32_t>(args[1]), panels, args[8].i);

  const int64_t panel_size = panel_elements(packed, inputs);
  const T* gate_panels = packed + share.expert * 2 * panels * panel_size;
  Scratch& scratch = thread_scratch();
  scratch.begin(Scratch::bytes<T>(kMaxRows * inputs));
  T* gathered = scratch.take<T>(kMaxRows * inputs);
  alignas(64) float gates[kMaxRows * kColumns], ups[kMaxRows * kColumns];
  share.each([&](int64_t panel, int64_t tile, int64_t row, int64_t count) {
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(x + rows[row + r] * x_stride, inputs, gathered + r * inputs);
    const T* b = gate_panels + panel * panel_size;
    Product<T> gate{gathered, inputs, b, panel_size, inputs, gates, kColumns, nullptr, 1.0f};
    Product<T> up = gate;
    up.b = b + panels * panel_size;
    up.out = ups;
    share.fetch_next(gate, row);
    share.fetch_next(up, row);
    multiply(gate, count, tile);
    multiply(up, count, tile);
    const int64_t column = panel * kPanel, columns = std::min(tile * kPanel, outputs - column);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t c = 0; c < columns; c += kWidth) {
        const int64_t at = r * kColumns + c;
        const vf value = silu(rounded(load(gates + at), out)) * rounded(load(ups + at), out);
        store(out + (row + r) * outputs + column + c, value, columns - c);
      }
  });
}

// out[grouped row] = inner * down, not rounded.
template <class T>
void expert_down(const Arg* args, int64_t task) {
  const T* inner = pointer<const T>(args[0]);
  const T* packed = pointer<const T>(args[2]);
  float* out = pointer<float>(args[3]);
  const int64_t inputs = args[4].i, outputs = args[5].i;
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  const Share share(task, pointer<const int32_t>(args[1]), panels, args[6].i);

  const int64_t panel_size = panel_elements(packed, inputs);
  const T* own_panels = packed + share.expert * panels * panel_size;
  alignas(64) float sums[kMaxRows * kColumns];
  share.each([&](int64_t panel, int64_t tile, int64_t row, int64_t count) {
    const T *a = inner + row * inputs, *b = own_panels + panel * panel_size;
    Product<T> product{a, inputs, b, panel_size, inputs, sums, kColumns, nullptr, 1.0f};
    share.fetch_next(product, row);
    multiply(product, count, tile);
    const int64_t column = panel * kPanel, columns = std::min(tile * kPanel, outputs - column);
    for (int64_t r = 0; r < count; ++r)
      std::copy_n(sums + r * kColumns, columns, out + (row + r) * outputs + column);
  });
}

// out[row] = sum over ranks of weight * down[place], in the order of ranks.
template <class T>
void combine_experts(const Arg* args, int64_t task) {
  const float* down = pointer<const float>(args[0]);
  const int32_t* places = pointer<const int32_t>(args[1]);
  const float* weights = pointer<const float>(args[2]);
  T* out = pointer<T>(args[3]);
  const int64_t rows = args[4].i, rows_per_task = args[5].i, ranks = args[6].i, width = args[7].i;
  const int64_t last = std::min(rows, (task + 1) * rows_per_task);
  for (int64_t row = task * rows_per_task; row < last; ++row)
    for (int64_t e = 0; e < width; e += kWidth) {
      vf sum{};
      for (int64_t i = row * ranks; i < (row + 1) * ranks; ++i)
        if (places[i] >= 0)
          sum = sum + load(down + places[i] * width + e, width - e) * weights[i];
      store(out + row * width + e, sum, width - e);
    }
}

}  // namespace

extern "C" {
void expert_gate_up_f32(const Arg* args, int64_t task) { expert_gate_up<float>(args, task); }
void expert_gate_up_bf16(const Arg* args, int64_t task) { expert_gate_up<bf16>(args, task); }
void expert_down_f32(const Arg* args, int64_t task) { expert_down<float>(args, task); }
void expert_down_bf16(const Arg* args, int64_t task) { expert_down<bf16>(args, task); }
void combine_experts_f32(const Arg* args, int64_t task) { combine_experts<float>(args, task); }
void combine_experts_bf16(const Arg* args, int64_t task) { combine_experts<bf16>(args, task); }
}
