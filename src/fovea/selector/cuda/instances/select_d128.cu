#include "fovea/selector/cuda/select_kernel.cuh"

FOVEA_SELECT_INSTANCE(launch_select_d128, 128)
