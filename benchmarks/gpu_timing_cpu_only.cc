#include "benchmarks/kernel_bench.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail(ErrorCode::kUnsupported, "this build has no CUDA: configure it with the preset cuda");
}

}  // namespace

Timing time_on_gpu(const std::function<void()>&, GpuRegime, const Context&, bool) {
  fail_without_cuda();
}

int64_t scratch_bytes_on_gpu(const std::function<void()>&, const Context&) { fail_without_cuda(); }

}  // namespace fovea
