#include "fovea/attention/cuda/cuda_backend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "fovea/attention/append_kv.h"
#include "fovea/attention/cuda/decode.h"
#include "fovea/attention/cuda/periphery.h"
#include "fovea/attention/cuda/prefill_launch.h"
#include "fovea/attention/cuda/prefill_plan.h"
#include "fovea/attention/cuda/prefill_tiles.h"
#include "fovea/attention/cuda/quantize_kv_cuda.h"
#include "fovea/attention/cuda/quantize_launch.h"
#include "fovea/attention/cuda/split_kv.h"
#include "fovea/base/checked_math.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/cuda/tensor_map.h"

namespace fovea::cuda {
namespace {

struct Instance {
  DType dtype;
  int64_t head_dim;
  PrefillLauncher launch;
  PrefillLauncher launch_b64;  // for lists of blocks of 64
  PrefillLauncher launch_split;
};

constexpr Instance kInstances[] = {
    {DType::kBF16, 64, launch_prefill_bf16_d64, launch_prefill_bf16_d64_b64, launch_split_bf16_d64},
    {DType::kBF16, 128, launch_prefill_bf16_d128, launch_prefill_bf16_d128_b64,
     launch_split_bf16_d128},
    {DType::kBF16, 256, launch_prefill_bf16_d256, launch_prefill_bf16_d256, launch_split_bf16_d256},
    {DType::kF16, 64, launch_prefill_f16_d64, launch_prefill_f16_d64_b64, launch_split_f16_d64},
    {DType::kF16, 128, launch_prefill_f16_d128, launch_prefill_f16_d128_b64, launch_split_f16_d128},
    {DType::kF16, 256, launch_prefill_f16_d256, launch_prefill_f16_d256, launch_split_f16_d256},
    {DType::kF8E4M3, 128, launch_prefill_f8_d128, launch_prefill_f8_d128, launch_split_f8_d128},
};

constexpr Instance kF8WithPeriphery{DType::kF8E4M3, 128, launch_prefill_f8_d128_means,
                                    launch_prefill_f8_d128_means, nullptr};

const Instance* find_instance(const AttentionParams& params) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == params.kv.k.dtype && instance.head_dim == params.head_dim()) {
      return &instance;
    }
  }
  return nullptr;
}

bool has_blocks_of_64(const AttentionParams& params) {
  return params.selection != nullptr && params.selection->block_size == 64;
}

int32_t kv_tile_rows(const AttentionParams& params) {
  return has_blocks_of_64(params) ? 64 : prefill_kv_tile_rows(params.head_dim());
}

/// Rows of one box of K and V: a KV tile, or a page where that is smaller.
int32_t box_rows(const AttentionParams& params) {
  const int64_t tile = kv_tile_rows(params);
  return static_cast<int32_t>(params.kv.is_paged() ? std::min(tile, params.kv.page_size) : tile);
}

bool is_f8(const AttentionParams& params) { return params.kv.k.dtype == DType::kF8E4M3; }

std::string why_no_pages(const AttentionParams& params) {
  if (!params.kv.is_paged()) return {};
  const int64_t tile = kv_tile_rows(params);
  const int64_t page_size = params.kv.page_size;
  if (page_size % tile != 0 && (tile % page_size != 0 || page_size < 8)) {
    return fmt::format("page_size must divide {} (8 or more) or be a multiple of it, got {}", tile,
                       page_size);
  }
  return {};
}

std::string why_no_selection(const AttentionParams& params) {
  if (params.selection == nullptr) return {};
  const int64_t block_size = params.selection->block_size;
  if ((block_size != 64 && block_size % kQTileRows != 0) || block_size > INT32_MAX) {
    return fmt::format("block_size must be 64 or a multiple of {}, got {}", kQTileRows, block_size);
  }
  return {};
}

int64_t max_keys(const AttentionParams& params) {
  return params.kv.is_paged() ? params.kv.page_table_stride * params.kv.page_size
                              : params.kv.k.shape[0];
}

/// Blocks of one sequence that the tables allow, in whole tiles; 0 without periphery.
int64_t max_means(const AttentionParams& params) {
  if (!params.periphery.enabled()) return 0;
  const int64_t tile = kv_tile_rows(params);
  // The last block counts although it may be incomplete: lists name it.
  const int64_t blocks = ceil_div(max_keys(params), params.selection->block_size);
  return ceil_div(std::max<int64_t>(blocks, 1), tile) * tile;
}

std::string why_no_periphery(const AttentionParams& params) {
  if (!params.periphery.enabled()) return {};
  constexpr int64_t kMaxMeans = 65536;  // a bit of shared memory each, twice
  const int64_t means = max_means(params);
  const int64_t groups = params.batch.batch_size * params.kv.num_kv_heads();
  if (means > kMaxMeans || groups > INT32_MAX / means || params.batch.batch_size > 65535) {
    return fmt::format("has periphery of at most {} blocks a sequence and 2^31 in all, got {} x {}",
                       kMaxMeans, groups, means);
  }
  if (std::string reason = why_no_tensor_map(params.periphery.k_mean, "k_mean"); !reason.empty()) {
    return reason;
  }
  return why_no_tensor_map(params.periphery.v_mean, "v_mean");
}

/// KV tiles of one sequence that the tables allow, without a selection.
int64_t max_kv_tiles(const AttentionParams& params) {
  return ceil_div(max_keys(params), prefill_kv_tile_rows(params.head_dim()));
}

/// Few rows a sequence: K and V are the work, and one CTA per row would leave the others idle.
/// Lengths are on the GPU, so the average decides; either way is right for any.
bool uses_split_kv(const AttentionParams& params) {
  constexpr int64_t kMaxRowsPerSequence = 8;
  const int64_t total_q = params.q.shape[0];
  return params.selection == nullptr && params.group_size() <= kQTileRows &&
         total_q <= kMaxRowsPerSequence * params.batch.batch_size &&
         max_kv_tiles(params) <=
             INT32_MAX / std::max<int64_t>(total_q * params.kv.num_kv_heads(), 1);
}

std::string why_no_f8(const AttentionParams& params) {
  if (!is_f8(params)) return {};
  if (params.q.dtype != DType::kF8E4M3 &&
      (params.q.dtype != DType::kBF16 || !uses_split_kv(params))) {
    return fmt::format("f8e4m3 K and V go with a q of f8e4m3, in decode also bf16, got {}",
                       dtype_name(params.q.dtype));
  }
  if (params.out.dtype != DType::kBF16) {
    return fmt::format("f8e4m3 has results in bf16, got {}", dtype_name(params.out.dtype));
  }
  if (params.kv.page_size % kQTileRows != 0) {
    return fmt::format("f8e4m3 has pages of multiples of {} tokens, got {}", kQTileRows,
                       params.kv.page_size);
  }
  if (params.selection != nullptr && params.selection->block_size % kQTileRows != 0) {
    return fmt::format("f8e4m3 has lists of blocks of multiples of {} tokens, got {}", kQTileRows,
                       params.selection->block_size);
  }
  return {};
}

/// Runs that decode cuts a row's keys into at most, with one KV head: a CTA a processor.
int64_t max_decode_splits(const AttentionParams& params, int num_processors) {
  constexpr int64_t kLeastKeys = 64;
  const int64_t units = params.q.shape[0] * params.kv.num_kv_heads();
  return std::clamp<int64_t>(ceil_div(max_keys(params), kLeastKeys), 1,
                             std::max<int64_t>(num_processors / units, 1));
}

/// So few rows that each can be cut for several processors without looking at the others.
bool uses_decode(const AttentionParams& params, int num_processors) {
  constexpr int64_t kLeastSplits = 4;
  if (params.kv.page_size % decode_tile_keys(params.kv.k.dtype) != 0) return false;
  return uses_split_kv(params) && !params.batch_invariant && params.head_dim() <= 128 &&
         params.group_size() <= kMaxDecodeGroup &&
         params.q.shape[0] * params.kv.num_kv_heads() * kLeastSplits <= num_processors;
}

/// One row's new key and value may join their page in the same kernel.
bool decode_appends(const AttentionParams& params, int num_processors) {
  const AppendKvTask& task = *params.append;
  const KvView& kv = params.kv;
  return is_f8(params) && kv.k_scale.rank == 2 && kv.v_scale.rank == 2 && params.q.shape[0] == 1 &&
         task.k.dtype == DType::kBF16 && task.k.shape == task.v.shape && task.k.shape[0] == 1 &&
         task.k.shape[1] == kv.num_kv_heads() && task.k.shape[2] == kv.head_dim() &&
         uses_decode(params, num_processors);
}

/// Tiles, rows and positions are int32 in the kernel; addresses are not.
std::string why_too_large(const AttentionParams& params) {
  const int64_t total_q = params.q.shape[0];
  const int64_t num_tiles = max_q_tiles(total_q, params.batch.batch_size);
  if (total_q > INT32_MAX / 2 || num_tiles > INT32_MAX / (4 * params.num_q_heads())) {
    return fmt::format("{} query rows x {} heads are more than one launch can number", total_q,
                       params.num_q_heads());
  }
  if (max_keys(params) > INT32_MAX / 2) {
    return fmt::format("a sequence may have at most {} keys, the tables allow {}", INT32_MAX / 2,
                       max_keys(params));
  }
  return {};
}

F8Scale scale_of(const TensorView& view) {
  return {view.as<const float>(), view.rank == 2 ? view.stride[0] : 0};
}

PrefillParams make_params(const AttentionParams& params) {
  PrefillParams p;
  p.q_offsets = params.batch.q_offsets;
  p.kv_lens = params.batch.kv_lens;
  if (params.kv.is_paged()) {
    p.page_table = params.kv.page_table;
    p.page_table_stride = params.kv.page_table_stride;
    p.page_size = static_cast<int32_t>(params.kv.page_size);
    p.tiles_per_page = p.page_size / kv_tile_rows(params);
    p.num_pages = static_cast<int32_t>(params.kv.num_pages());
  } else {
    p.kv_offsets = params.kv.kv_offsets;
  }
  p.max_keys = static_cast<int32_t>(max_keys(params));
  p.box_rows = box_rows(params);
  p.batch_size = static_cast<int32_t>(params.batch.batch_size);
  p.total_q = static_cast<int32_t>(params.q.shape[0]);
  p.num_q_heads = static_cast<int32_t>(params.num_q_heads());
  p.group_size = static_cast<int32_t>(params.group_size());
  p.window_left = static_cast<int32_t>(
      params.window_left < 0 ? -1 : std::min<int64_t>(params.window_left, INT32_MAX / 2));
  p.causal = params.causal;
  constexpr float kLog2E = 1.44269504088896f;
  p.scale_log2 = params.scale() * kLog2E;
  p.q_scale = params.q_scale.as<const float>();
  p.k_scale = scale_of(params.kv.k_scale);
  p.v_scale = scale_of(params.kv.v_scale);
  p.out = params.out.data;
  p.out_row_stride = params.out.stride[0];
  p.out_head_stride = params.out.stride[1];
  if (!params.lse.empty()) {
    p.lse = params.lse.as<float>();
    p.lse_head_stride = params.lse.stride[0];
    p.lse_row_stride = params.lse.stride[1];
  }
  if (!params.sinks.empty()) {
    p.sinks = params.sinks.as<const float>();
    p.sinks_stride = params.sinks.stride[0];
  }
  if (params.selection != nullptr) {
    p.q_block_offsets = params.selection->q_block_offsets;
    p.list_begin = params.selection->begin;
    p.list_len = params.selection->len;
    p.list_blocks = params.selection->blocks;
    p.num_q_blocks = params.selection->num_q_blocks;
    p.block_size = static_cast<int32_t>(params.selection->block_size);
    p.tiles_per_block = p.block_size / kv_tile_rows(params);
  }
  if (params.periphery.enabled()) {
    p.max_means = static_cast<int32_t>(max_means(params));
    const auto block_size = static_cast<float>(p.block_size);
    p.mean_bias = is_f8(params) ? std::log2(block_size) : std::log(block_size) / params.scale();
  }
  return p;
}

/// q for split KV: the heads of a group are the rows of a tile.
TensorMapShape group_major_shape(const TensorView& q, int64_t group_size) {
  TensorMapShape shape;
  shape.columns = q.shape[2];
  shape.rows = group_size;
  shape.row_stride = q.stride[1];
  shape.heads = q.shape[1] / group_size;
  shape.head_stride = group_size * q.stride[1];
  shape.pages = q.shape[0];
  shape.page_stride = q.stride[0];
  return shape;
}

PrefillMaps make_maps(const AttentionParams& params, const TensorMapShape& q_shape) {
  const auto shape = params.kv.is_paged() ? paged_shape : token_major_shape;
  return {
      make_tensor_map(params.q, q_shape, kQTileRows),
      make_tensor_map(params.kv.k, shape(params.kv.k), box_rows(params)),
      make_tensor_map(params.kv.v, shape(params.kv.v),
                      is_f8(params) ? static_cast<int32_t>(params.head_dim()) : box_rows(params)),
      make_tensor_map(params.out, token_major_shape(params.out), kQTileRows / 2),
      {},
      {}};
}

DecodeMaps decode_maps(const AttentionParams& params) {
  const auto shape = params.kv.is_paged() ? paged_shape : token_major_shape;
  const TensorView &k = params.kv.k, &v = params.kv.v;
  const int32_t keys = decode_tile_keys(k.dtype);
  return {make_tensor_map(k, shape(k), keys),
          is_f8(params) ? make_tensor_map(v, shape(v), static_cast<int32_t>(params.head_dim()),
                                          kDecodeTurnedRowBytes)
                        : make_tensor_map(v, shape(v), keys)};
}

NewRow new_row(const TensorView& row, const TensorView& pages) {
  return {row.data, row.stride[1], pages.data, pages.stride[0], pages.stride[1], pages.stride[2]};
}

/// Packed means, K's or V's.
int64_t mean_elements(const AttentionParams& params) {
  const int64_t rows = params.batch.batch_size * params.kv.num_kv_heads() * max_means(params);
  return checked_mul(rows, params.head_dim(), "packed means");
}
int64_t mean_bytes(const AttentionParams& params) {
  return mean_elements(params) * dtype_bytes(params.kv.k.dtype);
}
/// Their scales, one for each tile and KV head; f8e4m3 only.
int64_t mean_scales(const AttentionParams& params) {
  return is_f8(params) ? mean_elements(params) / (kQTileRows * params.head_dim()) : 0;
}

/// Packs the means into `k` and `v` and lets the launch read them.
void pack_means(const AttentionParams& params, const PackedMeans& packed, PrefillParams& p,
                PrefillMaps& maps, const Context& context) {
  const Periphery& periphery = params.periphery;
  const MeanSource source{periphery.k_mean.data,
                          periphery.v_mean.data,
                          {periphery.k_mean.stride[0], periphery.k_mean.stride[1]},
                          {periphery.v_mean.stride[0], periphery.v_mean.stride[1]},
                          periphery.block_offsets};
  launch_pack_means(p, source, packed, static_cast<int>(params.head_dim()), stream_of(context));
  const int64_t rows = mean_elements(params) / params.head_dim();
  const auto map_of = [&](void* data) {
    const TensorView view =
        make_view(data, params.q.dtype, {rows, 1, params.head_dim()}, context.device);
    return make_tensor_map(view, token_major_shape(view), packed.tile_rows);
  };
  maps.k_mean = map_of(packed.k);
  maps.v_mean = map_of(packed.v);
}

/// The same in f8e4m3: a tile of means is a page like those of K and V, with scales of its own at
/// `k_scale` and `v_scale`.
void pack_means_f8(const AttentionParams& params, const PackedMeans& packed, float* k_scale,
                   float* v_scale, PrefillParams& p, PrefillMaps& maps, const Context& context) {
  const int64_t kv_heads = params.kv.num_kv_heads(), head_dim = params.head_dim();
  const int64_t tiles = p.max_means / kQTileRows;
  const auto pages = [&](void* data) {
    return make_view(data, DType::kF8E4M3,
                     {params.batch.batch_size * tiles, kv_heads, kQTileRows, head_dim},
                     context.device);
  };
  static_assert(kQTileRows == 128, "turned pages of V are square");
  const TensorView k = pages(packed.k), v = pages(packed.v);
  const auto side_of = [&](const TensorView& from, const TensorView& to, float* scale) {
    QuantizeSide means;
    means.from = from.data;
    means.from_page_stride = from.stride[0];
    means.from_head_stride = from.stride[1];
    means.to = to.as<uint8_t>();
    for (size_t i = 0; i < 3; ++i) means.to_strides[i] = to.stride[i];
    means.scale = scale;
    means.scale_page_stride = kv_heads;
    return means;
  };
  QuantizeMeansParams means;
  means.kv.k = side_of(params.periphery.k_mean, k, k_scale);
  means.kv.v = side_of(params.periphery.v_mean, v, v_scale);
  means.kv.from_page_table = params.kv.page_table;
  means.kv.from_page_size = 1;
  means.kv.page_size = kQTileRows;
  means.kv.head_dim = static_cast<int32_t>(head_dim);
  means.from_page_table_stride = params.kv.page_table_stride;
  means.kv_lens = params.batch.kv_lens;
  means.max_keys = p.max_keys;
  means.block_size = p.block_size;
  means.tiles_per_sequence = static_cast<int32_t>(tiles);
  means.batch_size = p.batch_size;
  launch_quantize_means(means, static_cast<int>(kv_heads), stream_of(context));
  p.k_mean_scale = {k_scale, kv_heads};
  p.v_mean_scale = {v_scale, kv_heads};
  maps.k_mean = make_tensor_map(k, paged_shape(k), kQTileRows);
  maps.v_mean = make_tensor_map(v, paged_shape(v), kQTileRows);
}

class CudaAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "cuda_sm90"; }

  std::string why_unsupported(const AttentionParams& params,
                              const Context& context) const override {
    if (context.device.type != DeviceType::kCuda) return "runs on CUDA devices only";
    if (std::string reason = why_no_device(context.device.index); !reason.empty()) return reason;
    if (find_instance(params) == nullptr) {
      return fmt::format(
          "has bf16 and f16 with head_dim 64, 128, 256, f8e4m3 with 128, got {} "
          "with {}",
          dtype_name(params.kv.k.dtype), params.head_dim());
    }
    if (std::string reason = why_no_f8(params); !reason.empty()) return reason;
    if (std::string reason = why_no_pages(params); !reason.empty()) return reason;
    if (std::string reason = why_no_selection(params); !reason.empty()) return reason;
    if (std::string reason = why_no_periphery(params); !reason.empty()) return reason;
    if (std::string reason = why_too_large(params); !reason.empty()) return reason;
    const std::pair<const TensorView*, const char*> views[] = {
        {&params.q, "q"}, {&params.kv.k, "k"}, {&params.kv.v, "v"}, {&params.out, "out"}};
    for (const auto& [view, name] : views) {
      if (std::string reason = why_no_tensor_map(*view, name); !reason.empty()) return reason;
    }
    return {};
  }

  bool appends(const AttentionParams& params, const Context& context) const override {
    return decode_appends(params, num_multiprocessors(context.device.index));
  }

  void run(const AttentionParams& params, const Context& context) const override {
    if (params.q.shape[0] == 0) return;
    const DeviceScope scope(context);
    if (uses_decode(params, num_multiprocessors(context.device.index))) {
      run_decode(params, context);
    } else if (uses_split_kv(params)) {
      run_split_kv(params, context);
    } else {
      run_prefill(params, context);
    }
  }

 private:
  static void run_decode(const AttentionParams& params, const Context& context) {
    const int64_t splits = max_decode_splits(params, num_multiprocessors(context.device.index));
    // Rows times KV heads times their group.
    const int64_t rows = splits * params.q.shape[0] * params.num_q_heads();
    const int64_t out_floats = rows * params.head_dim();
    Workspace workspace(Workspace::padded(out_floats * 4) + Workspace::padded(rows * 4),
                        "the pieces of decode attention", context);
    DecodeParams p;
    p.common = make_params(params);
    p.common.partial_out = workspace.take<float>(out_floats);
    p.common.partial_lse = workspace.take<float>(rows);
    p.q = params.q.data;
    p.q_row_stride = params.q.stride[0];
    p.q_head_stride = params.q.stride[1];
    p.q_is_f8 = params.q.dtype == DType::kF8E4M3;
    if (params.append != nullptr &&
        decode_appends(params, num_multiprocessors(context.device.index))) {
      p.new_k = new_row(params.append->k, params.kv.k);
      p.new_v = new_row(params.append->v, params.kv.v);
    }
    p.max_splits = static_cast<int>(splits);
    p.only_last_key_is_new = params.only_last_key_is_new;
    launch_decode(p, decode_maps(params), params.kv.k.dtype, static_cast<int>(params.head_dim()),
                  stream_of(context));
  }

  static void run_prefill(const AttentionParams& params, const Context& context) {
    const int64_t total_q = params.q.shape[0];
    const int64_t num_tiles = max_q_tiles(total_q, params.batch.batch_size);
    constexpr int64_t kCounterBytes = Workspace::padded(2 * sizeof(int32_t));
    PackedMeans means;
    means.tile_rows = kv_tile_rows(params);
    Workspace workspace(kCounterBytes + Workspace::padded(num_tiles * int64_t{sizeof(QTile)}) +
                            2 * Workspace::padded(mean_bytes(params)) +
                            2 * Workspace::padded(mean_scales(params) * 4),
                        "the query tiles and packed means of attention", context);
    PrefillParams p = make_params(params);
    p.plan.num_tiles = workspace.take<int32_t>(2);
    p.plan.next_work = p.plan.num_tiles + 1;
    p.plan.tiles = workspace.take<QTile>(num_tiles);
    const cudaStream_t stream = stream_of(context);
    launch_prefill_plan(p, params.batch.batch_size, total_q, stream);
    PrefillMaps maps = make_maps(params, token_major_shape(params.q));
    if (params.periphery.enabled()) {
      means.k = workspace.take<uint8_t>(mean_bytes(params));
      means.v = workspace.take<uint8_t>(mean_bytes(params));
      if (is_f8(params)) {
        auto* k_scale = workspace.take<float>(mean_scales(params));
        auto* v_scale = workspace.take<float>(mean_scales(params));
        pack_means_f8(params, means, k_scale, v_scale, p, maps, context);
      } else {
        pack_means(params, means, p, maps, context);
      }
    }
    const int64_t max_rows = num_tiles * params.num_q_heads() * (has_blocks_of_64(params) ? 2 : 1);
    const auto num_ctas =
        static_cast<int>(std::min<int64_t>(num_multiprocessors(context.device.index), max_rows));
    const Instance& instance =
        is_f8(params) && params.periphery.enabled() ? kF8WithPeriphery : *find_instance(params);
    (has_blocks_of_64(params) ? instance.launch_b64 : instance.launch)(maps, p, num_ctas, stream);
  }

  /// A q of bf16 over f8e4m3 is rounded first: the prefill kernel's products have one type.
  static void run_split_kv(AttentionParams params, const Context& context) {
    const bool rounds_q = is_f8(params) && params.q.dtype != DType::kF8E4M3;
    const int64_t q_bytes = rounds_q ? params.q.num_elements() : 0;
    Workspace rounded(q_bytes, "queries in f8e4m3", context);
    if (rounds_q) {
      const TensorView codes =
          make_view(rounded.take<uint8_t>(q_bytes), DType::kF8E4M3,
                    {params.q.shape[0], params.num_q_heads(), params.head_dim()}, context.device);
      quantize_q_cuda(params.q, {}, codes, context);
      params.q = codes;
    }
    const int64_t total_q = params.q.shape[0];
    const int num_ctas = num_multiprocessors(context.device.index);
    const int64_t kv_heads = params.kv.num_kv_heads();
    const int64_t pieces = params.batch_invariant
                               ? max_chunks(max_kv_tiles(params), total_q, kv_heads)
                               : max_pieces(num_ctas, total_q, kv_heads);
    const int64_t rows = checked_mul(pieces, params.group_size(), "partial outputs");
    const int64_t out_floats = checked_mul(rows, params.head_dim(), "partial outputs");
    Workspace workspace(Workspace::padded((total_q + 1) * 4) + Workspace::padded(out_floats * 4) +
                            Workspace::padded(rows * 4),
                        "the pieces of split-KV attention", context);
    PrefillParams p = make_params(params);
    auto* tile_offsets = workspace.take<int32_t>(total_q + 1);
    p.partial_out = workspace.take<float>(out_floats);
    p.partial_lse = workspace.take<float>(rows);
    p.chunk_tiles = params.batch_invariant ? kChunkTiles : 0;
    const float* sinks = p.sinks;
    p.sinks = nullptr;  // they join once, when the pieces do
    const cudaStream_t stream = stream_of(context);
    const int kv_tile_rows = prefill_kv_tile_rows(params.head_dim());
    if (total_q > 1) {
      p.tile_offsets = tile_offsets;
      launch_split_plan(p, kv_tile_rows, stream);
    }
    find_instance(params)->launch_split(
        make_maps(params, group_major_shape(params.q, params.group_size())), p, num_ctas, stream);
    p.sinks = sinks;
    const auto head_dim = static_cast<int>(params.head_dim());
    if (params.out.dtype == DType::kBF16) {
      launch_split_combine<__nv_bfloat16>(p, head_dim, num_ctas, kv_tile_rows, stream);
    } else {
      launch_split_combine<__half>(p, head_dim, num_ctas, kv_tile_rows, stream);
    }
  }
};

}  // namespace
}  // namespace fovea::cuda

namespace fovea {

const AttentionBackend& cuda_attention_backend() {
  static const cuda::CudaAttention backend;
  return backend;
}

}  // namespace fovea
