#include "fovea/engine/cpu_workers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/engine/model.h"

namespace fovea {
namespace {

using Clock = StepClock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

class CpuWorker final : public Worker {
 public:
  using Worker::Worker;

  void start() { last_border_ = Clock::now(); }
  void lap(StepOp op, int64_t layer) override {
    const auto now = Clock::now();
    Sum& sum = sums[static_cast<size_t>(op)];
    sum.layer = layer;
    sum.seconds += seconds_between(last_border_, now);
    last_border_ = now;
  }

  struct Sum {
    int64_t layer = -1;
    double seconds = 0;
  };
  std::array<Sum, kNumStepOps> sums{};  // of each operation, since the last for_each_slab()

 private:
  Clock::time_point last_border_;
};

class CpuWorkers final : public Workers {
 public:
  explicit CpuWorkers(const Model& model) : context_(model.context()) {
    for (int32_t i = 0; i < context_.num_threads; ++i) {
      workers_.push_back(std::make_unique<CpuWorker>(model, kSlabRows, context_));
    }
  }

  const Context& context() const override { return context_; }
  double flops_per_piece() const override { return 1.5e11; }  // under a second
  int64_t size_bytes() const override {
    int64_t bytes = 0;
    for (const auto& worker : workers_) bytes += worker->size_bytes();
    return bytes;
  }

  void begin_step(int64_t num_rows, bool) override {
    for (const auto& worker : workers_) {
      worker->ops->begin_step(num_rows);
      worker->sums = {};  // a step that was cancelled left its own
    }
    timings_.clear();
    last_border_ = Clock::now();
  }

  void for_each_slab(int64_t num_rows, int64_t max_rows, const Body& body) override {
    const auto timed_body = [&](const Slab& slab, CpuWorker& worker) {
      worker.start();
      body(slab, worker);
    };
    if (num_rows == 1) {
      timed_body({0, 1}, *workers_[0]);  // in the calling thread: all meet within each matmul
    } else {
      const auto num_threads = static_cast<int64_t>(workers_.size());
      const int64_t slab_rows =
          padded_slab_rows(std::min({kSlabRows, max_rows, ceil_div(num_rows, num_threads)}));
      parallel_for(context_, ceil_div(num_rows, slab_rows), [&](int64_t task, int32_t thread) {
        const int64_t first = task * slab_rows;
        timed_body({first, std::min(slab_rows, num_rows - first)},
                   *workers_[static_cast<size_t>(thread)]);
      });
    }
    share_out_time();
  }

  void replay(const std::vector<int64_t>&, const std::function<void()>& body) override { body(); }

  void lap(StepOp op, int64_t layer) override {
    const auto now = Clock::now();
    timings_.push_back({op, layer, last_border_, seconds_between(last_border_, now)});
    last_border_ = now;
  }

  void catch_up() override {}

  int64_t non_finite_layer() override {
    int64_t least = -1;
    for (const auto& worker : workers_) {
      const int64_t layer = worker->ops->non_finite_layer();
      if (layer >= 0 && (least < 0 || layer < least)) least = layer;
    }
    return least;
  }

  std::vector<OpTiming> take_timings() override { return std::exchange(timings_, {}); }

  Worker& first() override { return *workers_[0]; }

 private:
  /// Gives each operation its share of the threads' time, of the time that passed since the last
  /// border.
  void share_out_time() {
    const auto start = last_border_;
    last_border_ = Clock::now();
    std::array<CpuWorker::Sum, kNumStepOps> sums{};
    double busy_s = 0;
    for (const auto& worker : workers_) {
      for (size_t op = 0; op < sums.size(); ++op) {
        const CpuWorker::Sum sum = std::exchange(worker->sums[op], {});
        if (sum.seconds == 0) continue;
        sums[op].layer = sum.layer;
        sums[op].seconds += sum.seconds;
        busy_s += sum.seconds;
      }
    }
    const double passed_s = seconds_between(start, last_border_);
    double done_s = 0;
    for (size_t op = 0; op < sums.size(); ++op) {
      if (sums[op].seconds == 0) continue;
      const double seconds = passed_s * sums[op].seconds / busy_s;
      const auto begin = start + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(done_s));
      timings_.push_back({static_cast<StepOp>(op), sums[op].layer, begin, seconds});
      done_s += seconds;
    }
  }

  Context context_;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
  std::vector<OpTiming> timings_;
  Clock::time_point last_border_;
};

}  // namespace

std::unique_ptr<Workers> make_cpu_workers(const Model& model) {
  return std::make_unique<CpuWorkers>(model);
}

}  // namespace fovea
