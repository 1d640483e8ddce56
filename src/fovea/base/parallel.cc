#include "fovea/base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace fovea {

int32_t resolve_num_threads(const Context& context) {
  return context.num_threads > 0 ? context.num_threads : omp_get_max_threads();
}

void parallel_for(const Context& context, int64_t num_tasks,
                  const std::function<void(int64_t, int32_t)>& body) {
  const auto num_threads = static_cast<int32_t>(
      std::min<int64_t>(resolve_num_threads(context), std::max<int64_t>(num_tasks, 1)));
  if (num_threads == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
#pragma omp parallel num_threads(num_threads)
  {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= num_tasks) break;
        body(task, omp_get_thread_num());
      }
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace fovea
