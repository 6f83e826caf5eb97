// What the kernels of lines share. The flag travels inside the data, so that no fence and no second trip is needed.
//
// A line is 16 bytes that the wire delivers whole: 12 bytes of payload and the low 32 bits of the sequence. A warp
// carries a tile: 96 packs in 128 lines; lane i of line row j (j < 3) carries the first three words of pack 32 j + i,
// and row 3 the fourth words of the lane's three packs. A block owns the lines of TILES_A_BLOCK tiles in each half of a
// lane whatever the size of the launch, and counts its own sequence, so blocks need nothing from each other.
//
// A warp may carry several tiles: it then writes the next one before it waits for the last one, so that a link whose
// reads queue behind its writes is used in both directions at once.
#pragma once

#include "exchange.cuh"

namespace tp {

constexpr u32 TILE_PACKS = 96;
constexpr u32 TILE_LINES = 128;
constexpr u32 TILES_A_BLOCK = 8;

__device__ __forceinline__ Line make_line(u32 x, u32 y, u32 z, u32 flag) {
    return Line{(u64)y << 32 | x, (u64)flag << 32 | z};
}

__device__ __forceinline__ void pack_lines(const uint4 (&packs)[3], u32 flag, Line (&lines)[4]) {
#pragma unroll
    for (int j = 0; j < 3; j++) lines[j] = make_line(packs[j].x, packs[j].y, packs[j].z, flag);
    lines[3] = make_line(packs[0].w, packs[1].w, packs[2].w, flag);
}

__device__ __forceinline__ uint4 unpack_lines(const Line (&lines)[4], int j) {
    const u32 w = j == 0 ? (u32)lines[3].lo : j == 1 ? (u32)(lines[3].lo >> 32) : (u32)lines[3].hi;
    return make_uint4((u32)lines[j].lo, (u32)(lines[j].lo >> 32), (u32)lines[j].hi, w);
}

__device__ __forceinline__ u32 line_flag(const Line& line) { return (u32)(line.hi >> 32); }

// What one thread carries of the payload in one round, and which of its lines exist. Row 3 exists where row 0 does.
struct Share {
    u32 first;     // index of its first pack; the others follow at distances of 32
    u32 offset;    // of its first line in the lane; the others follow at distances of 512
    u32 packs;     // how many exist

    __device__ __forceinline__ bool has_pack(int j) const { return j < (int)packs; }
    __device__ __forceinline__ bool has_line(int j) const { return has_pack(j == 3 ? 0 : j); }
};

// A launch carries less than 4 GiB, so 32 bits count packs and reach into a lane.
__device__ __forceinline__ Share share_of(u32 all, u32 half_bytes, u32 rounds, u64 sequence, u32 round) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const u32 in_block = warp + round * warps;
    Share s;
    s.first = (blockIdx.x * warps * rounds + in_block) * TILE_PACKS + lane;
    s.packs = (s.first < all) + (s.first + 32 < all) + (s.first + 64 < all);
    s.offset = ((u32)sequence & 1) * half_bytes + 16 * ((blockIdx.x * TILES_A_BLOCK + in_block) * TILE_LINES + lane);
    return s;
}

__device__ __forceinline__ Share share_of(const ExchangeArgs& a, u64 sequence, u32 round) {
    return share_of((u32)((a.bytes + 15) / 16), (u32)a.half_bytes, a.rounds, sequence, round);
}

// Polls until the lines of pack rows FIRST to LAST - 1, and row 3, have come from every member in `from`, a mask.
// Returns the members whose lines have not, 0 when all have.
template <int W, int FIRST, int LAST>
__device__ __forceinline__ u32 await_lines(const ExchangeArgs& a, const Share& s, u32 from, u32 flag, Line (&lines)[W][4],
                                           Patience& patience, u32& why) {
    // Bit 4 r + j: line j of member r has not come yet.
    u32 rows = s.packs > 0 ? 8 : 0;
#pragma unroll
    for (int j = FIRST; j < LAST; j++) rows |= s.has_pack(j) ? 1u << j : 0;
    u32 wanted = 0;
#pragma unroll
    for (int r = 0; r < W; r++) wanted |= (from >> r & 1) != 0 ? rows << (4 * r) : 0;
    while (wanted != 0) {
#pragma unroll
        for (int r = 0; r < W; r++) {
            const u8* lane = a.in[r] + s.offset;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j != 3 && (j < FIRST || j >= LAST)) continue;
                if ((wanted >> (4 * r + j) & 1) != 0) lines[r][j] = load_line_sys(lane + 512 * j);
            }
        }
#pragma unroll
        for (int r = 0; r < W; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j != 3 && (j < FIRST || j >= LAST)) continue;
                if (line_flag(lines[r][j]) == flag) wanted &= ~(1u << (4 * r + j));
            }
        }
        if (wanted == 0) break;
        why = patience.lost(a.control, a.poison, a.wait_ns);
        if (why != 0) {
            u32 missing = 0;
#pragma unroll
            for (int r = 0; r < W; r++) missing |= (wanted >> (4 * r) & 15) != 0 ? 1u << r : 0;
            return missing;
        }
    }
    return 0;
}

// A line that no launch has written for 2^32 operations would carry the flag of the current one. So each block writes
// all its lines once in this many operations, in both halves.
constexpr u64 REFRESH_MASK = (1ull << 28) - 1;

// Writes the block's lines that carry nothing in this operation, in one lane.
__device__ __noinline__ void refresh_lines(u32 all, u32 half_bytes, u32 rounds, u64 sequence, bool sending, u8* to) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Line blank = make_line(0, 0, 0, (u32)sequence);
    for (u32 round = 0; round * warps + warp < TILES_A_BLOCK; round++) {
        Share s = share_of(all, half_bytes, rounds, sequence, round);
        if (!sending || round >= rounds) s.packs = 0;
        for (int j = 0; j < 4; j++) {
            // The block's first line always travels.
            const bool carried = s.has_line(j) || (round == 0 && warp == 0 && lane == 0 && j == 0);
            if (!carried) store_line_sys(to + s.offset + 512 * j, blank);
        }
    }
}

// Once every thread has read the block's sequence, the next launch may count on; what fails later is poisoned anyway.
__device__ __forceinline__ void count_operation(u64* counters, u64 sequence) {
    __syncthreads();
    if (threadIdx.x == 0) store_relaxed_gpu(counters + blockIdx.x, sequence);
}

}  // namespace tp
