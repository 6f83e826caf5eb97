// The exchange for small payloads: the flag travels inside the data, so that no fence and no second trip is needed.
//
// A line is 16 bytes that the wire delivers whole: 12 bytes of payload and the low 32 bits of the sequence. A warp
// carries a tile: 96 packs in 128 lines; lane i of line row j (j < 3) carries the first three words of pack 32 j + i,
// and row 3 the fourth words of the lane's three packs. A block owns the lines of TILES_A_BLOCK tiles in each half of a
// lane whatever the size of the launch, and counts its own sequence, so blocks need nothing from each other.
#include "exchange.cuh"
#include "exchange_reduce.cuh"

namespace tp {

constexpr u32 TILE_PACKS = 96;
constexpr u32 TILE_LINES = 128;
constexpr u32 TILES_A_BLOCK = 8;

// A line that no launch has written for 2^32 operations would carry the flag of the current one. So each block writes
// all its lines once in this many operations, in both halves.
constexpr u64 REFRESH_MASK = (1ull << 28) - 1;

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

// What one thread carries of the payload and which of its lines exist.
struct Share {
    u64 first;     // index of its first pack; the others follow at distances of 32
    u64 offset;    // of its first line in the lane; the others follow at distances of 512
    u32 packs;     // how many exist
    bool token;    // the thread whose first line always travels, so that every block hears of every other

    __device__ __forceinline__ bool has_pack(int j) const { return j < (int)packs; }
    __device__ __forceinline__ bool has_line(int j, bool carries) const {
        return (carries && has_pack(j == 3 ? 0 : j)) || (token && j == 0);
    }
};

__device__ __forceinline__ Share share_of(const ExchangeArgs& a, u64 sequence) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const u64 all = (a.bytes + 15) / 16;
    Share s;
    s.first = ((u64)blockIdx.x * warps + warp) * TILE_PACKS + lane;
    s.packs = 0;
#pragma unroll
    for (int j = 0; j < 3; j++) s.packs += s.first + 32 * j < all;
    s.offset = (sequence & 1) * a.half_bytes + 16ull * ((blockIdx.x * TILES_A_BLOCK + warp) * TILE_LINES + lane);
    s.token = threadIdx.x == 0;
    return s;
}

__device__ __forceinline__ void load_share(const u8* base, const Share& s, u64 bytes, uint4 (&packs)[3]) {
#pragma unroll
    for (int j = 0; j < 3; j++) packs[j] = s.has_pack(j) ? load_pack(base, s.first + 32 * j, bytes) : zero_pack();
}

__device__ __forceinline__ void store_lines(u8* lane, const Share& s, bool carries, const Line (&lines)[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (s.has_line(j, carries)) store_line_sys(lane + s.offset + 512 * j, lines[j]);
    }
}

__device__ __noinline__ void refresh_lines(const ExchangeArgs& a, u64 sequence, u32 packs, u32 outs) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const Line blank = make_line(0, 0, 0, (u32)sequence);
    for (u32 tile = warp; tile < TILES_A_BLOCK; tile += warps) {
        for (int j = 0; j < 4; j++) {
            const bool carried = tile == warp && ((j == 3 ? 0 : j) < (int)packs || (threadIdx.x == 0 && j == 0));
            const u64 at = (sequence & 1) * a.half_bytes +
                           16ull * ((blockIdx.x * TILES_A_BLOCK + tile) * TILE_LINES + 32 * j + lane);
            for (u32 r = 0; !carried && r < outs; r++) {
                if (a.out[r] != nullptr) store_line_sys(a.out[r] + at, blank);
            }
        }
    }
}

// Polls until the lines of pack rows FIRST to LAST - 1, and row 3, of every sender have come. Returns the members whose
// lines have not, 0 when all have.
template <int W, int FIRST, int LAST>
__device__ __forceinline__ u32 await_lines(const ExchangeArgs& a, const Share& s, u32 flag, Line (&lines)[W][4],
                                           Patience& patience, u32& why) {
    // Bit 4 r + j: line j of member r has not come yet.
    u32 wanted = 0;
#pragma unroll
    for (int r = 0; r < W; r++) {
        if (r < a.members && r != a.me) {
            const bool carries = sends(a, r);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool row = j == 3 || (j >= FIRST && j < LAST);
                wanted |= row && s.has_line(j, carries) ? 1u << (4 * r + j) : 0;
            }
        }
    }
    for (;;) {
#pragma unroll
        for (int r = 0; r < W; r++) {
            const u8* from = a.in[r] + s.offset;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j != 3 && (j < FIRST || j >= LAST)) continue;
                load_line_sys_if(wanted >> (4 * r + j) & 1, from + 512 * j, lines[r][j]);
            }
        }
        u32 missing = 0;
#pragma unroll
        for (int r = 0; r < W; r++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (j != 3 && (j < FIRST || j >= LAST)) continue;
                const u32 bit = 1u << (4 * r + j);
                if (line_flag(lines[r][j]) == flag) wanted &= ~bit;
            }
            missing |= (wanted >> (4 * r) & 15) != 0 ? 1u << r : 0;
        }
        if (missing == 0) return 0;
        why = patience.lost(a);
        if (why != 0) return missing;
    }
}

// Waits for one line of the tile before all are read, so that the polls before the data comes cost the link little.
template <int W>
__device__ __forceinline__ u32 probe_lines(const ExchangeArgs& a, const Share& s, u32 flag, Patience& patience, u32& why) {
    u32 missing = 0;
    const bool probes = (threadIdx.x & 31) == 0 && s.packs > 0;
#pragma unroll
    for (int r = 0; r < W; r++) {
        if (r < a.members && r != a.me && probes && sends(a, r)) {
            Line line{0, 0};
            for (;;) {
                load_line_sys_if(true, a.in[r] + s.offset + 512 * 3, line);
                if (line_flag(line) == flag) break;
                why = patience.lost(a);
                if (why != 0) {
                    missing |= 1u << r;
                    break;
                }
            }
        }
    }
    __syncwarp();
    return missing;
}

template <int W, int FIRST, int LAST>
__device__ __forceinline__ void finish_rows(const ExchangeArgs& a, const Share& s, const Line (&lines)[W][4]) {
    if (a.mode == REDUCE) {
#pragma unroll
        for (int j = FIRST; j < LAST; j++) {
            if (!s.has_pack(j)) break;
            uint4 packs[1][W], result[1];
#pragma unroll
            for (int r = 0; r < W; r++) packs[0][r] = unpack_lines(lines[r], j);
            reduce_packs<W, 1>(packs, result, a.members, a.element, a.op);
            store_pack(a.recv, s.first + 32 * j, a.bytes, result[0]);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < W; r++) {
        if (r < a.members && r != a.me && sends(a, r)) {
            u8* to = a.recv + (a.mode == GATHER ? r * a.recv_stride : 0);
#pragma unroll
            for (int j = FIRST; j < LAST; j++) {
                if (s.has_pack(j)) store_pack(to, s.first + 32 * j, a.bytes, unpack_lines(lines[r], j));
            }
        }
    }
}

// Rows FIRST to LAST - 1 of the others' packs, from the first poll to the result.
template <int W, int FIRST, int LAST>
__device__ __forceinline__ u32 receive_rows(const ExchangeArgs& a, const Share& s, u32 flag, const uint4 (&own)[3],
                                            Patience& patience, u32& why) {
    Line lines[W][4];
#pragma unroll
    for (int r = 0; r < W; r++) pack_lines(own, flag - 1, lines[r]);
    const u32 missing = await_lines<W, FIRST, LAST>(a, s, flag, lines, patience, why);
    if (missing == 0) finish_rows<W, FIRST, LAST>(a, s, lines);
    return missing;
}

template <int W>
__device__ __forceinline__ void exchange_lines(const ExchangeArgs& a) {
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1;
    const u32 poisoned = load_relaxed_gpu(a.poison);
    const u32 flag = (u32)sequence;
    const Share s = share_of(a, sequence);
    const bool sending = sends(a, a.me);
    uint4 own[3];
    load_share(a.own, s, a.bytes, own);
    if (poisoned != 0) return;

    if (a.send_stride == 0) {
        Line mine[4];
        if (a.send != a.own) {
            uint4 packs[3];
            load_share(a.send, s, a.bytes, packs);
            pack_lines(packs, flag, mine);
        } else {
            pack_lines(own, flag, mine);
        }
#pragma unroll
        for (int r = 0; r < W; r++) {
            if (r < a.outs && a.out[r] != nullptr) store_lines(a.out[r], s, sending, mine);
        }
    } else {
#pragma unroll 1
        for (u32 r = 0; r < a.members; r++) {
            if (r != a.me) {
                uint4 packs[3];
                Line mine[4];
                load_share(a.send + r * a.send_stride, s, a.bytes, packs);
                pack_lines(packs, flag, mine);
                store_lines(a.out[r], s, sending, mine);
            }
        }
    }
    if ((sequence & REFRESH_MASK) < 2) refresh_lines(a, sequence, sending ? s.packs : 0, a.outs);

    if (a.mode == GATHER && sending && a.recv + a.me * a.recv_stride != a.own) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (s.has_pack(j)) store_pack(a.recv + a.me * a.recv_stride, s.first + 32 * j, a.bytes, own[j]);
        }
    }

    Patience patience;
    u32 why = 0, missing = 0;
    if (a.tune != 0) missing = probe_lines<W>(a, s, flag, patience, why);
    if constexpr (W <= 4) {
        if (missing == 0) missing = receive_rows<W, 0, 3>(a, s, flag, own, patience, why);
    } else {
        // Row by row: the lines of all members together do not fit into a thread's registers.
        if (missing == 0) missing = receive_rows<W, 0, 1>(a, s, flag, own, patience, why);
        if (missing == 0) missing = receive_rows<W, 1, 2>(a, s, flag, own, patience, why);
        if (missing == 0) missing = receive_rows<W, 2, 3>(a, s, flag, own, patience, why);
    }
    if (missing != 0) record_failure(a.poison, a.control, sequence, missing, why, patience.since);
    end_operation(a, sequence);
}

}  // namespace tp

extern "C" __global__ void __launch_bounds__(256, 1) tp_exchange_lines_2(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_lines<2>(a);
}
extern "C" __global__ void __launch_bounds__(256, 1) tp_exchange_lines_4(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_lines<4>(a);
}
extern "C" __global__ void __launch_bounds__(256, 1) tp_exchange_lines_8(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_lines<8>(a);
}
