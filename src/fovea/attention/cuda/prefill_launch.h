// Launchers of the prefill kernel, one per type and head_dim; each is compiled in instances/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

/// Tensor maps of one launch; boxes are 128 bytes wide (one panel).
struct PrefillMaps {
  CUtensorMap q;       // 128 rows; split: the heads of a group are the rows, q's rows the pages
  CUtensorMap k;       // params.box_rows rows
  CUtensorMap v;       // the same; f8e4m3: head_dim rows, as V is turned
  CUtensorMap out;     // 64 rows
  CUtensorMap k_mean;  // periphery only: packed means, rows of one KV tile; f8e4m3: pages like K's
  CUtensorMap v_mean;  // the same
};

using PrefillLauncher = void (*)(const PrefillMaps&, const PrefillParams&, int num_ctas,
                                 cudaStream_t);

void launch_prefill_bf16_d64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_bf16_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_bf16_d256(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f8_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
/// With periphery.
void launch_prefill_f8_d128_means(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f16_d64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f16_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f16_d256(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);

/// For lists of blocks of 64; head_dim 256 needs no others.
void launch_prefill_bf16_d64_b64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_bf16_d128_b64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f16_d64_b64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_prefill_f16_d128_b64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);

void launch_split_bf16_d64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_bf16_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_bf16_d256(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_f8_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_f16_d64(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_f16_d128(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);
void launch_split_f16_d256(const PrefillMaps&, const PrefillParams&, int, cudaStream_t);

/// KV rows of a tile for a head_dim; what page and block sizes must be multiples of, or divide.
constexpr int32_t prefill_kv_tile_rows(int64_t head_dim) { return head_dim == 256 ? 64 : 128; }

}  // namespace fovea::cuda
