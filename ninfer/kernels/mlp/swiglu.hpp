// SiLU(gate) * up, element by element: the same bits wherever an element lies.
#pragma once

#include "simd.hpp"

namespace ninfer {

// out may be gate or up.
static inline void swiglu(const float* gate, const float* up, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, vsilu(loadf(gate + i)) * loadf(up + i));
    const int tail = static_cast<int>(count - i);
    if (tail > 0) store_head(out + i, vsilu(load_head(gate + i, tail)) * load_head(up + i, tail), tail);
}

}  // namespace ninfer
