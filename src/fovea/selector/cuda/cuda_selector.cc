#include "fovea/selector/cuda/cuda_selector.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "fovea/base/checked_math.h"
#include "fovea/selector/cuda/block_facts.h"
#include "fovea/selector/cuda/select_launch.h"
#include "fovea/selector/selection_rules.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/cuda/tensor_map.h"

namespace fovea {

using cuda::check_cuda;

namespace {

constexpr int64_t kMaxBlocks = 16384;  // of one sequence: what one CTA can sort

/// Blocks that the tables allow one sequence, a multiple of a tile's.
int64_t max_kv_blocks(const SelectorParams& params) {
  const int64_t most =
      params.kv.is_paged() ? params.kv.page_table_stride : params.stats.centroid.shape[0];
  const bool scores = !params.stats.centroid.empty();
  const int64_t blocks = params.kv.is_paged() || scores
                             ? most
                             : ceil_div(params.kv.k.shape[0], params.settings.block_size);
  return ceil_div(std::max<int64_t>(blocks, 1), cuda::kFactTileBlocks) * cuda::kFactTileBlocks;
}

int64_t max_query_blocks(const SelectorParams& params) {
  return cuda::max_query_blocks(params.q.shape[0], params.batch.batch_size,
                                params.settings.block_size);
}

/// Owns device memory outside any stream's order.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(int64_t bytes, const char* purpose) : bytes_(bytes) {
    const cudaError_t status = cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      fail(ErrorCode::kOutOfMemory, "the GPU has no {} bytes left for {}", bytes, purpose);
    }
    check_cuda(status, purpose);
  }
  ~DeviceArray() {
    if (data_ != nullptr) static_cast<void>(cudaFree(data_));
  }
  DeviceArray(DeviceArray&& other) noexcept { swap(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    swap(other);
    return *this;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceArray& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace

struct DeviceSelection::Impl {
  Sizes sizes;
  Context context;
  DeviceArray q_block_offsets, begin, len, pool, counters, budget;
  BlockSelectionView view;
  // What the budget table in `budget` was made from.
  std::tuple<float, int64_t, int64_t> budget_key{0.f, -1, -1};
};

DeviceSelection::DeviceSelection(const Sizes& sizes, const Context& context)
    : impl_(std::make_unique<Impl>()) {
  const cuda::DeviceScope scope(context);
  impl_->sizes = sizes;
  impl_->context = context;
  const int64_t lists = checked_mul(sizes.num_q_heads, sizes.max_q_blocks, "number of lists");
  const int64_t pool = checked_add(sizes.pool_entries, sizes.max_kv_blocks + 1, "pool entries");
  impl_->q_block_offsets = DeviceArray((sizes.batch_size + 1) * 8, "the offsets of a selection");
  impl_->begin = DeviceArray(checked_mul(lists, 8, "list bytes"), "the lists of a selection");
  impl_->len = DeviceArray(checked_mul(lists, 4, "list bytes"), "the lists of a selection");
  impl_->pool = DeviceArray(checked_mul(pool, 4, "pool bytes"), "the pool of a selection");
  impl_->counters = DeviceArray(cuda::kNumCounters * 8, "the counters of a selection");
  impl_->budget = DeviceArray((sizes.max_kv_blocks + 1) * 4, "the budget of a selection");
  impl_->view.q_block_offsets = impl_->q_block_offsets.as<int64_t>();
  impl_->view.begin = impl_->begin.as<int64_t>();
  impl_->view.len = impl_->len.as<int32_t>();
  impl_->view.blocks = impl_->pool.as<int32_t>();
  impl_->view.num_blocks = pool;
}

int64_t DeviceSelection::bytes_for(const Sizes& sizes) {
  const int64_t lists = checked_mul(sizes.num_q_heads, sizes.max_q_blocks, "number of lists");
  const int64_t pool = checked_add(sizes.pool_entries, sizes.max_kv_blocks + 1, "pool entries");
  return checked_mul(lists, 12, "list bytes") + checked_mul(pool, 4, "pool bytes") +
         (sizes.batch_size + 1) * 8 + cuda::kNumCounters * 8 + (sizes.max_kv_blocks + 1) * 4;
}

DeviceSelection::~DeviceSelection() = default;
DeviceSelection::DeviceSelection(DeviceSelection&&) noexcept = default;
DeviceSelection& DeviceSelection::operator=(DeviceSelection&&) noexcept = default;

const BlockSelectionView& DeviceSelection::view() const { return impl_->view; }

int64_t DeviceSelection::size_bytes() const {
  int64_t bytes = 0;
  for (const DeviceArray* array : {&impl_->q_block_offsets, &impl_->begin, &impl_->len,
                                   &impl_->pool, &impl_->counters, &impl_->budget}) {
    bytes += array->bytes();
  }
  return bytes;
}

void DeviceSelection::copy_lengths(int32_t* lengths, int64_t* pairs) const {
  const cuda::DeviceScope scope(impl_->context);
  const cudaStream_t stream = cuda::stream_of(impl_->context);
  const BlockSelectionView& view = impl_->view;
  const auto copy = [&](void* to, const void* from, int64_t bytes) {
    check_cuda(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "copying the lengths of lists");
  };
  copy(lengths, view.len, view.num_q_heads * view.num_q_blocks * int64_t{sizeof(int32_t)});
  const auto* counters = impl_->counters.as<unsigned long long>();
  copy(pairs, counters + cuda::kForcedPairs, sizeof(int64_t));
  copy(pairs + 1, counters + cuda::kNonFinitePairs, sizeof(int64_t));
}

void DeviceSelection::download(BlockSelection& selection) const {
  const cuda::DeviceScope scope(impl_->context);
  const BlockSelectionView& view = impl_->view;
  const cudaStream_t stream = cuda::stream_of(impl_->context);
  check_cuda(cudaStreamSynchronize(stream), "running a selection");
  const auto fetch = [](auto& to, const auto* from, int64_t count) {
    to.resize(static_cast<size_t>(count));
    check_cuda(cudaMemcpy(to.data(), from, to.size() * sizeof(*from), cudaMemcpyDeviceToHost),
               "fetching a selection");
  };
  std::vector<unsigned long long> counters;
  fetch(counters, impl_->counters.as<unsigned long long>(), cuda::kNumCounters);
  if (counters[cuda::kOverflowedLists] > 0) {
    fail(ErrorCode::kOutOfMemory, "{} lists did not fit the pool: {} entries, {} needed",
         counters[cuda::kOverflowedLists], view.num_blocks, counters[cuda::kPoolUsed]);
  }
  std::vector<int64_t> begin;
  std::vector<int32_t> pool;
  fetch(selection.q_block_offsets, view.q_block_offsets, impl_->sizes.batch_size + 1);
  fetch(begin, view.begin, view.num_q_heads * view.num_q_blocks);
  fetch(selection.len, view.len, view.num_q_heads * view.num_q_blocks);
  fetch(pool, view.blocks, static_cast<int64_t>(counters[cuda::kPoolUsed]));
  // The kernel numbers lists by max_q_blocks; the caller gets those that exist.
  const int64_t num_q_blocks = selection.q_block_offsets.back();
  selection.block_size = view.block_size;
  selection.num_q_heads = view.num_q_heads;
  selection.num_q_blocks = num_q_blocks;
  selection.forced_pairs = static_cast<int64_t>(counters[cuda::kForcedPairs]);
  selection.non_finite_pairs = static_cast<int64_t>(counters[cuda::kNonFinitePairs]);
  selection.kept_pairs = 0;
  selection.begin.clear();
  selection.blocks.clear();
  for (int64_t h = 0; h < view.num_q_heads; ++h) {
    for (int64_t i = 0; i < num_q_blocks; ++i) {
      const auto from = static_cast<size_t>(h * view.num_q_blocks + i);
      const int32_t len = selection.len[from];
      selection.begin.push_back(selection.kept_pairs);
      selection.len[static_cast<size_t>(h * num_q_blocks + i)] = len;
      const auto first = pool.begin() + begin[from];
      selection.blocks.insert(selection.blocks.end(), first, first + len);
      selection.kept_pairs += len;
    }
  }
  selection.len.resize(selection.begin.size());
}

namespace {

constexpr int64_t kSharedBytes = 227 * 1024;  // of a CTA on Hopper

bool has_uplift(SelectorMethod method) {
  return method == SelectorMethod::kRescue || method == SelectorMethod::kBound;
}

/// What the scoring kernel needs at least: Q, a tile for each warpgroup, scores and their mask, and
/// all the rest.
int64_t shared_bytes(const SelectorParams& params) {
  constexpr int64_t kRest = 8192;
  const int64_t row_bytes = params.q.shape[2] * 2;
  const int64_t q_rows = std::max<int64_t>(params.settings.block_size, cuda::kSelectQueryRows);
  const int64_t scores = has_uplift(params.settings.method) ? 2 : 1;
  return (q_rows + 2 * cuda::kFactTileBlocks) * row_bytes +
         (scores * 4 + 1) * max_kv_blocks(params) + kRest;
}

bool is_fixed(SelectorMethod method) {
  return method == SelectorMethod::kAll || method == SelectorMethod::kStreaming;
}

/// Rows that a block is scored by: its mean, or witnesses and the mean of the others.
int32_t rows_per_block(const SelectorSettings& settings) {
  return settings.method == SelectorMethod::kWitness
             ? static_cast<int32_t>(1 + settings.num_witnesses)
             : 1;
}

cuda::SelectParams make_params(const SelectorParams& params, const BlockSelectionView& view) {
  const SelectorSettings& settings = params.settings;
  cuda::SelectParams p;
  p.q_offsets = params.batch.q_offsets;
  p.kv_lens = params.batch.kv_lens;
  p.prompt_lens = params.prompt_lens;
  p.batch_size = static_cast<int32_t>(params.batch.batch_size);
  p.num_q_heads = static_cast<int32_t>(params.q.shape[1]);
  p.num_kv_heads = static_cast<int32_t>(params.kv.num_kv_heads());
  p.group_size = p.num_q_heads / p.num_kv_heads;
  p.block_size = static_cast<int32_t>(settings.block_size);
  const double scale = params.softmax_scale > 0
                           ? static_cast<double>(params.softmax_scale)
                           : 1 / std::sqrt(static_cast<double>(params.kv.head_dim()));
  p.scale = params.softmax_scale;
  p.scale_log2 = static_cast<float>(scale * std::log2(std::exp(1.0)));
  p.is_bound = settings.method == SelectorMethod::kBound;
  p.can_skip = settings.density == 0;
  // Scores are rounded; where a score has several parts, each left out may cost it 2^-24 of the
  // threshold.
  const bool has_parts =
      settings.method == SelectorMethod::kWitness || settings.block_size > cuda::kSelectQueryRows;
  p.skip_slack = has_parts ? 24.f : 0.02f;
  p.log2_alpha_base = std::log2(settings.alpha_base);
  // `bound` has the uplifted branch only, with the one alpha.
  p.log2_alpha_rescue = p.is_bound ? p.log2_alpha_base : std::log2(settings.alpha_rescue);
  p.forced_in_maximum = settings.forced_in_maximum;
  p.rescue_share = static_cast<double>(settings.rescue_share);
  p.sink_blocks = settings.sink_blocks;
  p.local_blocks = settings.local_blocks;
  p.dense_tail_blocks = settings.dense_tail_blocks;
  p.min_sparse_len = settings.min_sparse_len;
  p.is_fixed = is_fixed(settings.method);
  if (settings.method == SelectorMethod::kAll) {
    p.sink_blocks = INT32_MAX;
  } else if (settings.method == SelectorMethod::kStreaming) {
    p.sink_blocks = ceil_div(settings.streaming_sink_tokens, settings.block_size);
    p.local_blocks = ceil_div(settings.streaming_local_tokens - 1, settings.block_size) + 1;
  }
  if (settings.method == SelectorMethod::kWitness) {
    p.rest_bias_log2 = std::log2(static_cast<float>(settings.block_size - settings.num_witnesses));
  }
  p.facts.rows_per_block = rows_per_block(settings);
  p.begin = const_cast<int64_t*>(view.begin);
  p.len = const_cast<int32_t*>(view.len);
  p.pool = const_cast<int32_t*>(view.blocks);
  p.pool_size = view.num_blocks;
  p.num_q_blocks = view.num_q_blocks;
  return p;
}

cuda::StatsSource make_source(const SelectorParams& params) {
  cuda::StatsSource source;
  const BlockStatsView& stats = params.stats;
  const bool is_witness = params.settings.method == SelectorMethod::kWitness;
  const auto set = [](auto*& pointer, int64_t(&strides)[2], const TensorView& view) {
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(view.data);
    strides[0] = view.stride[0];
    strides[1] = view.stride[1];
  };
  set(source.mean, source.mean_strides, is_witness ? stats.rest_mean : stats.centroid);
  set(source.centroid, source.centroid_strides, stats.centroid);
  if (is_witness) set(source.witness, source.witness_strides, stats.witness);
  set(source.radius, source.radius_strides, stats.radius);
  set(source.non_finite, source.non_finite_strides, stats.non_finite);
  if (params.kv.is_paged()) {
    source.page_table = params.kv.page_table;
    source.page_table_stride = params.kv.page_table_stride;
  } else {
    source.block_offsets = params.block_offsets;
  }
  return source;
}

cuda::SelectLauncher find_launcher(DType dtype, int64_t head_dim) {
  const bool is_bf16 = dtype == DType::kBF16;
  switch (head_dim) {
    case 64:
      return is_bf16 ? cuda::launch_select_bf16_d64 : cuda::launch_select_f16_d64;
    case 128:
      return is_bf16 ? cuda::launch_select_bf16_d128 : cuda::launch_select_f16_d128;
    default:
      return is_bf16 ? cuda::launch_select_bf16_d256 : cuda::launch_select_f16_d256;
  }
}

/// Bytes of what lives only during a selection.
struct Scratch {
  int64_t rows, slots, numbers, prefix, blocks;
  Scratch(const SelectorSettings& settings, int64_t num_kv_heads, int64_t head_dim,
          const DeviceSelection::Sizes& sizes) {
    const int64_t groups = sizes.batch_size * num_kv_heads;
    const int64_t kv_blocks = checked_mul(groups, sizes.max_kv_blocks, "blocks of a selection");
    rows = checked_mul(kv_blocks * rows_per_block(settings), head_dim * 2, "rows of a selection");
    slots = kv_blocks * static_cast<int64_t>(sizeof(cuda::BlockSlot));
    numbers = kv_blocks * 4;
    prefix = (kv_blocks + groups) * static_cast<int64_t>(sizeof(cuda::PrefixFacts));
    blocks = sizes.max_q_blocks * static_cast<int64_t>(sizeof(cuda::QueryBlock));
  }
  int64_t total() const {
    using cuda::Workspace;
    return Workspace::padded(rows) + Workspace::padded(slots) + 3 * Workspace::padded(numbers) +
           Workspace::padded(prefix) + Workspace::padded(blocks) + Workspace::padded(8);
  }
};

}  // namespace

std::string CudaSelector::why_unsupported(const SelectorParams& params,
                                          const Context& context) const {
  if (context.device.type != DeviceType::kCuda) return "runs on CUDA devices only";
  if (std::string reason = cuda::why_no_device(context.device.index); !reason.empty()) {
    return reason;
  }
  const SelectorSettings& settings = params.settings;
  const int64_t head_dim = params.q.shape[2];
  const DType dtype = params.q.dtype;
  if (dtype != DType::kBF16 && dtype != DType::kF16) {
    return fmt::format("has bf16 and f16, got {}", dtype_name(dtype));
  }
  if (settings.block_size != 64 && settings.block_size != 128 && settings.block_size != 256) {
    return fmt::format("has block_size 64, 128, 256, got {}", settings.block_size);
  }
  if (settings.method == SelectorMethod::kOracle || is_lab(settings)) {
    return fmt::format("has no {}{}", selector_method_name(settings.method),
                       is_lab_method(settings.method) ? "" : " in the variant asked for");
  }
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    return fmt::format("has head_dim 64, 128, 256, got {}", head_dim);
  }
  if (!is_fixed(settings.method) && settings.aggregation != Aggregation::kSum) {
    return "has aggregation sum only";
  }
  if (!is_fixed(settings.method) && settings.lists_per_kv_head) return "has lists per q head only";
  if (max_kv_blocks(params) > kMaxBlocks) {
    return fmt::format("a sequence may have at most {} blocks, the tables allow {}", kMaxBlocks,
                       max_kv_blocks(params));
  }
  if (shared_bytes(params) > kSharedBytes) {
    return fmt::format(
        "{} blocks a sequence with head_dim {} and block_size {} need {} bytes of "
        "shared memory, there are {}",
        max_kv_blocks(params), head_dim, settings.block_size, shared_bytes(params), kSharedBytes);
  }
  if (max_query_blocks(params) > INT32_MAX / (2 * params.q.shape[1])) {
    return "too many query blocks for one launch";
  }
  if (params.batch.batch_size > 65535) return "has at most 65535 sequences";
  return cuda::why_no_tensor_map(params.q, "q");
}

DeviceSelection::Sizes CudaSelector::sizes_for(const SelectorParams& params, double density) {
  DeviceSelection::Sizes sizes;
  sizes.num_q_heads = params.q.shape[1];
  sizes.batch_size = params.batch.batch_size;
  sizes.max_q_blocks = max_query_blocks(params);
  sizes.max_kv_blocks = max_kv_blocks(params);
  const double pairs_per_row = static_cast<double>(sizes.max_kv_blocks + 1);
  // Query blocks of one sequence see half of its blocks on average; chunks may see all.
  const double rows = static_cast<double>(sizes.num_q_heads * sizes.max_q_blocks);
  sizes.pool_entries = static_cast<int64_t>(std::ceil(density * pairs_per_row * rows));
  return sizes;
}

int64_t CudaSelector::scratch_bytes(const SelectorSettings& settings, int64_t num_kv_heads,
                                    int64_t head_dim, const DeviceSelection::Sizes& sizes) {
  return Scratch(settings, num_kv_heads, head_dim, sizes).total();
}

void CudaSelector::run(const SelectorParams& params, const Context& context,
                       BlockSelection& selection) const {
  DeviceSelection on_device(sizes_for(params, 1.0), context);
  run(params, context, on_device);
  on_device.download(selection);
  selection.causal_pairs = 0;
  std::vector<int64_t> q_offsets(static_cast<size_t>(params.batch.batch_size) + 1);
  std::vector<int64_t> kv_lens(static_cast<size_t>(params.batch.batch_size));
  check_cuda(cudaMemcpy(q_offsets.data(), params.batch.q_offsets, q_offsets.size() * 8,
                        cudaMemcpyDeviceToHost),
             "fetching q_offsets");
  check_cuda(
      cudaMemcpy(kv_lens.data(), params.batch.kv_lens, kv_lens.size() * 8, cudaMemcpyDeviceToHost),
      "fetching kv_lens");
  for (size_t s = 0; s < kv_lens.size(); ++s) {
    const int64_t q_len = q_offsets[s + 1] - q_offsets[s];
    if (q_len == 0) continue;
    const int64_t end = end_q_block(kv_lens[s], params.settings.block_size);
    const int64_t first = first_q_block(q_len, kv_lens[s], params.settings.block_size);
    selection.causal_pairs += params.q.shape[1] * (end * (end + 1) - first * (first + 1)) / 2;
  }
}

void CudaSelector::run(const SelectorParams& params, const Context& context,
                       DeviceSelection& selection) const {
  DeviceSelection::Impl& impl = *selection.impl_;
  const DeviceSelection::Sizes needed = sizes_for(params, 0);
  check_argument(impl.sizes.num_q_heads == needed.num_q_heads &&
                     impl.sizes.batch_size >= needed.batch_size &&
                     impl.sizes.max_q_blocks >= needed.max_q_blocks &&
                     impl.sizes.max_kv_blocks >= needed.max_kv_blocks,
                 "the device selection is too small: {} heads, {} sequences, {} and {} blocks",
                 impl.sizes.num_q_heads, impl.sizes.batch_size, impl.sizes.max_q_blocks,
                 impl.sizes.max_kv_blocks);
  const cuda::DeviceScope scope(context);
  const cudaStream_t stream = cuda::stream_of(context);
  const SelectorSettings& settings = params.settings;
  impl.view.block_size = settings.block_size;
  impl.view.num_q_heads = needed.num_q_heads;
  impl.view.num_q_blocks = needed.max_q_blocks;
  cuda::SelectParams p = make_params(params, impl.view);
  p.q_block_offsets = impl.q_block_offsets.as<int64_t>();
  p.counters = impl.counters.as<unsigned long long>();
  p.facts.max_blocks = static_cast<int32_t>(needed.max_kv_blocks);

  const std::tuple<float, int64_t, int64_t> key{settings.density, settings.sink_blocks,
                                                settings.local_blocks};
  if (settings.density > 0 && !p.is_fixed) {
    if (impl.budget_key != key) {
      const std::vector<int32_t> counts = budget_counts(settings, impl.sizes.max_kv_blocks + 1);
      check_cuda(cudaMemcpyAsync(impl.budget.as<int32_t>(), counts.data(), counts.size() * 4,
                                 cudaMemcpyHostToDevice, stream),
                 "uploading a budget");
      check_cuda(cudaStreamSynchronize(stream), "uploading a budget");  // `counts` ends here
      impl.budget_key = key;
    }
    p.budget = impl.budget.as<int32_t>();
  }

  const Scratch bytes(settings, params.kv.num_kv_heads(), params.q.shape[2], needed);
  cuda::Workspace workspace(bytes.total(), "the scratch of a selection", context);
  p.plan.num_blocks = workspace.take<int32_t>(2);
  p.plan.next_work = p.plan.num_blocks + 1;
  p.plan.blocks = reinterpret_cast<cuda::QueryBlock*>(workspace.take<char>(bytes.blocks));
  launch_select_plan(p, impl.sizes.batch_size, max_query_blocks(params), stream);
  if (params.q.shape[0] == 0) return;

  const DType dtype = params.q.dtype;
  const int64_t head_dim = params.q.shape[2];
  cuda::SelectMaps maps = {};
  if (!p.is_fixed) {
    p.facts.rows = workspace.take<char>(bytes.rows);
    p.facts.slots = reinterpret_cast<cuda::BlockSlot*>(workspace.take<char>(bytes.slots));
    p.facts.radius = workspace.take<float>(bytes.numbers / 4);
    p.facts.extent = workspace.take<float>(bytes.numbers / 4);
    p.facts.order = workspace.take<int32_t>(bytes.numbers / 4);
    p.facts.prefix = reinterpret_cast<cuda::PrefixFacts*>(workspace.take<char>(bytes.prefix));
    const cuda::FactsSettings facts_settings{settings.quantile_low,
                                             settings.quantile_high,
                                             settings.uplift_clamp,
                                             settings.quantiles == QuantileMode::kPrompt,
                                             settings.method == SelectorMethod::kRescue,
                                             has_uplift(settings.method)};
    launch_block_facts(p, make_source(params), static_cast<int>(head_dim), dtype == DType::kBF16,
                       facts_settings, stream);
    const TensorView rows =
        make_view(p.facts.rows, dtype, {bytes.rows / (head_dim * 2), 1, head_dim}, context.device);
    maps.q =
        cuda::make_tensor_map(params.q, cuda::token_major_shape(params.q), cuda::kSelectQueryRows);
    maps.rows = cuda::make_tensor_map(rows, cuda::token_major_shape(rows), cuda::kFactTileBlocks);
  }
  find_launcher(dtype, head_dim)(maps, p, has_uplift(settings.method),
                                 cuda::num_multiprocessors(context.device.index), stream);
}

const CudaSelector& cuda_selector() {
  static const CudaSelector selector;
  return selector;
}

}  // namespace fovea
