#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_prefill_bf16_d256, __nv_bfloat16, 256, false)
