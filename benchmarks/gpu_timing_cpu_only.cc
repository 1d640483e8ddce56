#include "benchmarks/kernel_bench.h"
#include "fovea/base/error.h"

namespace fovea {

Timing time_on_gpu(const std::function<void()>&, GpuRegime, const Context&, bool) {
  fail(ErrorCode::kUnsupported, "this build has no CUDA: configure it with the preset cuda");
}

}  // namespace fovea
