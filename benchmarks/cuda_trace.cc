// Traces our GPU kernels through CUPTI: a few layers' attention over one prompt (statistics,
// selection, block-sparse; then dense) and some decode steps.
//
//   cuda_trace OUT.json.gz [TOKENS]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/base/error.h"
#include "fovea/selector/cuda/block_stats_cuda.h"
#include "fovea/selector/cuda/cuda_selector.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/trace/cuda/cupti_trace.h"

namespace {

using fovea::DType;
using fovea::TensorView;
using fovea::cuda::check_cuda;

constexpr int64_t kLayers = 4;
constexpr int64_t kDecodeSteps = 3;
constexpr int64_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlock = 128, kWitnesses = 4;
constexpr float kDensity = 0.05f;

/// GPU memory that lives as long as the program.
template <typename T>
T* upload(const std::vector<T>& values) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, values.size() * sizeof(T)), "allocating");
  check_cuda(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
             "copying");
  return static_cast<T*>(data);
}

/// Normally distributed bf16.
TensorView random_tensor(std::initializer_list<int64_t> shape, fovea::Device device) {
  static std::mt19937 random(1);
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  // A million drawn, then repeated: the kernels do not mind, and the host is quick.
  std::vector<uint16_t> values(static_cast<size_t>(count));
  std::normal_distribution<float> normal;
  constexpr size_t kDrawn = 1'000'003;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i < kDrawn ? static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16)
                           : values[i - kDrawn];
  }
  return fovea::make_view(upload(values), DType::kBF16, shape, device);
}

TensorView empty_tensor(DType dtype, std::initializer_list<int64_t> shape, fovea::Device device) {
  TensorView view = fovea::make_view(nullptr, dtype, shape, device);
  const auto bytes = static_cast<size_t>(view.num_elements() * fovea::dtype_bytes(dtype));
  check_cuda(cudaMalloc(&view.data, bytes), "allocating");
  return view;
}

/// One layer over a prompt of `tokens` in pages.
class Layer {
 public:
  Layer(int64_t tokens, const fovea::Context& context) : tokens_(tokens), context_(context) {
    const fovea::Device device = context.device;
    const int64_t pages = tokens / kBlock;
    std::vector<int32_t> table(static_cast<size_t>(pages));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);

    attention_.q = random_tensor({tokens, kQHeads, kHeadDim}, device);
    attention_.out = empty_tensor(DType::kBF16, {tokens, kQHeads, kHeadDim}, device);
    attention_.kv.k = random_tensor({pages, kKvHeads, kBlock, kHeadDim}, device);
    attention_.kv.v = random_tensor({pages, kKvHeads, kBlock, kHeadDim}, device);
    attention_.kv.page_table = upload(table);
    attention_.kv.page_table_stride = pages;
    attention_.kv.page_size = kBlock;
    attention_.batch = {1, upload<int64_t>({0, tokens}), upload<int64_t>({tokens})};

    selector_.q = attention_.q;
    selector_.kv = attention_.kv;
    selector_.batch = attention_.batch;
    selector_.settings.method = fovea::SelectorMethod::kWitness;
    selector_.settings.num_witnesses = kWitnesses;
    selector_.settings.density = kDensity;
    fovea::BlockStatsView& stats = selector_.stats;
    stats.block_size = kBlock;
    stats.num_witnesses = kWitnesses;
    stats.centroid = empty_tensor(DType::kBF16, {pages, kKvHeads, kHeadDim}, device);
    stats.v_mean = empty_tensor(DType::kBF16, {pages, kKvHeads, kHeadDim}, device);
    stats.witness = empty_tensor(DType::kBF16, {pages, kKvHeads * kWitnesses, kHeadDim}, device);
    stats.rest_mean = empty_tensor(DType::kBF16, {pages, kKvHeads, kHeadDim}, device);
    stats.radius = empty_tensor(DType::kF32, {pages, kKvHeads}, device);
    stats.non_finite = empty_tensor(DType::kI32, {pages, kKvHeads}, device);
    selection_ = std::make_unique<fovea::DeviceSelection>(
        fovea::CudaSelector::sizes_for(selector_, 3 * kDensity), context);

    decode_ = attention_;
    decode_.q = fovea::make_view(attention_.q.data, DType::kBF16, {1, kQHeads, kHeadDim}, device);
    decode_.out =
        fovea::make_view(attention_.out.data, DType::kBF16, {1, kQHeads, kHeadDim}, device);
    decode_.batch.q_offsets = upload<int64_t>({0, 1});
  }

  void prefill_sparse() {
    fovea::compute_block_stats_cuda(attention_.kv, 0, 0, tokens_ / kBlock, 0, selector_.stats,
                                    context_);
    fovea::cuda_selector().run(selector_, context_, *selection_);
    fovea::AttentionParams sparse = attention_;
    sparse.selection = &selection_->view();
    fovea::attend(sparse, context_);
  }
  void prefill_dense() { fovea::attend(attention_, context_); }
  void decode() { fovea::attend(decode_, context_); }

 private:
  int64_t tokens_;
  fovea::Context context_;
  fovea::AttentionParams attention_, decode_;
  fovea::SelectorParams selector_;
  std::unique_ptr<fovea::DeviceSelection> selection_;
};

void trace(const std::string& path, int64_t tokens) {
  fovea::check_argument(tokens > 0 && tokens % kBlock == 0 && tokens <= (1 << 20),
                        "TOKENS must be a multiple of {} up to 1M, is {}", kBlock, tokens);
  const std::string reason = fovea::cuda::why_no_device(0);
  if (!reason.empty()) fovea::fail(fovea::ErrorCode::kUnsupported, "{}", reason);
  fovea::Context context;
  context.device = {fovea::DeviceType::kCuda, 0};
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  context.stream = stream;
  Layer layer(tokens, context);
  // Kernels are loaded, and pools grow, outside the recording.
  layer.prefill_sparse();
  layer.prefill_dense();
  layer.decode();
  check_cuda(cudaDeviceSynchronize(), "warming up");

  fovea::trace::CuptiTrace recording(path);
  const auto step = [&](const std::string& label, void (Layer::*work)()) {
    recording.begin_step(label);
    for (int64_t i = 0; i < kLayers; ++i) (layer.*work)();
    check_cuda(cudaStreamSynchronize(stream), label.c_str());
  };
  step(fmt::format("step[prefill bs=1 toks={}] sparse", tokens), &Layer::prefill_sparse);
  step(fmt::format("step[prefill bs=1 toks={}] dense", tokens), &Layer::prefill_dense);
  for (int64_t i = 0; i < kDecodeSteps; ++i) step("step[decode bs=1]", &Layer::decode);
  recording.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: cuda_trace OUT.json.gz [TOKENS]\n");
    return 2;
  }
  try {
    trace(argv[1], argc == 3 ? std::atoll(argv[2]) : 32768);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_trace: error: {}\n", error.what());
    return 1;
  }
  return 0;
}
