// Philox4x32-10 and the number it gives to a draw: see kernels/philox.py.
#pragma once

#include <cstdint>

namespace ninfer {

// One number strictly between 0 and 1, with 52 random bits.
static inline double uniform(uint64_t seed, uint64_t position, uint32_t purpose) {
    uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = purpose, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = 0xD2511F53ull * c0, right = 0xCD9E8D57ull * c2;
        c0 = static_cast<uint32_t>(right >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(right);
        c2 = static_cast<uint32_t>(left >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(left);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = (static_cast<uint64_t>(c0) << 32 | c1) >> 12;
    return (static_cast<double>(bits) + 0.5) * 2.220446049250313e-16;  // 2^-52
}

}  // namespace ninfer
