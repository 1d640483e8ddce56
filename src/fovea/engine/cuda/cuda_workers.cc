#include "fovea/engine/cuda/cuda_workers.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "fovea/engine/model.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

using cuda::check_cuda;

/// Events in a stream, one at each border between two pieces.
class EventClock {
 public:
  explicit EventClock(const Context& context) : context_(context) {}
  ~EventClock() {
    for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  void start(bool is_timed) {
    is_timed_ = is_timed;
    borders_.clear();
    marks_.clear();
    if (!is_timed) return;
    start_ = StepClock::now();
    record_event(0);
  }

  bool is_timed() const { return is_timed_; }

  void lap(StepOp op, int64_t layer) {
    if (!is_timed_) return;
    borders_.push_back({op, layer});
    record_event(borders_.size());
  }

  /// Waits for where the stream was at the mark before the last; the stream stays busy meanwhile.
  void mark_and_wait() {
    if (!is_timed_) return;
    marks_.push_back(borders_.size());
    if (marks_.size() < 3) return;
    check_cuda(cudaEventSynchronize(events_[marks_[marks_.size() - 3]]), "a layer on the GPU");
  }

  std::vector<OpTiming> take() {
    std::vector<OpTiming> timings;
    if (borders_.empty()) return timings;
    check_cuda(cudaEventSynchronize(events_[borders_.size()]), "a step on the GPU");
    double done_s = 0;
    for (size_t i = 0; i < borders_.size(); ++i) {
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "reading a GPU's clock");
      const auto offset = std::chrono::duration<double>(done_s);
      const double seconds = 1e-3 * static_cast<double>(ms);
      timings.push_back({borders_[i].op, borders_[i].layer,
                         start_ + std::chrono::duration_cast<StepClock::duration>(offset),
                         seconds});
      done_s += seconds;
    }
    start(true);
    return timings;
  }

 private:
  struct Border {
    StepOp op;
    int64_t layer;
  };

  void record_event(size_t index) {
    const cuda::DeviceScope scope(context_);
    if (index == events_.size()) {
      cudaEvent_t event = nullptr;
      check_cuda(cudaEventCreate(&event), "making an event");
      events_.push_back(event);
    }
    check_cuda(cudaEventRecord(events_[index], cuda::stream_of(context_)), "recording an event");
  }

  Context context_;
  bool is_timed_ = false;
  StepClock::time_point start_;
  std::vector<cudaEvent_t> events_;  // the first is the start
  std::vector<Border> borders_;
  std::vector<size_t> marks_;  // borders_.size() at each
};

/// The last body that was replayed, as a CUDA graph.
class GraphRecord {
 public:
  explicit GraphRecord(const Context& context) : context_(context) {}
  ~GraphRecord() { forget(); }
  GraphRecord(const GraphRecord&) = delete;
  GraphRecord& operator=(const GraphRecord&) = delete;

  /// The first time a key comes, `body` runs as it is: it may still choose and allocate things.
  void run(const std::vector<int64_t>& key, const std::function<void()>& body) {
    if (key != key_) {
      forget();
      key_ = key;
      const cuda::ScratchArena::Use use(scratch_);
      body();
      return;
    }
    if (graph_ == nullptr) record(body);
    check_cuda(cudaGraphLaunch(graph_, cuda::stream_of(context_)), "launching a step's graph");
  }

 private:
  void record(const std::function<void()>& body) {
    const cuda::DeviceScope scope(context_);
    const cudaStream_t stream = cuda::stream_of(context_);
    scratch_.fit(context_);
    const cuda::ScratchArena::Use use(scratch_);
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
               "recording a step");
    cudaGraph_t recorded = nullptr;
    try {
      body();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &recorded));
      if (recorded != nullptr) static_cast<void>(cudaGraphDestroy(recorded));
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream, &recorded), "recording a step");
    const cudaError_t status = cudaGraphInstantiate(&graph_, recorded, 0);
    static_cast<void>(cudaGraphDestroy(recorded));
    check_cuda(status, "preparing a step's graph");
  }

  void forget() {
    if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
    graph_ = nullptr;
    key_.clear();
  }

  Context context_;
  std::vector<int64_t> key_;
  cuda::ScratchArena scratch_;  // of the recorded step
  cudaGraphExec_t graph_ = nullptr;
};

class CudaWorker final : public Worker {
 public:
  CudaWorker(const Model& model, int64_t max_rows, const Context& context, EventClock& clock)
      : Worker(model, max_rows, context), clock_(clock) {}
  void lap(StepOp op, int64_t layer) override { clock_.lap(op, layer); }

 private:
  EventClock& clock_;
};

class CudaWorkers final : public Workers {
 public:
  CudaWorkers(const Model& model, int64_t max_rows)
      : stream_(make_stream(model.context().device)),
        context_{model.context().device, model.context().num_threads, stream_.get()},
        clock_(context_),
        record_(context_),
        worker_(model, max_rows, context_, clock_) {}

  const Context& context() const override { return context_; }
  double flops_per_piece() const override { return 1e18; }  // a layer takes milliseconds
  int64_t size_bytes() const override { return worker_.size_bytes(); }

  void begin_step(int64_t num_rows, bool is_timed) override {
    worker_.ops->begin_step(num_rows);
    clock_.start(is_timed);
  }

  void for_each_slab(int64_t num_rows, int64_t max_rows, const Body& body) override {
    for (int64_t first = 0; first < num_rows; first += max_rows) {
      body({first, std::min(max_rows, num_rows - first)}, worker_);
    }
  }

  void replay(const std::vector<int64_t>& key, const std::function<void()>& body) override {
    if (clock_.is_timed()) {
      body();
    } else {
      record_.run(key, body);
    }
  }

  void lap(StepOp op, int64_t layer) override { clock_.lap(op, layer); }
  void catch_up() override { clock_.mark_and_wait(); }
  int64_t non_finite_layer() override { return worker_.ops->non_finite_layer(); }
  std::vector<OpTiming> take_timings() override { return clock_.take(); }
  Worker& first() override { return worker_; }

 private:
  std::shared_ptr<void> stream_;
  Context context_;
  EventClock clock_;
  GraphRecord record_;
  CudaWorker worker_;
};

}  // namespace

std::unique_ptr<Workers> make_cuda_workers(const Model& model, int64_t max_rows) {
  return std::make_unique<CudaWorkers>(model, max_rows);
}

}  // namespace fovea
