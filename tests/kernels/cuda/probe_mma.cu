// One warp and its tensor core: every lane's registers come from `a`, `b` and `d`, and go to `d`.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const u32* a;  // [32][4]
    const u32* b;  // [32][2]
    void* d;       // [32][4]
};

template <class T>
struct Lane {
    u32 a[4];
    u32 b[2];
    T d[4];
};

template <class T>
NINFER_DEVICE Lane<T> get(const Args& args) {
    Lane<T> it;
    for (int i = 0; i < 4; ++i) it.a[i] = args.a[lane() * 4 + i];
    for (int i = 0; i < 2; ++i) it.b[i] = args.b[lane() * 2 + i];
    for (int i = 0; i < 4; ++i) it.d[i] = static_cast<const T*>(args.d)[lane() * 4 + i];
    return it;
}

template <class T>
NINFER_DEVICE void put(const Args& args, const Lane<T>& it) {
    for (int i = 0; i < 4; ++i) static_cast<T*>(args.d)[lane() * 4 + i] = it.d[i];
}

#if NINFER_E4M3
NINFER_KERNEL(probe_mma_e4m3, Args, 32) {
    Lane<float> it = get<float>(args);
    mma_e4m3_16832(it.d, it.a, it.b);
    put(args, it);
}
#else
NINFER_KERNEL(probe_mma_bf16, Args, 32) {
    Lane<float> it = get<float>(args);
    mma_bf16_16816(it.d, it.a, it.b);
    put(args, it);
}
NINFER_KERNEL(probe_mma_f16, Args, 32) {
    Lane<float> it = get<float>(args);
    mma_f16_16816(it.d, it.a, it.b);
    put(args, it);
}
NINFER_KERNEL(probe_mma_s8, Args, 32) {
    Lane<i32> it = get<i32>(args);
    mma_s8_16832(it.d, it.a, it.b);
    put(args, it);
}
#endif
