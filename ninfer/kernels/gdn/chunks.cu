// gdn and gdn_fold for long sequences, in chunks of 64 tokens on tensor cores: see the contract in this folder.
//
// Within a chunk that starts from the state S, let b_i be the sum of g up to token i, k and q the normalised keys and
// queries, and u_i the corrections that the recurrence adds as u_i k_i^T. Written out, the recurrence says
//     S_i = e^b_i S + sum_{j <= i} e^(b_i - b_j) u_j k_j^T
//     (I + A) U = diag(beta) V - diag(beta e^b) K S^T,  A_ij = beta_i e^(b_i - b_j) k_i k_j for j < i, else 0
// so that with W and V' from (I + A) W = diag(beta e^b) K and (I + A) V' = diag(beta) V
//     U = V' - W S^T
//     out = (Q e^b) S^T + P U,  P_ij = e^(b_i - b_j) q_i k_j / sqrt(dk) for j <= i, else 0
//     S <- e^b_last S + U^T (K e^(b_last - b))
// No exponent is positive. gdn_prepare computes W, V', Q e^b, P and K e^(b_last - b) of all chunks at once: the products
// on tensor cores, the triangular system in fp32. gdn_advance goes from chunk to chunk. One warp has 16 rows of the
// state in registers as sums lie on tensor cores, which is also how left-hand operands lie: S and U never move. The
// other operands come in pieces through shared memory, each once for all warps of a block.
//
// Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.3. Operands are split in two bf16, sums are
// fp32, so a product is off by some 2^-17 of its terms.
#include "ninfer.cuh"
#include "gdn/prepare.cuh"

using namespace ninfer;

namespace {

constexpr int kStages = 4;
constexpr int kStageBytes = kReadBytes > kWriteBytes ? kReadBytes : kWriteBytes;
constexpr int kPieces = kReadPieces + kWritePieces;
static_assert(sizeof(PrepareShared) + 128 >= NINFER_PREPARE_SHARED && sizeof(PrepareShared) <= NINFER_PREPARE_SHARED,
              "the plan thinks that gdn_prepare has other shared memory");

// How many of the launch's chunks the sequence has.
NINFER_DEVICE int chunks_of(const ChunkArgs& args, int row) {
    const i64 rest = ceil_div(args.segments[args.batch + row], kChunk) - args.first_chunk;
    return static_cast<int>(rest < args.chunks ? rest : args.chunks);
}

// The pieces of a sequence's records, fetched some pieces ahead.
struct Stream {
    const u8* records;
    u8* ring;
    int pieces;
    bool reads;
    int at;

    NINFER_MEMBER void fetch(int piece) const {
        if (piece < pieces) {
            const int within = piece % kPieces, writes = within - kReadPieces;
            const u8* from = records + piece / kPieces * static_cast<i64>(NINFER_RECORD);
            from += writes < 0 ? within * kReadBytes : write_piece_at(writes);
            // Not the queries' tiles when nobody asks, and of P not the zeros above the diagonal.
            const int begin = writes < 0 ? 0 : (reads ? 2 * writes : kTokenTiles) * kTile;
            const int end = writes >= 0 ? kWriteBytes : reads ? kReadBytes : kReadBytes / 2;
            u8* const to = ring + piece % kStages * kStageBytes;
            for (int i = begin + static_cast<int>(threadIdx.x) * 16; i < end; i += static_cast<int>(blockDim.x) * 16)
                cp_async16(to + i, from + i);
        }
        cp_async_commit();
    }

    NINFER_MEMBER void start() const {
        for (int piece = 0; piece < kStages - 1; ++piece) fetch(piece);
    }

    // The next piece, this lane's part of its first tile; valid until the next call.
    NINFER_MEMBER const u8* next() {
        cp_async_wait<kStages - 2>();
        __syncthreads();  // everybody's copies are here, and everybody is done with the piece before
        fetch(at + kStages - 1);
        return ring + at++ % kStages * kStageBytes + lane() * 16;
    }
};

// 16 rows of the state, spread over a warp: tile n has columns 8 n to 8 n + 7.
struct Rows {
    float tiles[kKeyTiles][4];

    NINFER_MEMBER void load(const float* slab) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
            for (int i = 0; i < 2; ++i) {
                const float2 v = read_pair(slab + (lane() / 4 + 8 * i) * kKeys + 8 * n + lane() % 4 * 2);
                tiles[n][2 * i] = v.x, tiles[n][2 * i + 1] = v.y;
            }
    }

    NINFER_MEMBER void store(float* slab) const {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
            for (int i = 0; i < 2; ++i)
                store8(slab + (lane() / 4 + 8 * i) * kKeys + 8 * n + lane() % 4 * 2,
                       bits_as<uint2>(make_float2(tiles[n][2 * i], tiles[n][2 * i + 1])));
    }
};

// U^T and out^T: tile n has tokens 8 n to 8 n + 7.
struct Tokens {
    float tiles[kTokenTiles][4];
};

NINFER_DEVICE void load_values(Tokens& u, const u8* slab) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
        const float4 v = bits_as<float4>(load16(slab + n * kTile + lane() * 16));
        u.tiles[n][0] = v.x, u.tiles[n][1] = v.y, u.tiles[n][2] = v.z, u.tiles[n][3] = v.w;
    }
}

// U = V' - W S^T, out = (Q e^b) S^T.
NINFER_DEVICE void read_state(Tokens& u, Tokens& out, const Rows& state, Stream& stream) {
#pragma unroll
    for (int k = 0; k < kReadPieces; ++k) {
        const u8* const piece = stream.next();
        const Left left = left_tile(state.tiles[2 * k], state.tiles[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) multiply(u.tiles[n], left, read16(piece + n * kTile));
        if (!stream.reads) continue;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
            multiply(out.tiles[n], left, read16(piece + (kTokenTiles + n) * kTile));
    }
}

// out += P U, S <- decay S + U^T (K e^(b_last - b)).
NINFER_DEVICE void write_state(Rows& state, Tokens& out, const Tokens& u, float decay, Stream& stream) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
        for (int i = 0; i < 4; ++i) state.tiles[n][i] = __fmul_rn(state.tiles[n][i], decay);
#pragma unroll
    for (int k = 0; k < kWritePieces; ++k) {
        const u8* const piece = stream.next();
        const Left left = left_tile(u.tiles[2 * k], u.tiles[2 * k + 1]);
#pragma unroll
        for (int n = 2 * k; n < kTokenTiles; ++n)
            if (stream.reads) multiply(out.tiles[n], left, read16(piece + n * kTile));
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
            multiply(state.tiles[n], left, read16(piece + (kTokenTiles + n) * kTile));
    }
}

// `out`: row lane / 4 of the slab for the chunk's first token.
NINFER_DEVICE void store_out(const Tokens& answers, float* out, i64 stride, int count) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
        for (int i = 0; i < 4; ++i) {
            const int token = 8 * n + lane() % 4 * 2 + i % 2;
            if (token < count) out[token * stride + i / 2 * 8] = answers.tiles[n][i];
        }
}

}  // namespace

// Grid: chunks, value heads, rows.
NINFER_KERNEL(gdn_prepare, ChunkArgs, 256) {
    NINFER_DYNAMIC_SHARED(PrepareShared, shared);
    PrepareShared& s = *shared;
    const int row = args.rows[blockIdx.z], chunk = blockIdx.x;
    if (chunk >= chunks_of(args, row)) return;
    const i64 skipped = (args.first_chunk + chunk) * kChunk, left = args.segments[args.batch + row] - skipped;
    const i64 head = blockIdx.y, key_head = head / (args.value_heads / args.key_heads);
    const Place place = {args.segments[row] + skipped, static_cast<int>(left < kChunk ? left : kChunk), head, key_head};
    u8* const record = record_of(args, blockIdx.z, head, chunk);
    load_tokens(s, args, place);
    if (warp() == 0) sum_decays(s, args, place, reinterpret_cast<float*>(record + kDecayAt));
    __syncthreads();
    if (warp() < 4) {
        lower_rows(s, warp());
    } else if (args.out != nullptr) {
        answer_rows(s, args, place, warp() - 4, record);
    }
    write_keys(s, record);
    if (args.out != nullptr) write_queries(s, args, place, record);
    __syncthreads();
    for (int c = threadIdx.x; c < kKeys + kValues; c += kPrepareWarps * kWarp) {
        if (c < kValues) solve(s, &s.values[0][c], kValues + kPad, false);
        if (c >= kValues) solve(s, &s.keys[0][c - kValues], kKeys + kPad, true);
    }
    __syncthreads();
    write_corrections(s, record);
    write_values(s, record);
}

// Grid: blocks of slabs, value heads, rows.
NINFER_KERNEL(gdn_advance, ChunkArgs, 128) {
    NINFER_DYNAMIC_SHARED(u8, ring);
    const int row = args.rows[blockIdx.z], chunks = chunks_of(args, row);
    if (chunks <= 0) return;
    const i64 head = blockIdx.y, slab = blockIdx.x * static_cast<i64>(blockDim.x / kWarp) + warp();
    const u8* const records = record_of(args, blockIdx.z, head, 0);
    Stream stream = {records, ring, chunks * kPieces, args.out != nullptr, 0};
    stream.start();
    const i64 target = args.slots[args.batch + row], source = args.first_chunk > 0 ? target : args.slots[row];
    const i64 slot_size = args.value_heads * kValues * kKeys, at = (head * kValues + slab * kSlab) * kKeys;
    Rows state = {};
    if (source >= 0) state.load(args.state + source * slot_size + at);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const u8* const record = records + chunk * static_cast<i64>(NINFER_RECORD);
        Tokens u, out = {};
        load_values(u, record + kSlabsAt + slab * kTokenTiles * kTile);
        const float decay = bits_as<float>(load4(record + kDecayAt));
        read_state(u, out, state, stream);
        write_state(state, out, u, decay, stream);
        if (!stream.reads) continue;
        const i64 done = (args.first_chunk + chunk) * kChunk, left = args.segments[args.batch + row] - done;
        const i64 stride = args.value_heads * kValues;
        float* const to = args.out + (args.segments[row] + done) * stride + head * kValues + slab * kSlab + lane() / 4;
        store_out(out, to, stride, static_cast<int>(left < kChunk ? left : kChunk));
    }
    state.store(args.state + target * slot_size + at);
}
