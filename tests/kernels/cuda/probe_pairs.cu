// Every code of the packed formats through pairs.cuh: thread i takes word i of `in`.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const u32* in;
    float* out;  // [count][8] in order, or [count][numbers of a word]
    i64 count;
};

NINFER_DEVICE i64 thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }

NINFER_DEVICE void put(const Args& args, const u32 (&pairs)[4]) {
    float values[8];
    unpair(pairs, values);
    store_float4(args.out + 8 * thread(), make_float4(values[0], values[1], values[2], values[3]));
    store_float4(args.out + 8 * thread() + 4, make_float4(values[4], values[5], values[6], values[7]));
}

template <int WORDS>
NINFER_DEVICE void put_in_order(const Args& args, const u32 (&words)[WORDS]) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        const float2 two = unpack_bf16(words[i]);
        args.out[2 * WORDS * thread() + 2 * i] = two.x;
        args.out[2 * WORDS * thread() + 2 * i + 1] = two.y;
    }
}

// All bits above those that a function asks for are set or not at random: it must not look at them.
NINFER_KERNEL(probe_q5, Args, 256) {
    u32 pairs[4];
    q5_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put(args, pairs);
}
NINFER_KERNEL(probe_q6, Args, 256) {
    u32 pairs[4];
    q6_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put(args, pairs);
}
NINFER_KERNEL(probe_t2, Args, 256) {
    u32 pairs[4];
    t2_pairs(args.in[2 * thread()], pairs);
    put(args, pairs);
}
NINFER_KERNEL(probe_nvfp4, Args, 256) {
    u32 pairs[4];
    nvfp4_pairs(args.in[2 * thread()], e4m3_scale_pair(args.in[2 * thread() + 1] & 0xffu), pairs);
    put(args, pairs);
}
NINFER_KERNEL(probe_fp32, Args, 256) {
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = bits_as<float>(args.in[8 * thread() + i]);
    u32 pairs[4];
    fp32_pairs(values, pairs);
    put(args, pairs);
}

NINFER_KERNEL(probe_int8x4, Args, 256) {
    u32 words[2];
    int8x4_to_bf16(args.in[thread()], words);
    put_in_order(args, words);
}
NINFER_KERNEL(probe_e4m3x4, Args, 256) {
    u32 words[2];
    e4m3x4_to_bf16(args.in[thread()], words);
    put_in_order(args, words);
}
NINFER_KERNEL(probe_e2m1x8, Args, 256) {
    u32 words[4];
    e2m1x8_to_bf16(args.in[thread()], words);
    put_in_order(args, words);
}
