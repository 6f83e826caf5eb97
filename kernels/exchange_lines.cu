// The exchange of small payloads by lines, in full generality: any alignment, any length, any form of the exchange.
#include "exchange_lines.cuh"
#include "exchange_reduce.cuh"

namespace tp {

using Tile = Share<Sparse>;

__device__ __forceinline__ Tile share_of(const ExchangeArgs& a, u64 sequence, u32 round) {
    return share_of<Sparse>((u32)((a.bytes + 15) / 16), (u32)a.half_bytes, Sparse::BLOCK_TILES, a.rounds, sequence, round);
}

// Polls until the lines of pack rows FIRST to LAST - 1, and row 3, have come from every member in `from`, a mask.
// Returns the members whose lines have not, 0 when all have.
template <int W, int FIRST, int LAST>
__device__ __forceinline__ u32 await_lines(const ExchangeArgs& a, const Tile& s, u32 from, u32 flag, Line (&lines)[W][4],
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
                if (has_come<Sparse>(lines[r][j], flag)) wanted &= ~(1u << (4 * r + j));
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

__device__ __forceinline__ void load_share(const u8* base, const Tile& s, u64 bytes, uint4 (&packs)[3]) {
#pragma unroll
    for (int j = 0; j < 3; j++) packs[j] = s.has_pack(j) ? load_pack(base, s.first + 32 * j, bytes) : zero_pack();
}

// The block's first line always travels, so that every block hears of every other also where one of them sends nothing.
__device__ __forceinline__ bool is_token(u32 round) { return threadIdx.x == 0 && round == 0; }

__device__ __forceinline__ void send_lines(const ExchangeArgs& a, const Tile& s, const u8* from, u8* lane, u32 flag,
                                           bool sending, bool token) {
    uint4 packs[3];
    Line lines[4];
    load_share(from, s, a.bytes, packs);
    pack_lines(packs, flag, lines);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if ((sending && s.has_line(j)) || (token && j == 0)) store_line_sys(lane + s.offset + 512 * j, lines[j]);
    }
}

__device__ __forceinline__ void send_round(const ExchangeArgs& a, u64 sequence, u32 round) {
    const Tile s = share_of(a, sequence, round);
    const bool sending = sends(a, a.me);
    const u32 lanes = a.send_stride == 0 ? a.outs : a.members;
#pragma unroll 1
    for (u32 r = 0; r < lanes; r++) {
        if (a.out[r] != nullptr) {
            send_lines(a, s, a.send + r * a.send_stride, a.out[r], (u32)sequence, sending, is_token(round));
        }
    }
}

__device__ __noinline__ void refresh_all(const ExchangeArgs& a, u64 sequence) {
    const u32 all = (u32)((a.bytes + 15) / 16);
    for (u32 r = 0; r < MAX_MEMBERS; r++) {
        u8* to = a.out[r];
        if (to == nullptr) continue;
        refresh_lines<Sparse>(all, (u32)a.half_bytes, Sparse::BLOCK_TILES, a.rounds, sequence, sends(a, a.me), to);
    }
}

__device__ __forceinline__ u32 await_line(const ExchangeArgs& a, u32 r, u32 offset, u32 flag, Patience& patience, u32& why) {
    for (;;) {
        if (has_come<Sparse>(load_line_sys(a.in[r] + offset), flag)) return 0;
        why = patience.lost(a.control, a.poison, a.wait_ns);
        if (why != 0) return 1u << r;
    }
}

template <int W, int FIRST, int LAST>
__device__ __forceinline__ void finish_rows(const ExchangeArgs& a, const Tile& s, u32 from, const Line (&lines)[W][4]) {
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
        if ((from >> r & 1) == 0) continue;
        u8* to = a.recv + (a.mode == GATHER ? r * a.recv_stride : 0);
#pragma unroll
        for (int j = FIRST; j < LAST; j++) {
            if (s.has_pack(j)) store_pack(to, s.first + 32 * j, a.bytes, unpack_lines(lines[r], j));
        }
    }
}

// Rows FIRST to LAST - 1 of the others' packs, from the first poll to the result.
template <int W, int FIRST, int LAST>
__device__ __forceinline__ u32 receive_rows(const ExchangeArgs& a, const Tile& s, u32 from, u32 flag,
                                            const uint4 (&own)[3], Patience& patience, u32& why) {
    Line lines[W][4];
#pragma unroll
    for (int r = 0; r < W; r++) pack_lines(own, flag - 1, lines[r]);
    const u32 missing = await_lines<W, FIRST, LAST>(a, s, from, flag, lines, patience, why);
    if (missing == 0) finish_rows<W, FIRST, LAST>(a, s, from, lines);
    return missing;
}

// Row J, whose lines have come.
template <int W, int J>
__device__ __forceinline__ void finish_row(const ExchangeArgs& a, const Tile& s, u32 from, const uint4 (&own)[3]) {
    if (!s.has_pack(J)) return;
    Line lines[W][4];
#pragma unroll
    for (int r = 0; r < W; r++) {
        pack_lines(own, 0, lines[r]);
        if ((from >> r & 1) == 0) continue;
        lines[r][J] = load_line_sys(a.in[r] + s.offset + 512 * J);
        lines[r][3] = load_line_sys(a.in[r] + s.offset + 512 * 3);
    }
    finish_rows<W, J, J + 1>(a, s, from, lines);
}

template <int W>
__device__ __forceinline__ u32 receive_round(const ExchangeArgs& a, u64 sequence, u32 round, Patience& patience, u32& why) {
    const Tile s = share_of(a, sequence, round);
    const u32 flag = (u32)sequence;
    u32 from = 0, missing = 0;
    for (u32 r = 0; r < a.members; r++) {
        if (r == a.me) continue;
        if (sends(a, r)) from |= 1u << r;
        // Where the member sends packs to this thread, its first line is awaited with them; else on its own.
        const bool alone = is_token(round) && (s.packs == 0 || !sends(a, r));
        if (missing == 0 && alone) missing = await_line(a, r, s.offset, flag, patience, why);
    }
    uint4 own[3];
    load_share(a.own, s, a.bytes, own);
    if (a.mode == GATHER && sends(a, a.me) && a.recv + a.me * a.recv_stride != a.own) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (s.has_pack(j)) store_pack(a.recv + a.me * a.recv_stride, s.first + 32 * j, a.bytes, own[j]);
        }
    }
    if constexpr (W <= 4) {
        if (missing == 0) missing = receive_rows<W, 0, 3>(a, s, from, flag, own, patience, why);
    } else {
        // The lines of all members together do not fit into a thread's registers: they are awaited one by one, and read
        // once more row by row.
        for (u32 r = 0; r < a.members; r++) {
            for (int j = 0; j < 4; j++) {
                if (missing != 0 || (from >> r & 1) == 0 || !s.has_line(j)) continue;
                missing = await_line(a, r, s.offset + 512 * j, flag, patience, why);
            }
        }
        if (missing == 0) finish_row<W, 0>(a, s, from, own);
        if (missing == 0) finish_row<W, 1>(a, s, from, own);
        if (missing == 0) finish_row<W, 2>(a, s, from, own);
    }
    return missing;
}

template <int W>
__device__ __forceinline__ void exchange_lines(const ExchangeArgs& a) {
    const u64 sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1;
    if (load_relaxed_gpu(a.poison) != 0) return;
    send_round(a, sequence, 0);
    if (refreshes<Sparse>(sequence)) refresh_all(a, sequence);
    count_operation(a.sequence, sequence);
    Patience patience;
    // With more than 4 members a warp carries one tile: the loop would take the registers that their lines need.
    const u32 rounds = W <= 4 ? a.rounds : 1;
    for (u32 round = 0; round < rounds; round++) {
        if (round + 1 < rounds) send_round(a, sequence, round + 1);
        u32 why = 0;
        const u32 missing = receive_round<W>(a, sequence, round, patience, why);
        if (missing != 0) {
            record_failure(a.poison, a.control, sequence, missing, why, patience.since);
            return;
        }
    }
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
