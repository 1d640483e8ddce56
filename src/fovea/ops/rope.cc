#include "fovea/ops/rope.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/ops/cpu/rows.h"
#include "fovea/tensor/device_memory.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/ops/cuda/rope_table.h"
#endif

namespace fovea {

RopeTable::RopeTable(int64_t head_dim, double theta, std::span<const float> factors, Device device)
    : device_(device) {
  constexpr int64_t kMaxGpuHeadDim = 256;
  check_argument(head_dim > 0 && head_dim % 2 == 0, "head_dim must be even and positive, got {}",
                 head_dim);
  check_argument(theta > 0, "theta must be positive, got {}", theta);
  check_argument(device.type == DeviceType::kCpu || head_dim <= kMaxGpuHeadDim,
                 "head_dim must be at most {} on a GPU, got {}", kMaxGpuHeadDim, head_dim);
  check_usable(device);
  half_ = head_dim / 2;
  check_argument(factors.empty() || static_cast<int64_t>(factors.size()) == half_,
                 "factors must be empty or have {} values, got {}", half_, factors.size());
  frequencies_.resize(static_cast<size_t>(half_));
  for (int64_t i = 0; i < half_; ++i) {
    const double factor = factors.empty() ? 1.0 : factors[static_cast<size_t>(i)];
    check_argument(factor > 0, "factors must be positive, got {}", factor);
    frequencies_[static_cast<size_t>(i)] =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)) / factor;
  }
}

void RopeTable::reserve(int64_t num_rows) {
  check_argument(num_rows >= 0, "num_rows must not be negative, got {}", num_rows);
  if (!cos_.empty() && cos_.view().shape[0] >= num_rows) return;
  cos_ = Tensor(DType::kF32, {num_rows, half_}, device_);
  sin_ = Tensor(DType::kF32, {num_rows, half_}, device_);
}

void RopeTable::fill(const int64_t* first_position, int64_t num_rows, const Context& context) {
  if (device_.type == DeviceType::kCpu) {
    fill(*first_position, num_rows, context);
    return;
  }
#ifdef FOVEA_WITH_CUDA
  check_argument(context.device == device_, "a table on GPU {} must be filled there",
                 device_.index);
  reserve(num_rows);
  num_rows_ = num_rows;
  cuda::fill_rope_table(frequencies_, first_position, num_rows, cos_.as<float>(), sin_.as<float>(),
                        context);
#endif
}

void RopeTable::fill(int64_t first_position, int64_t num_rows, const Context& context) {
  check_argument(device_.type == DeviceType::kCpu, "a table on a GPU reads its position there");
  check_argument(first_position >= 0, "first_position must not be negative, got {}",
                 first_position);
  reserve(num_rows);
  num_rows_ = num_rows;
  float* cosines = cos_.as<float>();
  float* sines = sin_.as<float>();
  // A sine costs 20 ns: only positions that are multiples of kRun call it, the others turn the one
  // before by one step. In double a run's error stays under 1e-14, and a position's values do not
  // depend on where the filling starts.
  constexpr int64_t kRun = 64;
  std::vector<double> step_cos(static_cast<size_t>(half_)), step_sin(static_cast<size_t>(half_));
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    step_cos[i] = std::cos(frequencies_[i]);
    step_sin[i] = std::sin(frequencies_[i]);
  }
  const int64_t first_run = first_position / kRun;
  const int64_t end_run = ceil_div(first_position + num_rows, kRun);
  parallel_for(context, end_run - first_run, [&](int64_t task, int32_t) {
    std::vector<double> c(static_cast<size_t>(half_)), s(static_cast<size_t>(half_));
    const int64_t run_start = (first_run + task) * kRun;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = static_cast<double>(run_start) * frequencies_[i];
      c[i] = std::cos(angle);
      s[i] = std::sin(angle);
    }
    const int64_t end = std::min(run_start + kRun, first_position + num_rows);
    for (int64_t position = run_start; position < end; ++position) {
      const int64_t row = position - first_position;
      for (size_t i = 0; i < frequencies_.size(); ++i) {
        if (row >= 0) {
          cosines[static_cast<size_t>(row * half_) + i] = static_cast<float>(c[i]);
          sines[static_cast<size_t>(row * half_) + i] = static_cast<float>(s[i]);
        }
        const double next = c[i] * step_cos[i] - s[i] * step_sin[i];
        s[i] = s[i] * step_cos[i] + c[i] * step_sin[i];
        c[i] = next;
      }
    }
  });
}

void rope(const TensorView& x, const RopeTable& table, int64_t first_row, const TensorView& out) {
  cpu::check_rows(x, "x", false);
  check_argument(x.rank == 3 && x.shape[2] == table.head_dim(),
                 "x must be f32[rows, heads, {}], got {}", table.head_dim(), x.describe());
  check_argument(first_row >= 0 && first_row <= table.num_rows() - x.shape[0],
                 "rows [{}, {} + {}) must lie in the table's {}", first_row, first_row, x.shape[0],
                 table.num_rows());
  cpu::check_rows(out, "out", true);
  cpu::check_same_shape(x, "x", out, "out");
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int64_t half = table.head_dim() / 2;
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    const float* cos = table.cos(first_row + row);
    const float* sin = table.sin(first_row + row);
    for (int64_t head = 0; head < x.shape[1]; ++head) {
      const float* from = x.as<float>() + row * x.stride[0] + head * x.stride[1];
      const int64_t to = row * out.stride[0] + head * out.stride[1];
      if (out.dtype == DType::kF32) {
        kernels.rope_f32(from, cos, sin, half, out.as<float>() + to);
      } else {
        kernels.rope_bf16(from, cos, sin, half, out.as<uint16_t>() + to);
      }
    }
  }
}

}  // namespace fovea
