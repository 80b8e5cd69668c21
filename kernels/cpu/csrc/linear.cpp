// Linear layers over weights that were packed once: out[R, O] = x[R, I] * weight^T + bias.
#include <algorithm>

#include "command.h"
#include "panel.h"

namespace {

// Adds the bias to a tile of sums and rounds it into its place.
template <class TO>
void finish(const float* sums, const float* bias, int64_t columns, TO* out) {
  for (int64_t c = 0; c < columns; c += kWidth) {
    vf sum = load(sums + c);
    if (bias) sum += load(bias + c, columns - c);
    store(out + c, sum, columns - c);
  }
}

// A task is a group of panels for a chunk of rows. Chunks are the outer order, so that the rows of
// a chunk stay in the second-level cache while panels stream by, and every panel is read once per
// chunk. Of rows from `end` on nothing is needed: their tiles are left out, the others stay the same.
template <class T, class TO>
void linear(const Arg* args, int64_t task) {
  const T* x = pointer<const T>(args[0]);
  const T* packed = pointer<const T>(args[1]);
  const float* bias = pointer<const float>(args[2]);
  TO* out = pointer<TO>(args[3]);
  const int64_t rows = args[4].i, inputs = args[5].i, outputs = args[6].i, x_stride = args[7].i;
  const int64_t chunk_rows = args[8].i, group = args[9].i, end = args[10].i;

  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  const int64_t groups = (panels + group - 1) / group;
  const int64_t first_row = task / groups * chunk_rows;
  const int64_t last_row = std::min(rows, first_row + chunk_rows);
  const int64_t first_panel = task % groups * group;
  const int64_t last_panel = std::min(panels, first_panel + group);
  const int64_t panel_size = panel_elements(packed, inputs);
  // Equal steps: 9 rows run as 5 and 4 rather than as 8 and 1.
  const int64_t steps = (last_row - first_row + kMaxRows - 1) / kMaxRows;
  const int64_t step = (last_row - first_row + steps - 1) / steps;

  // While rows are multiplied with some panels, the next ones come into the second-level cache: as
  // evenly as possible, one line or more per step along k. A panel has one line per such step.
  const int lines = int((kMaxPanels + steps - 1) / steps);
  const int64_t fetching = (kMaxPanels + lines - 1) / lines;

  constexpr int64_t kColumns = kMaxPanels * kPanel;
  alignas(64) float sums[kMaxRows * kColumns];
  for (int64_t panel = first_panel; panel < last_panel; panel += kMaxPanels) {
    const int64_t column = panel * kPanel, columns = std::min(kColumns, outputs - column);
    const T* b = packed + panel * panel_size;
    for (int64_t row = first_row; row < std::min(last_row, end); row += step) {
      const int64_t count = std::min(step, last_row - row);
      const T* a = x + row * x_stride;
      Product<T> product{a, x_stride, b, panel_size, inputs, sums, kColumns, nullptr, 1.0f};
      const int64_t done = (row - first_row) / step;
      if (done < fetching) {
        product.ahead = b + kMaxPanels * panel_size + done * lines * panel_size;
        product.ahead_lines = lines;
      }
      multiply(product, count, std::min<int64_t>(kMaxPanels, last_panel - panel));
      for (int64_t r = 0; r < count; ++r)
        finish(sums + r * kColumns, bias ? bias + column : nullptr, columns,
               out + (row + r) * outputs + column);
    }
  }
}

// A task packs one panel: weight[O, I] row-major becomes [k][16] or [k/2][16][2], zero padded.
template <class T>
void pack(const Arg* args, int64_t task) {
  const T* weight = pointer<const T>(args[0]);
  T* packed = pointer<T>(args[1]);
  const int64_t outputs = args[2].i, inputs = args[3].i;
  constexpr int kStep = kPair<T>;
  T* panel = packed + task * panel_elements(packed, inputs);
  std::fill_n(panel, panel_elements(packed, inputs), T{});
  for (int64_t column = 0; column < kPanel && task * kPanel + column < outputs; ++column)
    for (int64_t k = 0; k < inputs; ++k)
      panel[k / kStep * kPanel * kStep + column * kStep + k % kStep] =
          weight[(task * kPanel + column) * inputs + k];
}

}  // namespace

extern "C" {
void linear_f32_f32(const Arg* args, int64_t task) { linear<float, float>(args, task); }
void linear_bf16_bf16(const Arg* args, int64_t task) { linear<bf16, bf16>(args, task); }
void linear_bf16_f32(const Arg* args, int64_t task) { linear<bf16, float>(args, task); }
void pack_f32(const Arg* args, int64_t task) { pack<float>(args, task); }
void pack_bf16(const Arg* args, int64_t task) { pack<bf16>(args, task); }
}
