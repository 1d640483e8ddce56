// Workers of the CPU.
#pragma once

#include <memory>

#include "fovea/engine/workers.h"

namespace fovea {

/// One worker a thread of the model's context. Steps of one row are done by the first, whose
/// operations then use all threads; in longer ones each thread takes slabs of rows.
std::unique_ptr<Workers> make_cpu_workers(const Model& model);

}  // namespace fovea
