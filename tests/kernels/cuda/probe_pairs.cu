// Words of packed codes through pairs.cuh and kv_codec.cuh. Thread i takes the i-th of `in`, or the i-th few; where a
// function asks for a part of a word, the other bits are random: it must not look at them.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const u32* in;
    float* out;  // [count][8] in order, or [count][numbers of a word]
    i64 count;
};

NINFER_DEVICE i64 thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }

NINFER_DEVICE void put_pairs(const Args& args, const u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = unpack_bf16(pairs[i]);
        args.out[8 * thread() + i] = two.x;
        args.out[8 * thread() + i + 4] = two.y;
    }
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

NINFER_KERNEL(probe_q4, Args, 256) {
    u32 pairs[4];
    q4_pairs(args.in[thread()], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_q5, Args, 256) {
    u32 pairs[4];
    q5_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_q6, Args, 256) {
    u32 pairs[4];
    q6_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_q8, Args, 256) {
    u32 pairs[4];
    q8_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_fp8, Args, 256) {
    u32 pairs[4];
    fp8_pairs(args.in[2 * thread()], args.in[2 * thread() + 1], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_bf16, Args, 256) {
    u32 pairs[4];
    bf16_pairs(load16(args.in + 4 * thread()), pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_t2, Args, 256) {
    u32 pairs[4];
    t2_pairs(args.in[2 * thread()], pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_nvfp4, Args, 256) {
    u32 pairs[4];
    nvfp4_pairs(args.in[2 * thread()], e4m3_scale_pair(args.in[2 * thread() + 1] & 0xffu), pairs);
    put_pairs(args, pairs);
}
NINFER_KERNEL(probe_fp32, Args, 256) {
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = bits_as<float>(args.in[8 * thread() + i]);
    u32 pairs[4];
    fp32_pairs(values, pairs);
    put_pairs(args, pairs);
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
