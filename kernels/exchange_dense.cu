// The exchange by dense lines: payloads that are large enough for the bytes of the flags to count. All kernels are the
// same on the wire, so each rank takes the one that its own buffers allow.
#include "exchange_lines_fast.cuh"

// One tile a warp, several, and several with buffers that start anywhere.
TP_FAST_ALL(dense, 2, tp::Dense, false, false)
TP_FAST_ALL(dense, 4, tp::Dense, false, false)
TP_FAST_ALL(dense_tiles, 2, tp::Dense, true, false)
TP_FAST_ALL(dense_tiles, 4, tp::Dense, true, false)
TP_FAST_ALL(dense_anywhere, 2, tp::Dense, true, true)
TP_FAST_ALL(dense_anywhere, 4, tp::Dense, true, true)
