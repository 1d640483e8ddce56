#include "fovea/selector/cpu/block_stats_kernel.h"

namespace fovea {

void block_stats_portable(const BlockStatsTask& task) { block_stats_of_task(task); }

}  // namespace fovea
