// Loads of matrices from shared memory, and copies to it.
#include "ninfer.cuh"

using namespace ninfer;

// Lane i reads its row at rows[i] bytes of the 2 KB of `tile`.
struct MatrixArgs {
    const void* tile;
    const i32* rows;  // [32]
    u32* out;         // [32][4]
};

NINFER_DEVICE const u8* row_in_shared(const MatrixArgs& args, u8* tile) {
    for (int i = lane(); i < 128; i += 32) store16(tile + 16 * i, load16(static_cast<const u8*>(args.tile) + 16 * i));
    __syncwarp();
    return tile + args.rows[lane()];
}

template <int COUNT>
NINFER_DEVICE void put(const MatrixArgs& args, const u32 (&r)[COUNT]) {
    for (int i = 0; i < COUNT; ++i) args.out[lane() * 4 + i] = r[i];
}

NINFER_KERNEL(probe_ldmatrix_x4, MatrixArgs, 32) {
    NINFER_DYNAMIC_SHARED(u8, tile);
    u32 r[4];
    ldmatrix_x4(r, row_in_shared(args, tile));
    put(args, r);
}
NINFER_KERNEL(probe_ldmatrix_x4_trans, MatrixArgs, 32) {
    NINFER_DYNAMIC_SHARED(u8, tile);
    u32 r[4];
    ldmatrix_x4_trans(r, row_in_shared(args, tile));
    put(args, r);
}
NINFER_KERNEL(probe_ldmatrix_x2, MatrixArgs, 32) {
    NINFER_DYNAMIC_SHARED(u8, tile);
    u32 r[2];
    ldmatrix_x2(r, row_in_shared(args, tile));
    put(args, r);
}
// Each of 64 threads copies 16 bytes of `in` to shared memory, where `valid`, then 16 more, and hands them on.
struct CopyArgs {
    const u8* in;
    const i32* valid;  // [64]
    u8* out;
};

NINFER_KERNEL(probe_cp_async, CopyArgs, 64) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    const int i = static_cast<int>(threadIdx.x), other = 63 - i;
    cp_async16_zfill(shared + 16 * i, args.in + 16 * i, args.valid[i] != 0);
    cp_async_commit();
    cp_async16(shared + 1024 + 16 * i, args.in + 1024 + 16 * i);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    store16(args.out + 16 * i, read16(shared + 16 * other));
    cp_async_wait<0>();
    __syncthreads();
    store16(args.out + 1024 + 16 * i, read16(shared + 1024 + 16 * other));
}

// What shared memory holds while a copy to it is on its way.
NINFER_KERNEL(probe_cp_async_early, CopyArgs, 64) {
    NINFER_DYNAMIC_SHARED(u8, shared);
    const int i = static_cast<int>(threadIdx.x);
    store16(shared + 16 * i, make_uint4(0, 0, 0, 0));
    cp_async16(shared + 16 * i, args.in + 16 * i);
    cp_async_commit();
    cp_async_commit();
    cp_async_wait<2>();
    store16(args.out + 16 * i, read16(shared + 16 * i));
    cp_async_wait<1>();
    store16(args.out + 1024 + 16 * i, read16(shared + 16 * i));
}

// Words of 2, 4, 8 and 16 bytes, by every kind of load, each to a place of its own.
NINFER_KERNEL(probe_loads, CopyArgs, 32) {
    const int i = static_cast<int>(threadIdx.x);
    const u8* in = args.in;
    store16(args.out + 16 * i, load16(in + 16 * i));
    store16(args.out + 512 + 16 * i, load_streaming16(in + 16 * i));
    store16(args.out + 1024 + 16 * i, read16(in + 16 * i));
    const float4 four = load_float4(reinterpret_cast<const float*>(in) + 4 * i);
    store_float4(reinterpret_cast<float*>(args.out + 1536 + 16 * i), four);
    store8(args.out + 2048 + 8 * i, load8(in + 8 * i));
    store8(args.out + 2304 + 8 * i, read8(in + 8 * i));
    store4(args.out + 2560 + 4 * i, load4(in + 4 * i));
    store4(args.out + 2688 + 4 * i, read4(in + 4 * i));
    store4(args.out + 2816 + 4 * i, load2(in + 2 * i));
    u32 words[4];
    put(words, load16(in + 16 * i));
    for (int j = 0; j < 4; ++j) store4(args.out + 2944 + 16 * i + 4 * j, words[j]);
}
