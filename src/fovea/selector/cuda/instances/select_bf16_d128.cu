#include "fovea/selector/cuda/select_kernel.cuh"

FOVEA_SELECT_INSTANCE(launch_select_bf16_d128, __nv_bfloat16, 128)
