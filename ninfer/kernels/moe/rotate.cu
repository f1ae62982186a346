// The inputs of experts whose weights want them rotated: a row per slot, by the signs of the slot's own expert.
//
// Floor: 8 bytes per element, read and written.
#include "ninfer.cuh"

#include "experts.cuh"
#include "linear/hadamard.cuh"

using namespace ninfer;

namespace {

struct RotateArgs {
    const float* x;         // f32[slots / divisor, columns]
    float* out;             // f32[slots, columns]; x where `divisor` is 1
    const i64* ids;         // [slots]
    const Expert* experts;
    i64 columns;            // a multiple of 1024
    i32 count;              // of experts
    i32 divisor;            // slots that share a row of x
    i32 paired;             // whether the rows are gate's and up's inputs, or down's
    i32 unused;
};

}  // namespace

// Grid: slots, and blocks of columns. A slot whose expert has no signs gets its row as it is.
NINFER_KERNEL(expert_rotate, RotateArgs, kRotationThreads) {
    __shared__ float exchanged[kRotated];
    const i64 slot = blockIdx.x, id = args.ids[slot], column = static_cast<i64>(blockIdx.y) * kRotated;
    const float* const x = args.x + slot / args.divisor * args.columns + column;
    float* const out = args.out + slot * args.columns + column;
    if (id < 0 || id >= args.count) return;
    const Expert& expert = args.experts[id];
    const float* const signs = args.paired != 0 ? expert.gate_up_signs : expert.down_signs;
    if (signs != nullptr) {
        rotate_block(x, signs + column, out, exchanged);
    } else if (x != out) {
        for (int i = static_cast<int>(threadIdx.x); i < kRotated; i += kRotationThreads) out[i] = x[i];
    }
}
