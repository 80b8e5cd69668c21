// Activations of gated MLPs.
#pragma once
#include "vector.h"

inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

// x / 2 * (1 + tanh u), with u = sqrt(2 / pi) * (x + 0.044715 * x^3). As 1 / (1 + e^-2u) nothing
// cancels where tanh is near -1.
inline vf gelu(vf x) {
  const vf u = x * (1.0f + 0.044715f * x * x) * 0.797884561f;
  return x / (1.0f + exponential(-2.0f * u));
}
