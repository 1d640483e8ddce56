#define FOVEA_ROW_KERNELS kRowKernelsPortable
#define FOVEA_ROW_KERNELS_NAME "portable"
#include "fovea/ops/cpu/row_kernels.inc"
