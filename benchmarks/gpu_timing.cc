#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/kernel_bench.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea {
namespace {

using cuda::check_cuda;

// Work of a stream, to be repeated, and two events around it.
class Replay {
 public:
  Replay(const std::function<void()>& body, const Context& context, bool as_graph)
      : stream_(cuda::stream_of(context)), body_(body) {
    check_cuda(cudaEventCreate(&begin_), "making an event");
    check_cuda(cudaEventCreate(&end_), "making an event");
    if (as_graph) capture();
  }
  ~Replay() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch() {
    if (graph_ == nullptr) return body_();
    check_cuda(cudaGraphLaunch(graph_, stream_), "running a graph");
  }
  /// Milliseconds of one of `calls` in a row. Waits.
  double run_ms(int calls) {
    check_cuda(cudaEventRecord(begin_, stream_), "timing");
    for (int i = 0; i < calls; ++i) launch();
    check_cuda(cudaEventRecord(end_, stream_), "timing");
    check_cuda(cudaEventSynchronize(end_), "timing");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "timing");
    return static_cast<double>(ms) / calls;
  }

 private:
  void capture() {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
    cudaGraph_t graph = nullptr;
    try {
      body_();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "capturing");
    const cudaError_t result = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(result, "making a graph");
  }

  cudaStream_t stream_;
  const std::function<void()>& body_;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

Timing time_on_gpu(const std::function<void()>& body, GpuRegime regime, const Context& context,
                   bool as_graph) {
  const cuda::DeviceScope scope(context);
  body();
  Replay replay(body, context, as_graph);
  replay.run_ms(1);
  const double estimate_ms = std::max(replay.run_ms(1), 1e-3);
  const int runs = estimate_ms > 100 ? 3 : std::clamp(static_cast<int>(100 / estimate_ms), 5, 60);
  int calls = 1;  // in a row, timed as one
  if (regime == GpuRegime::kSustained) {
    for (int i = 0; i < static_cast<int>(std::min(2000.0, 200 / estimate_ms)); ++i) replay.launch();
  } else {
    calls = std::max(1, static_cast<int>(8 / estimate_ms));
  }
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    times.push_back(replay.run_ms(calls));
    if (regime == GpuRegime::kSustained) continue;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(times.back() * calls));
  }
  return to_timing(std::move(times));
}

int64_t scratch_bytes_on_gpu(const std::function<void()>& body, const Context& context) {
  const cuda::DeviceScope scope(context);
  const cudaMemPool_t pool = cuda::scratch_pool_of_current_device();
  cuuint64_t bytes = 0;
  check_cuda(cudaStreamSynchronize(cuda::stream_of(context)), "waiting for what runs");
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &bytes), "resetting a peak");
  body();
  check_cuda(cudaStreamSynchronize(cuda::stream_of(context)), "running what is measured");
  check_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &bytes), "reading a peak");
  return static_cast<int64_t>(bytes);
}

}  // namespace fovea
