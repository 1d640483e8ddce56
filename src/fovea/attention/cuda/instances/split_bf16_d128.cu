#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_split_bf16_d128, __nv_bfloat16, 128, true)
