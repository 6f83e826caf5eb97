// Reductions of packs by the oracle's rules: rank 0's value with rank 1's, the result with rank 2's, and so on; bf16 and
// f16 are combined as f32 and rounded once, to nearest even; integers wrap; a NaN result is the type's canonical quiet
// NaN; max and min propagate NaN and order -0 below +0.
#pragma once

#include "memory_order.cuh"

namespace tp {

// The host's order of element types and operations.
enum Element : u32 { U8 = 0, I32 = 1, I64 = 2, F16 = 3, BF16 = 4, F32 = 5, F64 = 6 };
enum Op : u32 { SUM = 0, MAX = 1, MIN = 2 };

__device__ __forceinline__ u32 pack_word(const uint4& p, u32 i) {
    return i == 0 ? p.x : i == 1 ? p.y : i == 2 ? p.z : p.w;
}

// How each type is widened into its accumulator, combined and narrowed. `LARGER` chooses between max and min.
struct FloatOps {
    using Acc = float;
    static __device__ __forceinline__ Acc sum(Acc a, Acc b) { return __fadd_rn(a, b); }
    static __device__ __forceinline__ Acc extreme(Acc a, Acc b, bool larger) {
        Acc hi, lo;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(hi) : "f"(a), "f"(b));
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(lo) : "f"(a), "f"(b));
        return larger ? hi : lo;
    }
};

struct AsF32 : FloatOps {
    static constexpr u32 BITS = 32;
    static __device__ __forceinline__ Acc widen(u32 bits) { return __uint_as_float(bits); }
    static __device__ __forceinline__ u32 narrow(Acc v) { return v != v ? 0x7fc00000u : __float_as_uint(v); }
};

// Two 16-bit floats that were added in their own type, with its NaN made the oracle's. Adding two numbers so rounds as adding
// them as f32 and rounding that does, since f32 has more than twice their digits. The hardware's NaN has all 15 bits below
// the sign set, and no other result has.
__device__ __forceinline__ u32 canonical_pair(u32 sums, u32 canonical) {
    const u32 nans = ((sums & 0x7fff7fffu) + 0x00010001u) & 0x80008000u;
    return sums - (nans >> 15) * (0x7fffu - canonical);
}

struct AsBf16 : FloatOps {
    static constexpr u32 BITS = 16;
    static __device__ __forceinline__ u32 sum_pair(u32 a, u32 b) {
        u32 sums;
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
        return canonical_pair(sums, 0x7fc0u);
    }
    static __device__ __forceinline__ Acc widen(u32 bits) { return __uint_as_float(bits << 16); }
    static __device__ __forceinline__ u32 narrow(Acc v) {
        u16 bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        return v != v ? 0x7fc0u : bits;
    }
};

struct AsF16 : FloatOps {
    static constexpr u32 BITS = 16;
    static __device__ __forceinline__ u32 sum_pair(u32 a, u32 b) {
        u32 sums;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
        return canonical_pair(sums, 0x7e00u);
    }
    static __device__ __forceinline__ Acc widen(u32 bits) {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)bits));
        return v;
    }
    static __device__ __forceinline__ u32 narrow(Acc v) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        return v != v ? 0x7e00u : bits;
    }
};

template <typename T>
struct IntegerOps {
    using Acc = T;
    static __device__ __forceinline__ Acc extreme(Acc a, Acc b, bool larger) { return (a > b) == larger ? a : b; }
};

struct AsI32 : IntegerOps<i32> {
    static constexpr u32 BITS = 32;
    static __device__ __forceinline__ Acc sum(Acc a, Acc b) { return (i32)((u32)a + (u32)b); }
    static __device__ __forceinline__ Acc widen(u32 bits) { return (i32)bits; }
    static __device__ __forceinline__ u32 narrow(Acc v) { return (u32)v; }
};

struct AsU8 : IntegerOps<u32> {
    static constexpr u32 BITS = 8;
    static __device__ __forceinline__ Acc widen(u32 bits) { return bits; }
    static __device__ __forceinline__ u32 narrow(Acc v) { return v; }
};

struct AsI64 : IntegerOps<i64> {
    static __device__ __forceinline__ Acc sum(Acc a, Acc b) { return (i64)((u64)a + (u64)b); }
    static __device__ __forceinline__ Acc widen(u64 bits) { return (i64)bits; }
    static __device__ __forceinline__ u64 narrow(Acc v) { return (u64)v; }
};

struct AsF64 {
    using Acc = double;
    static __device__ __forceinline__ Acc sum(Acc a, Acc b) { return __dadd_rn(a, b); }
    // Signed integers order as the doubles do once a negative one's magnitude is flipped; -0 comes below +0.
    static __device__ __forceinline__ i64 key(Acc v) {
        const i64 bits = __double_as_longlong(v);
        return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
    }
    static __device__ __forceinline__ Acc extreme(Acc a, Acc b, bool larger) {
        if (a != a) return a;
        if (b != b) return b;
        return (key(a) > key(b)) == larger ? a : b;
    }
    static __device__ __forceinline__ Acc widen(u64 bits) { return __longlong_as_double((i64)bits); }
    static __device__ __forceinline__ u64 narrow(Acc v) {
        return v != v ? 0x7ff8000000000000ull : (u64)__double_as_longlong(v);
    }
};

template <typename T, bool SUMS, typename Bits>
__device__ __forceinline__ typename T::Acc combine(typename T::Acc acc, Bits bits, bool larger) {
    if constexpr (SUMS) {
        return T::sum(acc, T::widen(bits));
    } else {
        return T::extreme(acc, T::widen(bits), larger);
    }
}

// One pack of every member, in rank order; W is the capacity, `members` how many there are.
template <int W, typename T, bool SUMS>
__device__ __forceinline__ uint4 reduce_narrow(const uint4 (&packs)[W], u32 members, bool larger) {
    constexpr u32 PER_WORD = 32 / T::BITS;
    constexpr u32 MASK = T::BITS == 32 ? ~0u : (1u << (T::BITS % 32)) - 1;
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if constexpr (W == 2 && SUMS && T::BITS == 16) {
            words[i] = T::sum_pair(pack_word(packs[0], i), pack_word(packs[1], i));
            continue;
        }
        words[i] = 0;
#pragma unroll
        for (u32 e = 0; e < PER_WORD; e++) {
            const u32 shift = e * T::BITS;
            typename T::Acc acc = T::widen((pack_word(packs[0], i) >> shift) & MASK);
#pragma unroll
            for (int r = 1; r < W; r++) {
                if (W == 2 || r < members) {
                    acc = combine<T, SUMS>(acc, (pack_word(packs[r], i) >> shift) & MASK, larger);
                }
            }
            words[i] |= T::narrow(acc) << shift;
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <int W, typename T, bool SUMS>
__device__ __forceinline__ uint4 reduce_wide(const uint4 (&packs)[W], u32 members, bool larger) {
    u64 out[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        typename T::Acc acc{};
#pragma unroll
        for (int r = 0; r < W; r++) {
            const uint4 p = packs[r];
            const u64 bits = i == 0 ? ((u64)p.y << 32 | p.x) : ((u64)p.w << 32 | p.z);
            if (r == 0) {
                acc = T::widen(bits);
            } else if (W == 2 || r < members) {
                acc = combine<T, SUMS>(acc, bits, larger);
            }
        }
        out[i] = T::narrow(acc);
    }
    return make_uint4((u32)out[0], (u32)(out[0] >> 32), (u32)out[1], (u32)(out[1] >> 32));
}

// N packs of every member. The choice of type and operation is made once for all of them.
template <int W, int N>
__device__ __forceinline__ void reduce_packs(const uint4 (&packs)[N][W], uint4 (&result)[N], u32 members, u32 element,
                                             u32 op) {
    const bool larger = op == MAX;
#define TP_EACH(CALL)                                   \
    {                                                   \
        _Pragma("unroll") for (int n = 0; n < N; n++) { \
            const uint4(&p)[W] = packs[n];              \
            result[n] = CALL;                           \
        }                                               \
        break;                                          \
    }
    if (op == SUM) {
        switch (element) {
            case BF16: TP_EACH((reduce_narrow<W, AsBf16, true>(p, members, larger)))
            case F16: TP_EACH((reduce_narrow<W, AsF16, true>(p, members, larger)))
            case F32: TP_EACH((reduce_narrow<W, AsF32, true>(p, members, larger)))
            case I32: TP_EACH((reduce_narrow<W, AsI32, true>(p, members, larger)))
            case I64: TP_EACH((reduce_wide<W, AsI64, true>(p, members, larger)))
            default: TP_EACH((reduce_wide<W, AsF64, true>(p, members, larger)))
        }
    } else {
        switch (element) {
            case BF16: TP_EACH((reduce_narrow<W, AsBf16, false>(p, members, larger)))
            case F16: TP_EACH((reduce_narrow<W, AsF16, false>(p, members, larger)))
            case F32: TP_EACH((reduce_narrow<W, AsF32, false>(p, members, larger)))
            case I32: TP_EACH((reduce_narrow<W, AsI32, false>(p, members, larger)))
            case I64: TP_EACH((reduce_wide<W, AsI64, false>(p, members, larger)))
            case U8: TP_EACH((reduce_narrow<W, AsU8, false>(p, members, larger)))
            default: TP_EACH((reduce_wide<W, AsF64, false>(p, members, larger)))
        }
    }
#undef TP_EACH
}

}  // namespace tp
