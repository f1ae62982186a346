// Conversions of numbers, one per thread: `in` and `out` are arrays of 32-bit words.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const u32* in;
    u32* out;
    i64 count;
};

NINFER_DEVICE i64 thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }

#define PROBE(name, expression)                             \
    NINFER_KERNEL(probe_##name, Args, 256) {                \
        const i64 i = thread();                             \
        if (i < args.count) {                               \
            const u32 x = args.in[i];                       \
            args.out[i] = static_cast<u32>(expression);     \
        }                                                   \
    }

PROBE(bf16_to_float, bits_as<u32>(bf16_to_float(static_cast<u16>(x))))
PROBE(half_to_float, bits_as<u32>(half_to_float(static_cast<u16>(x))))
PROBE(e4m3_to_float, bits_as<u32>(e4m3_to_float(static_cast<u8>(x))))
PROBE(e2m1_to_float, bits_as<u32>(e2m1_to_float(x)))
PROBE(float_to_bf16, float_to_bf16(bits_as<float>(x)))
PROBE(float_to_half, float_to_half(bits_as<float>(x)))
PROBE(pack, pack_bf16(bits_as<float>(x), bits_as<float>(args.in[(i + 1) % args.count])))
PROBE(unpack, pack_bf16(unpack_bf16(x).y, unpack_bf16(x).x))
PROBE(pack_half, pack_half(bits_as<float>(x), bits_as<float>(args.in[(i + 1) % args.count])))
PROBE(unpack_half, pack_half(unpack_half(x).y, unpack_half(x).x))
PROBE(constants, i == 0 ? bits_as<u32>(kInf) : bits_as<u32>(kNan))

// Six words of counter and key become four random ones.
NINFER_KERNEL(probe_philox, Args, 256) {
    const i64 i = thread();
    if (i < args.count) {
        const u32* from = args.in + 6 * i;
        const uint4 counter = make_uint4(from[0], from[1], from[2], from[3]);
        store16(args.out + 4 * i, philox4x32_10(counter, make_uint2(from[4], from[5])));
    }
}

// Seed, position and purpose, in two words each, become a double.
NINFER_KERNEL(probe_uniform, Args, 256) {
    const i64 i = thread();
    if (i < args.count) {
        const u64* from = reinterpret_cast<const u64*>(args.in) + 3 * i;
        reinterpret_cast<double*>(args.out)[i] = philox_uniform(from[0], from[1], static_cast<u32>(from[2]));
    }
}
