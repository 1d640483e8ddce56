#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_prefill_f16_d64_b64, __half, 64, false, 64)
