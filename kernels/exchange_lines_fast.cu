// The short kernels of sparse lines, for buffers that start at multiples of 16. On the wire they are the same as
// exchange_lines.cu, so a rank whose buffers are not so takes that one.
#include "exchange_lines_fast.cuh"

// One tile a warp, and several, where that is of use.
TP_FAST_ALL(lines, 2, tp::Sparse, false, false)
TP_FAST_ALL(lines, 4, tp::Sparse, false, false)
TP_FAST_ALL(lines, 8, tp::Sparse, false, false)
TP_FAST_ALL(tiles, 2, tp::Sparse, true, false)
TP_FAST_ALL(tiles, 4, tp::Sparse, true, false)
