#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_prefill_bf16_d128_b64, __nv_bfloat16, 128, false, 64)
