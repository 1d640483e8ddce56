// CPU threads: OpenMP's pool, which oneDNN shares, so that the two never compete for cores.
#pragma once

#include <cstdint>
#include <functional>

#include "fovea/base/context.h"

namespace fovea {

/// Threads that `context` stands for: its own number, or OpenMP's, which is OMP_NUM_THREADS or else
/// the cores that this process may run on.
int32_t resolve_num_threads(const Context& context);

/// Calls body(task, thread) once for every task in [0, num_tasks), dealt out dynamically, one at a
/// time. `thread` is in [0, resolve_num_threads(context)): use it to index per-thread scratch. An
/// exception from `body` stops the dealing and is rethrown here, the first one only.
void parallel_for(const Context& context, int64_t num_tasks,
                  const std::function<void(int64_t task, int32_t thread)>& body);

}  // namespace fovea
