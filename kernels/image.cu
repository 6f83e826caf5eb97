// All kernels, as one unit: a GPU loads one image.
#include "exchange_chunks.cu"
#include "exchange_dense.cu"
#include "exchange_lines.cu"
#include "exchange_lines_fast.cu"
#include "exchange_posted.cu"
#include "exchange_two_shot.cu"
#include "ordered_sum.cu"
