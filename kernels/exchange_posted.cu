// The exchange by post: what travels is staged in host memory and posted to a proxy thread, which hands it to a wire; what
// arrives lies in the rank's own region of host memory, its number in a line beside it. For ranks of several hosts.
//
// One launch is one entry of the doorbell: one message to each peer that takes part and one from each, empty where
// that rank sends nothing. So the piggybacked answer suffices, and two slots each way do: to post message n+1 a peer must have
// taken message n-1, since its launch for n-1 had ended.
//
// All blocks stage; the last one to arrive posts and rings. Block 0 alone polls the region's lines, since one GPU's
// reads of one line over a link wait for each other, and tells the other blocks through device memory.
#include "exchange.cuh"
#include "exchange_reduce.cuh"

namespace tp {

constexpr u32 POSTED_RANKS = 64;
constexpr u32 LINE_BYTES = 128;
constexpr u32 INLINE_BYTES = 88;
constexpr u32 OUT_OF_STEP = 3;

// Device memory of one transport; zeroed when it is opened.
struct PostedState {
    u32 poison;
    u32 arrived;                  // blocks that have staged
    u64 rung;                     // entries of the doorbell so far
    u64 masks[2];                 // who took part in the last entry of each parity
    u64 sequence[POSTED_RANKS];   // messages to and from each rank so far
    u64 seen[POSTED_RANKS];       // the last message of each rank that block 0 has seen
};

// One launch. The host's `PostedArgs` is the same struct.
struct PostedArgs {
    const u8* send;               // what travels; for rank r at send + r * send_stride
    const u8* own;                // this rank's own operand
    u8* recv;                     // the result
    u64 bytes;                    // payload of each message that is not empty
    u64 send_stride;              // 0: every reader gets the same bytes
    u64 recv_stride;              // GATHER: distance of two ranks' blocks
    u8* region;                   // this rank's region; the offsets below count from it
    PostedState* state;
    u64 wait_ns;
    u64 call[2];                  // what ranks must agree on, as it travels in headers
    u32 lines;                    // offset of the arrival lines
    u32 posts;                    // offset of the post lines
    u32 staging;                  // offset of the staging slots
    u32 inbox;                    // offset of the receive slots
    u32 slot;                     // bytes of a slot
    u32 doorbell;                 // offsets of words
    u32 completed;
    u32 control;                  // the abort word; the failure record lies CONTROL_RECORD words behind it
    u32 post_mask;                // of the two entries' masks
    u32 consumed;                 // of the words that count consumed messages, one a rank
    u32 world;
    u32 me;
    u32 peers;                    // mask of the ranks that take part beside this one
    u32 senders;                  // mask of the ranks whose bytes travel
    u32 mode;
    u32 element;
    u32 op;
    u32 part;                     // number of this piece of the call
};
static_assert(sizeof(PostedArgs) == 160, "the host's PostedArgs asserts the same size");

struct PostedPlan {
    u64 entry;
    u64 packs;
    u64 share;                    // distance of two readers' parts in a staging slot
    bool poisoned;
};

__device__ __forceinline__ bool takes_part(u32 mask, u32 rank) { return (mask >> rank & 1) != 0; }

__device__ __forceinline__ u32* control_of(const PostedArgs& a) { return (u32*)(a.region + a.control); }

// Whether the staging slot of this entry may still be on its way: a peer of the entry before last that took no part in the
// last one has not told that it has the bytes.
__device__ __forceinline__ bool staging_is_free(const PostedArgs& a, u64 entry) {
    const u64 before = load_relaxed_gpu(&a.state->masks[entry & 1]);
    const u64 last = load_relaxed_gpu(&a.state->masks[(entry + 1) & 1]);
    if (entry <= 2 || (before & ~last) == 0) return true;
    Patience patience;
    while (load_acquire_sys((const u64*)(a.region + a.completed)) + 2 < entry) {
        const u32 why = patience.lost(control_of(a), &a.state->poison, a.wait_ns);
        if (why == 0) continue;
        record_failure(&a.state->poison, control_of(a), entry, (u32)before, why, patience.since);
        return false;
    }
    return true;
}

__device__ __forceinline__ void stage_packs(const PostedArgs& a, const u8* from, u8* to, u64 packs) {
    constexpr int DEEP = 4;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < packs; at += DEEP * step) {
        uint4 held[DEEP];
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < packs) held[i] = load_pack(from, at + i * step, a.bytes);
        }
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < packs) store_relaxed_sys((uint4*)to + at + i * step, held[i]);
        }
    }
}

__device__ __forceinline__ void stage(const PostedArgs& a, const PostedPlan& p) {
    if (!takes_part(a.senders, a.me)) return;
    u8* slot = a.region + a.staging + (p.entry & 1) * a.slot;
    if (a.send_stride == 0) {
        stage_packs(a, a.send, slot, p.packs);
        return;
    }
    for (u32 r = 0; r < a.world; r++) {
        if (takes_part(a.peers, r)) stage_packs(a, a.send + r * a.send_stride, slot + r * p.share, p.packs);
    }
}

// One peer's post: its number, the header, where the payload lies, the kind (0: a message).
__device__ __forceinline__ void write_post(const PostedArgs& a, const PostedPlan& p, u32 peer, u64 sequence) {
    u64* post = (u64*)(a.region + a.posts + ((p.entry & 1) * a.world + peer) * 2 * LINE_BYTES);
    const u64 length = takes_part(a.senders, a.me) ? a.bytes : 0;
    const u64 offset = a.send_stride == 0 ? 0 : peer * p.share;
    store_relaxed_sys(post, sequence);
    store_relaxed_sys(post + 1, a.call[0]);
    store_relaxed_sys(post + 2, a.call[1]);
    store_relaxed_sys(post + 3, length << 32 | a.part);
    store_relaxed_sys(post + 4, sequence - 1);
    store_relaxed_sys(post + 5, offset);
}

// Thread 0 of the last block to arrive: everything is staged, and every block has read the counters.
__device__ __forceinline__ void ring(const PostedArgs& a, const PostedPlan& p) {
    PostedState& s = *a.state;
    for (u32 r = 0; r < a.world; r++) {
        if (!takes_part(a.peers, r)) continue;
        const u64 sequence = load_relaxed_gpu(&s.sequence[r]) + 1;
        store_relaxed_gpu(&s.sequence[r], sequence);
        // What the launch before this one took is consumed since it ended.
        store_relaxed_sys((u64*)(a.region + a.consumed) + r, sequence - 1);
        write_post(a, p, r, sequence);
    }
    store_relaxed_sys((u64*)(a.region + a.post_mask) + (p.entry & 1), (u64)a.peers);
    store_relaxed_gpu(&s.masks[p.entry & 1], (u64)a.peers);
    store_relaxed_gpu(&s.rung, p.entry);
    store_release_sys((u64*)(a.region + a.doorbell), p.entry);
}

__device__ __forceinline__ const u8* line_of(const PostedArgs& a, u32 rank, u64 sequence) {
    return a.region + a.lines + ((sequence & 1) * a.world + rank) * LINE_BYTES;
}

// The message's call is read with its number; where it differs it is read again, ordered after the number.
__device__ __forceinline__ bool in_step(const PostedArgs& a, const u8* line, const Line& head, u64 rest) {
    if (head.hi == a.call[0] && rest == a.call[1]) return true;
    (void)load_acquire_sys((const u64*)line);
    return load_relaxed_sys((const u64*)(line + 8)) == a.call[0] && load_relaxed_sys((const u64*)(line + 16)) == a.call[1];
}

// One thread of block 0 a rank.
__device__ __forceinline__ void await_message(const PostedArgs& a, u32 rank, u64 sequence) {
    const u8* line = line_of(a, rank, sequence);
    Patience patience;
    for (;;) {
        const Line head = load_line_sys(line);
        const u64 rest = load_relaxed_sys((const u64*)(line + 16));
        u32 why = 0;
        if (head.lo == sequence) {
            if (in_step(a, line, head, rest)) break;
            why = OUT_OF_STEP;
            patience.since = now_ns();
        } else {
            why = patience.lost(control_of(a), &a.state->poison, a.wait_ns);
        }
        if (why == 0) continue;
        record_failure(&a.state->poison, control_of(a), sequence, 1u << rank, why, patience.since);
        return;
    }
    (void)load_acquire_sys((const u64*)line);
    store_release_gpu(&a.state->seen[rank], sequence);
}

// One thread of each other block a rank. False: the transport is poisoned.
__device__ __forceinline__ void await_block_0(const PostedArgs& a, u32 rank, u64 sequence) {
    while (load_acquire_gpu(&a.state->seen[rank]) < sequence) {
        if (load_relaxed_gpu(&a.state->poison) != 0) return;
    }
}

// A pack of a message: 8-byte loads serve both places where a payload may lie.
__device__ __forceinline__ uint4 load_message_pack(const u8* p) {
    const u64 lo = load_relaxed_sys((const u64*)p), hi = load_relaxed_sys((const u64*)p + 1);
    return make_uint4((u32)lo, (u32)(lo >> 32), (u32)hi, (u32)(hi >> 32));
}

template <int W, int DEEP>
__device__ __forceinline__ void take_packs(const PostedArgs& a, const u8* const (&from)[W], u64 at, u64 packs, u64 step) {
    uint4 held[DEEP][W];
    const bool small = a.bytes <= INLINE_BYTES;
#pragma unroll
    for (int i = 0; i < DEEP; i++) {
        const bool exists = at + i * step < packs;
        uint4 own = zero_pack();
        if (exists && a.mode != EXCHANGE) own = load_pack(a.own, at + i * step, a.bytes);
#pragma unroll
        for (int r = 0; r < W; r++) {
            held[i][r] = own;
            if (!exists || from[r] == nullptr) continue;
            const u8* p = from[r] + 16 * (at + i * step);
            held[i][r] = small ? load_message_pack(p) : load_relaxed_sys((const uint4*)p);
        }
    }
    if (a.mode == REDUCE) {
        uint4 result[DEEP];
        reduce_packs<W, DEEP>(held, result, a.world, a.element, a.op);
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < packs) store_pack(a.recv, at + i * step, a.bytes, result[i]);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < W; r++) {
        const bool mine = r == a.me && a.mode == GATHER && takes_part(a.senders, a.me);
        if (from[r] == nullptr && !mine) continue;
        u8* to = a.recv + (a.mode == GATHER ? r * a.recv_stride : 0);
        if (mine && to == a.own) continue;
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (at + i * step < packs) store_pack(to, at + i * step, a.bytes, held[i][r]);
        }
    }
}

template <int W>
__device__ __forceinline__ void take(const PostedArgs& a, const PostedPlan& p, const u64 (&sequence)[W]) {
    constexpr int DEEP = W <= 2 ? 4 : W <= 4 ? 2 : 1;
    const u8* from[W];
#pragma unroll
    for (int r = 0; r < W; r++) {
        from[r] = nullptr;
        if (r >= a.world || !takes_part(a.peers & a.senders, r)) continue;
        from[r] = a.bytes <= INLINE_BYTES ? line_of(a, r, sequence[r]) + 40
                                          : a.region + a.inbox + (2 * (u64)r + (sequence[r] & 1)) * a.slot;
    }
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < p.packs; at += DEEP * step) {
        take_packs<W, DEEP>(a, from, at, p.packs, step);
    }
}

template <int W>
__device__ __forceinline__ void exchange_posted(const PostedArgs& a) {
    __shared__ PostedPlan plan;
    __shared__ u64 next[W];
    __shared__ u32 poisoned;
    if (threadIdx.x == 0) {
        plan.entry = load_relaxed_gpu(&a.state->rung) + 1;
        plan.packs = (a.bytes + 15) / 16;
        plan.share = 16 * plan.packs;
        plan.poisoned = load_relaxed_gpu(&a.state->poison) != 0 || !staging_is_free(a, plan.entry);
    }
    if (threadIdx.x < W) next[threadIdx.x] = load_relaxed_gpu(&a.state->sequence[threadIdx.x]) + 1;
    __syncthreads();
    if (plan.poisoned) return;
    stage(a, plan);
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool last = add_acq_rel_gpu(&a.state->arrived, 1) == gridDim.x - 1;
        if (last) {
            store_relaxed_gpu(&a.state->arrived, 0u);
            ring(a, plan);
        }
    }
    // The lanes of the second warp wait, so that none of them waits for the one that rings.
    const u32 rank = threadIdx.x - 32;
    if (threadIdx.x >= 32 && rank < a.world && takes_part(a.peers, rank)) {
        if (blockIdx.x == 0) {
            await_message(a, rank, next[rank]);
        } else {
            await_block_0(a, rank, next[rank]);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) poisoned = load_relaxed_gpu(&a.state->poison);
    __syncthreads();
    if (poisoned != 0) return;
    u64 sequence[W];
#pragma unroll
    for (int r = 0; r < W; r++) sequence[r] = next[r];
    take<W>(a, plan, sequence);
}

}  // namespace tp

extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_posted_2(const __grid_constant__ tp::PostedArgs a) {
    tp::exchange_posted<2>(a);
}
extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_posted_4(const __grid_constant__ tp::PostedArgs a) {
    tp::exchange_posted<4>(a);
}
extern "C" __global__ void __launch_bounds__(512, 1) tp_exchange_posted_8(const __grid_constant__ tp::PostedArgs a) {
    tp::exchange_posted<8>(a);
}
