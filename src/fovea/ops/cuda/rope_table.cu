// Cosines and sines of a run of positions, a pair per thread.
#include <algorithm>

#include "fovea/ops/cuda/rope_table.h"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr unsigned kThreads = 128;

struct Frequencies {
  double values[kMaxRopePairs];
};

__global__ __launch_bounds__(kThreads) void rope_table_kernel(
    const __grid_constant__ Frequencies frequencies, const int64_t* first_position,
    int64_t num_values, int half, float* cosines, float* sines) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= num_values) return;
  const int64_t row = at / half;
  const auto pair = static_cast<int>(at - row * half);
  double sine, cosine;
  sincos(static_cast<double>(*first_position + row) * frequencies.values[pair], &sine, &cosine);
  cosines[at] = static_cast<float>(cosine);
  sines[at] = static_cast<float>(sine);
}

}  // namespace

void launch_rope_table(std::span<const double> frequencies, const int64_t* first_position,
                       int64_t num_rows, float* cos, float* sin, cudaStream_t stream) {
  Frequencies by_value{};
  std::copy(frequencies.begin(), frequencies.end(), by_value.values);
  const auto half = static_cast<int64_t>(frequencies.size());
  const unsigned grid = blocks_for(num_rows * half, kThreads);
  launch_overlapping(rope_table_kernel, grid, kThreads, 0, stream, "launching rope_table_kernel",
                     by_value, first_position, num_rows * half, static_cast<int>(half), cos, sin);
}

}  // namespace fovea::cuda
