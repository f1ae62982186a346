// What threads do together, one function per kernel. `in` and `out` are arrays of one number per thread.
#include "ninfer.cuh"

using namespace ninfer;

struct Args {
    const void* in;
    void* out;
    i64 number;
};

template <class T>
NINFER_DEVICE T& mine(void* array) {
    return static_cast<T*>(array)[blockIdx.x * blockDim.x + threadIdx.x];
}
template <class T>
NINFER_DEVICE T mine(const void* array) {
    return static_cast<const T*>(array)[blockIdx.x * blockDim.x + threadIdx.x];
}

NINFER_KERNEL(probe_warp_sum_float, Args, 1024) { mine<float>(args.out) = warp_sum(mine<float>(args.in)); }
NINFER_KERNEL(probe_warp_sum_double, Args, 1024) { mine<double>(args.out) = warp_sum(mine<double>(args.in)); }
NINFER_KERNEL(probe_warp_sum_i32, Args, 1024) { mine<i32>(args.out) = warp_sum(mine<i32>(args.in)); }
NINFER_KERNEL(probe_warp_max_float, Args, 1024) { mine<float>(args.out) = warp_max(mine<float>(args.in)); }
NINFER_KERNEL(probe_warp_max_i32, Args, 1024) { mine<i32>(args.out) = warp_max(mine<i32>(args.in)); }
NINFER_KERNEL(probe_warp_max_u32, Args, 1024) { mine<u32>(args.out) = warp_max(mine<u32>(args.in)); }

// Two calls with the same scratch: the second must find it free.
NINFER_KERNEL(probe_block_sum, Args, 256) {
    __shared__ float shared[32];
    const float first = block_sum<256>(mine<float>(args.in), shared);
    mine<float>(args.out) = block_sum<256>(mine<float>(args.in) + first, shared);
}
NINFER_KERNEL(probe_block_max, Args, 96) {
    __shared__ float shared[32];
    const float first = block_max<96>(mine<float>(args.in), shared);
    mine<float>(args.out) = block_max<96>(-mine<float>(args.in), shared) + first;
}

NINFER_KERNEL(probe_shuffle, Args, 1024) {
    mine<i64>(args.out) = shuffle(mine<i64>(args.in), static_cast<int>(args.number));
}
NINFER_KERNEL(probe_shuffle_xor, Args, 1024) {
    mine<i64>(args.out) = shuffle_xor(mine<i64>(args.in), static_cast<int>(args.number));
}
NINFER_KERNEL(probe_shuffle_up, Args, 1024) {
    mine<i64>(args.out) = shuffle_up(mine<i64>(args.in), static_cast<int>(args.number));
}
NINFER_KERNEL(probe_shuffle_down, Args, 1024) {
    mine<i64>(args.out) = shuffle_down(mine<i64>(args.in), static_cast<int>(args.number));
}

NINFER_KERNEL(probe_votes, Args, 1024) { mine<u64>(args.out) = warp_ballot(mine<i64>(args.in) != 0); }

NINFER_KERNEL(probe_place, Args, 1024) { mine<i32>(args.out) = 100 * warp() + lane(); }
