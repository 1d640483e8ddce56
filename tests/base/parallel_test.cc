#include "fovea/base/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

TEST(ParallelFor, RunsEveryTaskOnce) {
  Context context;
  context.num_threads = 3;
  std::vector<std::atomic<int>> runs(1000);
  parallel_for(context, 1000, [&](int64_t task, int32_t thread) {
    EXPECT_GE(thread, 0);
    EXPECT_LT(thread, 3);
    runs[static_cast<size_t>(task)]++;
  });
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
}

TEST(ParallelFor, RethrowsOnTheCaller) {
  Context context;
  context.num_threads = 2;
  EXPECT_THROW(parallel_for(context, 100,
                            [](int64_t task, int32_t) { check_argument(task != 7, "task 7"); }),
               Error);
}

TEST(ParallelFor, UsesAsManyThreadsAsOpenMpWould) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);  // what OMP_NUM_THREADS=3 sets when a process starts
  EXPECT_EQ(resolve_num_threads(Context{}), 3);
  Context own;
  own.num_threads = 2;
  EXPECT_EQ(resolve_num_threads(own), 2);
  omp_set_num_threads(before);
}

TEST(ParallelFor, NoTasksIsNoWork) {
  parallel_for(Context{}, 0, [](int64_t, int32_t) { FAIL(); });
  EXPECT_GE(resolve_num_threads(Context{}), 1);
}

}  // namespace
}  // namespace fovea
