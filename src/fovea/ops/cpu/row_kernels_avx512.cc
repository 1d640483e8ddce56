#define FOVEA_ROW_KERNELS kRowKernelsAvx512
#define FOVEA_ROW_KERNELS_NAME "avx512"
#include "fovea/ops/cpu/row_kernels.inc"
