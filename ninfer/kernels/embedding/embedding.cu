// embedding: see the contract in this folder. NINFER_FORMAT is the table's.
//
// A block has one token; a thread decodes every 256th column. Floor: a row's stored bytes and 4 bytes per column.
#include "ninfer.cuh"

#include "dequant.cuh"

using namespace ninfer;

struct EmbeddingArgs {
    const i64* token_ids;
    Part table;
    const float* divisor;  // NVFP4
    float* out;            // f32[tokens, columns]
    i64 columns;
};

// Nobody on the host has seen the ids: one outside the table gives a row of NaN, and reads nothing.
NINFER_KERNEL(embedding, EmbeddingArgs, 256) {
    const i64 id = args.token_ids[blockIdx.x];
    const bool known = id >= 0 && id < args.table.rows;
    Part table = args.table;
    if (NINFER_FORMAT == NVFP4) table.divisor = *args.divisor;
    float* const row = args.out + static_cast<i64>(blockIdx.x) * args.columns;
    for (i64 k = threadIdx.x; k < args.columns; k += blockDim.x) {
        row[k] = known ? decode_one<NINFER_FORMAT>(table, id, k, args.columns) : kNan;
    }
}
