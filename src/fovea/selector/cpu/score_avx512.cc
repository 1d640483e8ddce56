#include "fovea/selector/cpu/score_kernel.h"

namespace fovea {

bool score_avx512(const ScoreTask& task) { return BlockScorer<F32Product>(task).run(); }

}  // namespace fovea
