#include "fovea/selector/cpu/score_kernel.h"

namespace fovea {

bool score_avx512(const ScoreTask& task) { return score_blocks<F32Product>(task); }

}  // namespace fovea
