// The exchange for large payloads: raw packs in chunks, one flag word a block that says how many chunks are there.
//
// All blocks of the grid take part whatever the size; each owns one region of each half of a lane and a contiguous share
// of the packs. Within a block the warps have roles, so that writing, publishing, waiting and reading overlap:
//   senders    copy chunks of the share into the lanes
//   publisher  makes the chunks that all senders have finished visible: one fence for all, then the flag
//   watcher    one thread a member: polls its flag and tells the receivers
//   receivers  combine or copy out the chunks that have come from every member
#include "exchange.cuh"
#include "exchange_reduce.cuh"

namespace tp {

constexpr u32 FLAG_STRIDE = 128;
// The flag holds the sequence above and the number of chunks below this bit.
constexpr u32 CHUNK_BITS = 16;
constexpr u32 MAX_ROLE_WARPS = 16;

// What the block's roles tell each other.
struct Progress {
    u32 sent[MAX_ROLE_WARPS];    // chunks that each sender warp has written
    u32 arrived[MAX_MEMBERS];    // chunks that have come from each member
    u32 stop;                    // a watcher has given up
    u64 sequence;
    u32 poisoned;
};

struct Plan {
    u64 first;      // pack of the payload that the block's share starts with
    u32 packs;      // of the share
    u32 chunk;      // packs of a chunk
    u32 chunks;     // at least 1, so that the flag always moves
    u64 data;       // offset of the block's region in a lane
    u64 flag;       // offset of the block's flag in a lane
    u64 base;       // the flag's value before the first chunk
    u32 senders;    // warps that send; as many receive
};

__device__ __forceinline__ Plan plan_of(const ExchangeArgs& a, u64 sequence) {
    const u64 all = (a.bytes + 15) / 16;
    Plan p;
    p.first = a.share * blockIdx.x;
    p.packs = p.first >= all ? 0 : (u32)(all - p.first < a.share ? all - p.first : a.share);
    p.chunk = a.rounds;
    p.chunks = p.packs == 0 ? 1 : (p.packs + p.chunk - 1) / p.chunk;
    p.flag = (u64)blockIdx.x * FLAG_STRIDE;
    p.data = (u64)gridDim.x * FLAG_STRIDE + (sequence & 1) * a.half_bytes + blockIdx.x * a.region_bytes;
    p.base = sequence << CHUNK_BITS;
    p.senders = (blockDim.x / 32 - 2) / 2;
    return p;
}

__device__ __forceinline__ u32 chunk_end(const Plan& p, u32 chunk) {
    const u32 end = (chunk + 1) * p.chunk;
    return end < p.packs ? end : p.packs;
}

__device__ __forceinline__ u32 least_sent(const Progress& shared, u32 senders) {
    u32 least = load_acquire_block(&shared.sent[0]);
    for (u32 w = 1; w < senders; w++) {
        const u32 sent = load_acquire_block(&shared.sent[w]);
        least = sent < least ? sent : least;
    }
    return least;
}

// Copies packs `at`, `at + step`, … below `end` of the share into one lane.
__device__ __forceinline__ void send_packs(const ExchangeArgs& a, const Plan& p, const u8* from, u8* lane, u32 at, u32 end,
                                           u32 step) {
    constexpr int DEEP = 4;
    uint4* to = (uint4*)(lane + p.data);
    for (; at < end; at += DEEP * step) {
        uint4 packs[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < end) packs[i] = load_pack(from, p.first + at + i * step, a.bytes);
        }
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < end) store_relaxed_sys(to + at + i * step, packs[i]);
        }
    }
}

__device__ __forceinline__ void run_sender(const ExchangeArgs& a, const Plan& p, Progress& shared, u32 warp) {
    const u32 step = p.senders * 32, mine = threadIdx.x;
    for (u32 chunk = 0; chunk < p.chunks; chunk++) {
        if (sends(a, a.me)) {
            const u32 begin = chunk * p.chunk + mine, end = chunk_end(p, chunk);
            for (u32 r = 0; r < (a.send_stride == 0 ? a.outs : a.members); r++) {
                if (a.out[r] != nullptr && (a.send_stride == 0 || r != a.me)) {
                    send_packs(a, p, a.send + r * a.send_stride, a.out[r], begin, end, step);
                }
            }
        }
        __syncwarp();
        if ((threadIdx.x & 31) == 0) store_release_block(&shared.sent[warp], chunk + 1);
    }
}

__device__ __forceinline__ void run_publisher(const ExchangeArgs& a, const Plan& p, const Progress& shared) {
    if ((threadIdx.x & 31) != 0) return;
    const u32 lanes = a.send_stride == 0 ? a.outs : a.members;
    for (u32 published = 0; published < p.chunks;) {
        const u32 sent = least_sent(shared, p.senders);
        if (sent == published) continue;
        published = sent;
        fence_acq_rel_sys();
        for (u32 r = 0; r < lanes; r++) {
            if (a.out[r] != nullptr && (a.send_stride == 0 || r != a.me)) {
                store_relaxed_sys((u64*)(a.out[r] + p.flag), p.base + published);
            }
        }
    }
}

__device__ __forceinline__ void run_watcher(const ExchangeArgs& a, const Plan& p, Progress& shared, u64 sequence) {
    const u32 r = threadIdx.x & 31;
    if (r >= a.members || r == a.me) return;
    const u64* flag = (const u64*)(a.in[r] + p.flag);
    Patience patience;
    for (u32 seen = 0; seen < p.chunks;) {
        // Acquiring at every poll costs this block's L1 only, which holds nothing that the receivers read twice; a
        // second load of the flag would cost a trip over the link.
        const u64 value = load_acquire_sys(flag);
        if (value > p.base + seen) {
            seen = (u32)(value - p.base);
            store_release_block(&shared.arrived[r], seen);
            continue;
        }
        const u32 why = patience.lost(a.control, a.poison, a.wait_ns);
        if (why != 0) {
            record_failure(a.poison, a.control, sequence, 1u << r, why, patience.since);
            store_release_block(&shared.stop, 1);
            return;
        }
    }
}

// Returns once `chunk` has come from every member and this rank's own packs of it have been read by its senders, whose
// buffer the result may overwrite. False: a watcher has given up.
__device__ __forceinline__ bool await_chunk(const ExchangeArgs& a, const Plan& p, const Progress& shared, u32 chunk) {
    const u32 lane = threadIdx.x & 31;
    const u32* word = nullptr;
    if (lane < p.senders) word = &shared.sent[lane];
    if (lane >= 16 && lane - 16 < a.members && lane - 16 != a.me) word = &shared.arrived[lane - 16];
    for (;;) {
        const bool there = word == nullptr || load_acquire_block(word) > chunk;
        const bool stop = load_acquire_block(&shared.stop) != 0;
        if (__all_sync(~0u, there)) break;
        if (__any_sync(~0u, stop)) return false;
    }
    __syncwarp();
    return true;
}

// Packs `at`, `at + step`, … of every member, as many as stay in flight, combined or copied to the result.
template <int W, int DEEP>
__device__ __forceinline__ void receive_packs(const ExchangeArgs& a, const Plan& p, u32 at, u32 end, u32 step) {
    uint4 packs[DEEP][W];
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        const bool exists = at + i * step < end;
        uint4 own = zero_pack();
        if (exists && a.mode != EXCHANGE) own = load_pack(a.own, p.first + at + i * step, a.bytes);
#pragma unroll
        for (int r = 0; r < W; r++) {
            packs[i][r] = own;
            if (exists && r < a.members && r != a.me && sends(a, r)) {
                packs[i][r] = load_relaxed_sys((const uint4*)(a.in[r] + p.data) + at + i * step);
            }
        }
    }
    if (a.mode == REDUCE) {
        uint4 result[DEEP];
        reduce_packs<W, DEEP>(packs, result, a.members, a.element, a.op);
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < end) store_pack(a.recv, p.first + at + i * step, a.bytes, result[i]);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < W; r++) {
        if (r >= a.members || !sends(a, r)) continue;
        u8* to = a.recv + (a.mode == GATHER ? r * a.recv_stride : 0);
        if (r == a.me && (a.mode == EXCHANGE || to == a.own)) continue;
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < end) store_pack(to, p.first + at + i * step, a.bytes, packs[i][r]);
        }
    }
}

template <int W>
__device__ __forceinline__ void run_receiver(const ExchangeArgs& a, const Plan& p, const Progress& shared) {
    constexpr int DEEP = W <= 4 ? 2 : 1;
    const u32 step = p.senders * 32, mine = threadIdx.x - p.senders * 32;
    for (u32 chunk = 0; chunk < p.chunks; chunk++) {
        if (!await_chunk(a, p, shared, chunk)) return;
        const u32 end = chunk_end(p, chunk);
        for (u32 at = chunk * p.chunk + mine; at < end; at += DEEP * step) receive_packs<W, DEEP>(a, p, at, end, step);
    }
}

template <int W>
__device__ __forceinline__ void exchange_chunks(const ExchangeArgs& a) {
    __shared__ Progress shared;
    if (threadIdx.x == 0) {
        shared.sequence = load_relaxed_gpu(a.sequence + blockIdx.x) + 1;
        shared.poisoned = load_relaxed_gpu(a.poison);
        shared.stop = 0;
    }
    if (threadIdx.x < MAX_ROLE_WARPS) shared.sent[threadIdx.x] = 0;
    if (threadIdx.x < MAX_MEMBERS) shared.arrived[threadIdx.x] = 0;
    __syncthreads();
    if (shared.poisoned != 0) return;
    const u64 sequence = shared.sequence;
    // What fails later is poisoned, so the operation may count at once.
    if (threadIdx.x == 0) store_relaxed_gpu(a.sequence + blockIdx.x, sequence);
    const Plan p = plan_of(a, sequence);
    const u32 warp = threadIdx.x / 32;
    if (warp < p.senders) {
        run_sender(a, p, shared, warp);
    } else if (warp < 2 * p.senders) {
        run_receiver<W>(a, p, shared);
    } else if (warp == 2 * p.senders) {
        run_publisher(a, p, shared);
    } else {
        run_watcher(a, p, shared, sequence);
    }
}

}  // namespace tp

extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_chunks_2(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_chunks<2>(a);
}
extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_chunks_4(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_chunks<4>(a);
}
extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_chunks_8(const __grid_constant__ tp::ExchangeArgs a) {
    tp::exchange_chunks<8>(a);
}
