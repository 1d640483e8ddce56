#define FOVEA_ROW_KERNELS kRowKernelsAvx2
#define FOVEA_ROW_KERNELS_NAME "avx2"
#include "fovea/ops/cpu/row_kernels.inc"
