#include "benchmarks/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

#include "fovea/base/parallel.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/fill_random.h"

namespace fovea {
namespace {

constexpr int64_t kBlockSize = 128;

double now_ms() {
  using std::chrono::duration;
  return duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Tensor random_tensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed,
                     const Context& context) {
  constexpr float kUnitVariance = 1.732f;
  Tensor tensor(dtype, shape, context.device);
  fill_random(tensor.view(), kUnitVariance, seed, 0, context);
  return tensor;
}

template <typename T>
Tensor on_device(std::vector<T> values, DType dtype, const Context& context) {
  const auto count = static_cast<int64_t>(values.size());
  Tensor tensor(dtype, {count}, context.device);
  if (count > 0) copy_tensor(make_view(values.data(), dtype, {count}), tensor.view(), context);
  return tensor;
}

BlockSelection random_lists(const KernelShape& shape) {
  std::mt19937 random(7);
  BlockSelection selection;
  selection.block_size = kBlockSize;
  selection.num_q_heads = shape.num_q_heads;
  const int64_t first = first_q_block(shape.q_len, shape.kv_len, kBlockSize);
  const int64_t end = end_q_block(shape.kv_len, kBlockSize);
  selection.num_q_blocks = end - first;
  selection.q_block_offsets = {0, end - first};
  for (int64_t h = 0; h < shape.num_q_heads; ++h) {
    for (int64_t i = first; i < end; ++i) {
      std::vector<int32_t> past(static_cast<size_t>(i));
      for (int64_t b = 0; b < i; ++b) past[static_cast<size_t>(b)] = static_cast<int32_t>(b);
      std::shuffle(past.begin(), past.end(), random);
      const auto wanted =
          static_cast<int64_t>(shape.density * static_cast<double>(i + 1) + 0.5) - 1;
      past.resize(static_cast<size_t>(std::clamp<int64_t>(wanted, 0, i)));
      std::sort(past.begin(), past.end());
      past.push_back(static_cast<int32_t>(i));
      selection.begin.push_back(static_cast<int64_t>(selection.blocks.size()));
      selection.len.push_back(static_cast<int32_t>(past.size()));
      selection.blocks.insert(selection.blocks.end(), past.begin(), past.end());
      selection.causal_pairs += i + 1;
      selection.kept_pairs += static_cast<int64_t>(past.size());
    }
  }
  return selection;
}

// Of one call, over as many as fill `least_ms`.
double mean_ms(const std::function<void()>& body, double least_ms) {
  const double start = now_ms();
  double passed = 0;
  int calls = 0;
  while (passed < least_ms) {
    body();
    ++calls;
    passed = now_ms() - start;
  }
  return passed / calls;
}

}  // namespace

Timing to_timing(std::vector<double> times_ms) {
  std::sort(times_ms.begin(), times_ms.end());
  return {times_ms[times_ms.size() / 2], times_ms.front(), times_ms.back(),
          static_cast<int32_t>(times_ms.size())};
}

Timing time_repeatedly(const std::function<void()>& body, double min_seconds) {
  body();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || (total < min_seconds * 1e3 && times.size() < 200)) {
    const double start = now_ms();
    body();
    times.push_back(now_ms() - start);
    total += times.back();
  }
  return to_timing(std::move(times));
}

Comparison time_in_turn(const std::function<void()>& work, const std::function<void()>& yardstick,
                        double min_seconds) {
  constexpr double kLeastMs = 20;  // of each in a round
  const double start = now_ms();
  work();
  yardstick();
  std::vector<double> work_ms, yardstick_ms, ratios;
  while (ratios.size() < 3 || now_ms() - start < min_seconds * 1e3) {
    work_ms.push_back(mean_ms(work, kLeastMs));
    yardstick_ms.push_back(mean_ms(yardstick, kLeastMs));
    ratios.push_back(yardstick_ms.back() / work_ms.back());
  }
  std::sort(ratios.begin(), ratios.end());
  Comparison comparison;
  comparison.work = to_timing(std::move(work_ms));
  comparison.yardstick = to_timing(std::move(yardstick_ms));
  comparison.ratio = ratios[ratios.size() / 2];
  comparison.ratio_low = ratios[ratios.size() / 4];
  comparison.ratio_high = ratios[ratios.size() * 3 / 4];
  return comparison;
}

struct GemmWork::Impl {
  virtual ~Impl() = default;
  virtual void run() = 0;
  explicit Impl(int64_t n) : size(n) {}
  double flops() const { return 2 * std::pow(static_cast<double>(size), 3); }
  int64_t size;
};

struct GemmWork::CpuImpl final : Impl {
  // Operands in the layout oneDNN likes best, as its own benchmarks do.
  CpuImpl(DType dtype, int64_t n) : Impl(n) {
    const auto type = dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::desc any({n, n}, type, Memory::format_tag::any);
    const Memory::desc result({n, n}, Memory::data_type::f32, Memory::format_tag::ab);
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(any, any, result), engine_);
    matmul_ = dnnl::matmul(chosen);
    a_ = Memory(chosen.src_desc(), engine_);
    b_ = Memory(chosen.weights_desc(), engine_);
    c_ = Memory(chosen.dst_desc(), engine_);
    for (const Memory& operand : {a_, b_}) {
      std::memset(operand.get_data_handle(), 0x3c, operand.get_desc().get_size());
    }
  }
  void run() override {
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }

 private:
  using Memory = dnnl::memory;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  Memory a_, b_, c_;
};

struct GemmWork::GpuImpl final : Impl {
  explicit GpuImpl(const Context& context)
      : Impl(8192),
        ops_(make_row_ops(DType::kBF16, context)),
        in_(random_tensor(DType::kBF16, {size, size}, 1, context)),
        weights_(random_tensor(DType::kBF16, {size, size}, 2, context)),
        out_(DType::kBF16, {size, size}, context.device) {
    ops_->begin_step(size);
  }
  void run() override { ops_->matmul(in_.view(), weights_, out_.view()); }

 private:
  std::unique_ptr<RowOps> ops_;
  Tensor in_;
  PackedWeights weights_;
  Tensor out_;
};

GemmWork::GemmWork(DType dtype, const Context& context) {
  if (context.device.type != DeviceType::kCpu) {
    impl_ = std::make_unique<GpuImpl>(context);
    return;
  }
  double best = 0;
  for (const int64_t size : {1024, 2048, 4096}) {
    auto candidate = std::make_unique<CpuImpl>(dtype, size);
    const double ms = time_repeatedly([&] { candidate->run(); }, 0.3).median_ms;
    if (giga_per_s(candidate->flops(), ms) <= best) continue;
    best = giga_per_s(candidate->flops(), ms);
    impl_ = std::move(candidate);
  }
}
GemmWork::~GemmWork() = default;
void GemmWork::run() const { impl_->run(); }
double GemmWork::flops() const { return impl_->flops(); }

CopyWork::CopyWork(const Context& context) : context_(context) {
  const int64_t bytes =
      context.device.type == DeviceType::kCpu ? int64_t{128} << 20 : int64_t{2} << 30;
  from_ = random_tensor(DType::kF32, {bytes / 4}, 1, context);
  to_ = Tensor(DType::kF32, {bytes / 4}, context.device);
}

void CopyWork::run() const {
  if (context_.device.type != DeviceType::kCpu) {
    copy_tensor(from_.view(), to_.view(), context_);
    return;
  }
  constexpr int64_t kPieces = 32;
  const int64_t piece = from_.size_bytes() / kPieces;
  parallel_for(context_, kPieces, [&](int64_t i, int32_t) {
    std::memcpy(to_.as<std::byte>() + i * piece, from_.as<const std::byte>() + i * piece,
                static_cast<size_t>(piece));
  });
}

double CopyWork::bytes() const { return 2.0 * static_cast<double>(from_.size_bytes()); }

struct AttentionWork::Impl {
  KernelShape shape;
  Context context;
  double density = 1;
  Tensor q, out, k, v, k_mean, v_mean;
  Tensor q_offsets, kv_lens, kv_offsets, page_table;
  Tensor q_block_offsets, list_begin, list_len, list_blocks;
  BlockSelectionView selection;
  AttentionParams params;

  Impl(const KernelShape& wanted, const Context& where) : shape(wanted), context(where) {
    const int64_t total_q = shape.batch_size * shape.q_len;
    q = random_tensor(shape.dtype, {total_q, shape.num_q_heads, shape.head_dim}, 1, context);
    out = Tensor(shape.dtype, {total_q, shape.num_q_heads, shape.head_dim}, context.device);
    params.q = q.view();
    params.out = out.view();
    params.window_left = shape.window_left;
    make_batch();
    make_kv();
    if (shape.density < 1) make_lists();
  }

  void make_batch() {
    std::vector<int64_t> offsets, lens;
    for (int64_t s = 0; s <= shape.batch_size; ++s) offsets.push_back(s * shape.q_len);
    lens.assign(static_cast<size_t>(shape.batch_size), shape.kv_len);
    q_offsets = on_device(std::move(offsets), DType::kI64, context);
    kv_lens = on_device(std::move(lens), DType::kI64, context);
    params.batch = {shape.batch_size, q_offsets.as<int64_t>(), kv_lens.as<int64_t>()};
  }

  void make_kv() {
    if (shape.page_size == 0) {
      const int64_t total_kv = shape.batch_size * shape.kv_len;
      k = random_tensor(shape.dtype, {total_kv, shape.num_kv_heads, shape.head_dim}, 2, context);
      v = random_tensor(shape.dtype, {total_kv, shape.num_kv_heads, shape.head_dim}, 3, context);
      std::vector<int64_t> offsets;
      for (int64_t s = 0; s < shape.batch_size; ++s) offsets.push_back(s * shape.kv_len);
      kv_offsets = on_device(std::move(offsets), DType::kI64, context);
      params.kv = {k.view(), v.view(), kv_offsets.as<int64_t>(), nullptr, 0, 0};
      return;
    }
    const int64_t pages_each = ceil_div(shape.kv_len, shape.page_size);
    const int64_t num_pages = shape.batch_size * pages_each;
    for (Tensor* pages : {&k, &v}) {
      *pages = random_tensor(shape.dtype,
                             {num_pages, shape.num_kv_heads, shape.page_size, shape.head_dim},
                             pages == &k ? 2 : 3, context);
    }
    std::vector<int32_t> table(static_cast<size_t>(num_pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    page_table = on_device(std::move(table), DType::kI32, context);
    params.kv = {k.view(),   v.view(),       nullptr, page_table.as<int32_t>(),
                 pages_each, shape.page_size};
  }

  void make_lists() {
    BlockSelection lists = random_lists(shape);
    density = lists.density();
    selection = lists.view();
    q_block_offsets = on_device(std::move(lists.q_block_offsets), DType::kI64, context);
    list_begin = on_device(std::move(lists.begin), DType::kI64, context);
    list_len = on_device(std::move(lists.len), DType::kI32, context);
    list_blocks = on_device(std::move(lists.blocks), DType::kI32, context);
    selection.q_block_offsets = q_block_offsets.as<int64_t>();
    selection.begin = list_begin.as<int64_t>();
    selection.len = list_len.as<int32_t>();
    selection.blocks = list_blocks.as<int32_t>();
    params.selection = &selection;
    if (!shape.has_periphery) return;
    const int64_t num_blocks =
        params.kv.is_paged() ? params.kv.num_pages() : ceil_div(shape.kv_len, kBlockSize);
    for (Tensor* means : {&k_mean, &v_mean}) {
      *means = random_tensor(shape.dtype, {num_blocks, shape.num_kv_heads, shape.head_dim},
                             means == &k_mean ? 4 : 5, context);
    }
    // Contiguous: the means of the only sequence begin where its keys do, at 0.
    params.periphery = {k_mean.view(), v_mean.view(), params.kv.kv_offsets};
  }
};

AttentionWork::AttentionWork(const KernelShape& shape, const Context& context)
    : impl_(std::make_unique<Impl>(shape, context)) {}
AttentionWork::~AttentionWork() = default;
void AttentionWork::run() const { attend(impl_->params, impl_->context); }
const AttentionParams& AttentionWork::params() const { return impl_->params; }

std::string_view AttentionWork::backend() const {
  return choose_attention_backend(impl_->params, impl_->context).name();
}

double AttentionWork::density() const { return impl_->density; }

double AttentionWork::flops() const {
  const KernelShape& shape = impl_->shape;
  const int64_t most = shape.window_left >= 0 ? shape.window_left + 1 : shape.kv_len;
  double pairs = 0;
  for (int64_t position = shape.kv_len - shape.q_len; position < shape.kv_len; ++position) {
    pairs += static_cast<double>(std::min(position + 1, most));
  }
  pairs *= static_cast<double>(shape.batch_size);
  return 4 * pairs * static_cast<double>(shape.head_dim * shape.num_q_heads) * density();
}

double AttentionWork::kv_bytes() const {
  const KernelShape& shape = impl_->shape;
  return 2 * static_cast<double>(shape.batch_size * shape.kv_len * shape.num_kv_heads *
                                 shape.head_dim * dtype_bytes(shape.dtype));
}

}  // namespace fovea
