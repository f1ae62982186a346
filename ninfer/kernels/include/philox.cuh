// Philox4x32-10, the counter-based generator of ninfer/kernels/philox.py: the same words for the same counter and key.
#pragma once

#include "types.cuh"

namespace ninfer {

NINFER_DEVICE uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 left = static_cast<u64>(0xD2511F53u) * counter.x;
        const u64 right = static_cast<u64>(0xCD9E8D57u) * counter.z;
        counter = make_uint4(static_cast<u32>(right >> 32) ^ counter.y ^ key.x, static_cast<u32>(right),
                             static_cast<u32>(left >> 32) ^ counter.w ^ key.y, static_cast<u32>(left));
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// philox.py's `uniform`: strictly between 0 and 1, with 52 random bits.
NINFER_DEVICE double philox_uniform(u64 seed, u64 position, u32 purpose) {
    const uint4 counter = make_uint4(static_cast<u32>(position), static_cast<u32>(position >> 32), purpose, 0u);
    const uint2 key = make_uint2(static_cast<u32>(seed), static_cast<u32>(seed >> 32));
    const uint4 words = philox4x32_10(counter, key);
    const u64 random = (static_cast<u64>(words.x) << 32 | words.y) >> 12;
    return (static_cast<double>(random) + 0.5) * 0x1p-52;
}

}  // namespace ninfer
