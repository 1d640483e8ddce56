// Workers of a GPU; includes no CUDA header. Built with FOVEA_CUDA only.
#pragma once

#include <cstdint>
#include <memory>

#include "fovea/engine/workers.h"

namespace fovea {

/// One worker with a stream of its own takes all rows of a step, at most `max_rows`, at once.
/// Borders are events; without a timed step there are none.
std::unique_ptr<Workers> make_cuda_workers(const Model& model, int64_t max_rows);

}  // namespace fovea
