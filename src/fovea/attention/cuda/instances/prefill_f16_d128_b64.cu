#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_prefill_f16_d128_b64, __half, 128, false, 64)
