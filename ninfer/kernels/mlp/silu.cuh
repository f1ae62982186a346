// The gated activation of one pair of numbers, shared by swiglu and the epilogues of products, so that they agree in bits.
#pragma once

#include "rows.cuh"

namespace ninfer {

NINFER_DEVICE float silu_mul(float gate, float up) { return silu(gate) * up; }

}  // namespace ninfer
