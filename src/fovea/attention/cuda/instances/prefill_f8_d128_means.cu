#include "fovea/attention/cuda/prefill_kernel.cuh"

FOVEA_PREFILL_INSTANCE(launch_prefill_f8_d128_means, fovea::Float8E4M3, 128, false, 128, true)
