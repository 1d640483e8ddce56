#include "fovea/selector/cuda/select_kernel.cuh"

FOVEA_SELECT_INSTANCE(launch_select_f16_d128, __half, 128)
