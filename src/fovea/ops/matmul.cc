#include "fovea/ops/matmul.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "fovea/base/checked_math.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/parallel.h"
#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

using cpu::kPanelColumns;
constexpr std::array<int64_t, 4> kTiers = {16, 32, 64, kSlabRows};

/// Depth is padded so that a panel is whole blocks of oneDNN's BA16a64b2a (bf16) and BA16a64b
/// (f32).
int64_t padded_depth(DType dtype, int64_t in_features) {
  const int64_t unit = dtype == DType::kBF16 ? 32 : 16;
  return ceil_div(in_features, unit) * unit;
}

bool uses_panels() { return cpu_features().avx512; }

/// One engine for the process; its instruction sets are lowered as FOVEA_MAX_ISA asks.
const dnnl::engine& dnnl_engine() {
  static const dnnl::engine engine = [] {
    const CpuFeatures& features = cpu_features();
    if (!features.avx512) {
      dnnl::set_max_cpu_isa(features.avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::sse41);
    } else if (!features.avx512_bf16) {
      dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core);
    } else if (!features.amx_bf16) {
      dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    }
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

const dnnl::stream& dnnl_stream() {
  thread_local const dnnl::stream stream(dnnl_engine());
  return stream;
}

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Throws our error for one of oneDNN's, which must not leave this file.
[[noreturn]] void fail_as_ours(const dnnl::error& error, DType dtype, int64_t out, int64_t in) {
  const bool no_memory = error.status == dnnl_out_of_memory;
  fail(no_memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
       "oneDNN cannot multiply {} matrices [{}, {}] here: {}", dtype_name(dtype), out, in,
       error.what());
}

}  // namespace

float* MatmulScratch::get(int64_t bytes) {
  if (memory_.size_bytes() < bytes) memory_ = Tensor(DType::kF32, {ceil_div(bytes, 4)});
  return memory_.as<float>();
}

/// A primitive for each number of rows; immutable, so that threads share it.
struct PackedWeights::Plan {
  struct Tier {
    dnnl::matmul primitive;
    dnnl::memory::desc in, weights, out, scratch;
  };
  std::array<Tier, kTiers.size()> tiers;
};

std::shared_ptr<const PackedWeights::Plan> PackedWeights::find_plan(DType dtype, int64_t out,
                                                                    int64_t in, bool panels) {
  using Key = std::tuple<DType, int64_t, int64_t, bool>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Plan>& plan = plans[{dtype, out, in, panels}];
  if (plan != nullptr) return plan;

  using Tag = dnnl::memory::format_tag;
  const Tag weight_tag = !panels                 ? Tag::ba
                         : dtype == DType::kBF16 ? Tag::BA16a64b2a
                                                 : Tag::BA16a64b;
  auto made = std::make_shared<Plan>();
  // oneDNN cuts its work by the threads it sees now; each call of ours runs on one.
  const int num_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  try {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    for (size_t i = 0; i < kTiers.size(); ++i) {
      Plan::Tier& tier = made->tiers[i];
      tier.in = {{kTiers[i], in}, dnnl_type(dtype), Tag::ab};
      tier.weights = {{in, out}, dnnl_type(dtype), weight_tag};
      tier.out = {{kTiers[i], out}, dnnl::memory::data_type::f32, Tag::ab};
      const dnnl::matmul::primitive_desc description(
          dnnl::matmul::desc(tier.in, tier.weights, tier.out), attributes, dnnl_engine());
      tier.scratch = description.scratchpad_desc();
      tier.primitive = dnnl::matmul(description);
    }
  } catch (const dnnl::error& error) {
    omp_set_num_threads(num_threads);
    plans.erase({dtype, out, in, panels});
    fail_as_ours(error, dtype, out, in);
  }
  omp_set_num_threads(num_threads);
  plan = made;
  return plan;
}

bool matmul_is_native(DType dtype) {
  return dtype == DType::kF32 || (dtype == DType::kBF16 && cpu_features().avx512_bf16);
}

int64_t packed_weight_bytes(DType dtype, int64_t out_features, int64_t in_features, Device device) {
  const bool on_cpu = device.type == DeviceType::kCpu;
  check_argument(dtype == DType::kBF16 || dtype == (on_cpu ? DType::kF32 : DType::kF8E4M3),
                 "weights must be {}, got {}", on_cpu ? "f32 or bf16" : "bf16 or f8e4m3 on a GPU",
                 dtype_name(dtype));
  check_argument(out_features > 0, "out_features must be positive, got {}", out_features);
  check_argument(in_features > 0, "in_features must be positive, got {}", in_features);
  check_argument(on_cpu || in_features % 8 == 0,
                 "in_features must be a multiple of 8 on a GPU, got {}", in_features);
  if (dtype == DType::kF8E4M3) {
    constexpr int64_t kBlock = 128;
    check_argument(out_features % kBlock == 0 && in_features % kBlock == 0,
                   "sizes of f8e4m3 matrices must be multiples of {}, got [{}, {}]", kBlock,
                   out_features, in_features);
    const int64_t bytes = checked_mul(out_features, in_features, "weight bytes");
    return bytes + bytes / (kBlock * kBlock) * dtype_bytes(DType::kF32);
  }
  const bool panels = on_cpu && uses_panels();
  const int64_t rows =
      panels ? checked_mul(ceil_div(out_features, kPanelColumns), kPanelColumns, "weight rows")
             : out_features;
  const int64_t depth = panels ? padded_depth(dtype, in_features) : in_features;
  return checked_mul(checked_mul(rows, depth, "weight size"), dtype_bytes(dtype), "weight bytes");
}

PackedWeights::PackedWeights(DType dtype, int64_t out_features, int64_t in_features, Device device)
    : dtype_(dtype), out_features_(out_features), in_features_(in_features) {
  const int64_t bytes = packed_weight_bytes(dtype, out_features, in_features, device);
  if (device.type != DeviceType::kCpu) {
    check_argument(dtype == DType::kBF16, "a GPU's matrices are made in bf16, got {}",
                   dtype_name(dtype));
    memory_ = Tensor(dtype, {out_features, in_features}, device);
    return;
  }
  panels_ = uses_panels();
  if (!panels_ && dtype == DType::kBF16) {
    fail(ErrorCode::kUnsupported, "bf16 matrices need a processor with AVX-512; use f32");
  }
  padded_in_ = panels_ ? padded_depth(dtype, in_features) : in_features;
  memory_ = Tensor(dtype, {bytes / dtype_bytes(dtype)});
  plan_ = find_plan(dtype, out_features, in_features, panels_);
}

void PackedWeights::set_rows(int64_t first_row, int64_t num_rows, const float* rows) {
  check_argument(first_row >= 0 && num_rows >= 0 && first_row <= out_features_ - num_rows,
                 "rows [{}, {} + {}) must lie in [0, {})", first_row, first_row, num_rows,
                 out_features_);
  if (device().type != DeviceType::kCpu) {
    set_gpu_rows(first_row, num_rows, rows);
    return;
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const float* source = rows + r * in_features_;
    if (!panels_) {
      std::memcpy(memory_.as<float>() + row * in_features_, source,
                  static_cast<size_t>(in_features_) * sizeof(float));
      continue;
    }
    const int64_t panel_offset = row / kPanelColumns * kPanelColumns * padded_in_;
    const int64_t column = row % kPanelColumns;
    if (dtype_ == DType::kF32) {
      float* panel = memory_.as<float>() + panel_offset;
      for (int64_t k = 0; k < in_features_; ++k) panel[k * kPanelColumns + column] = source[k];
    } else {
      BFloat16* panel = memory_.as<BFloat16>() + panel_offset;
      for (int64_t k = 0; k < in_features_; ++k) {
        panel[(k / 2 * kPanelColumns + column) * 2 + k % 2] = to_bfloat16(source[k]);
      }
    }
  }
}

int64_t padded_slab_rows(int64_t rows) {
  for (const int64_t tier : kTiers) {
    if (rows <= tier) return tier;
  }
  fail(ErrorCode::kInvalidArgument, "a slab holds at most {} rows, got {}", kSlabRows, rows);
}

namespace {

void check_matrix(const TensorView& view, const char* name, DType dtype, int64_t columns) {
  check_argument(view.dtype == dtype && view.rank == 2 && view.shape[1] == columns &&
                     view.stride[0] == columns && view.stride[1] == 1,
                 "{} must be dense {}[rows, {}], got {}", name, dtype_name(dtype), columns,
                 view.describe());
}

}  // namespace

void matmul_slab(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                 MatmulScratch& scratch) {
  check_argument(weights.device().type == DeviceType::kCpu, "weights must be the CPU's");
  check_matrix(in, "in", weights.dtype_, weights.in_features_);
  check_matrix(out, "out", DType::kF32, weights.out_features_);
  const int64_t rows = in.shape[0];
  check_argument(out.shape[0] == rows, "out must have {} rows as in has, got {}", rows,
                 out.shape[0]);
  if (rows == 0) return;
  const int64_t padded_rows = padded_slab_rows(rows);
  const size_t tier_idx =
      static_cast<size_t>(std::find(kTiers.begin(), kTiers.end(), padded_rows) - kTiers.begin());
  const PackedWeights::Plan::Tier& tier = weights.plan_->tiers[tier_idx];
  const auto scratch_bytes = static_cast<int64_t>(tier.scratch.get_size());
  try {
    const dnnl::engine& engine = dnnl_engine();
    tier.primitive.execute(
        dnnl_stream(),
        {{DNNL_ARG_SRC, dnnl::memory(tier.in, engine, in.data)},
         {DNNL_ARG_WEIGHTS, dnnl::memory(tier.weights, engine, weights.memory_.view().data)},
         {DNNL_ARG_DST, dnnl::memory(tier.out, engine, out.data)},
         {DNNL_ARG_SCRATCHPAD, dnnl::memory(tier.scratch, engine, scratch.get(scratch_bytes))}});
  } catch (const dnnl::error& error) {
    fail_as_ours(error, weights.dtype_, weights.out_features_, weights.in_features_);
  }
}

void matmul_row(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                const Context& context) {
  check_argument(weights.device().type == DeviceType::kCpu, "weights must be the CPU's");
  check_argument(in.dtype == weights.dtype_ && in.rank == 1 && in.shape[0] == weights.in_features_,
                 "in must be {}[{}], got {}", dtype_name(weights.dtype_), weights.in_features_,
                 in.describe());
  check_argument(out.dtype == DType::kF32 && out.rank == 1 && out.shape[0] == weights.out_features_,
                 "out must be f32[{}], got {}", weights.out_features_, out.describe());
  const cpu::RowKernels& kernels = cpu::row_kernels();
  float* y = out.as<float>();
  const int64_t num_panels = ceil_div(weights.out_features_, kPanelColumns);
  std::vector<float> widened(static_cast<size_t>(weights.padded_in_));
  for (int64_t k = 0; k < weights.in_features_; ++k) {
    widened[static_cast<size_t>(k)] =
        in.dtype == DType::kF32 ? in.as<float>()[k] : to_float(in.as<BFloat16>()[k]);
  }
  const float* x = widened.data();
  const auto compute_panel = [&](int64_t panel) {
    const int64_t first = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, weights.out_features_ - first);
    if (!weights.panels_) {
      for (int64_t c = first; c < first + columns; ++c) {
        const float* row = weights.memory_.as<float>() + c * weights.in_features_;
        y[c] = kernels.dot(row, x, weights.in_features_);
      }
      return;
    }
    float sums[kPanelColumns];
    float* target = columns == kPanelColumns ? y + first : sums;
    if (weights.dtype_ == DType::kF32) {
      kernels.gemv_panel_f32(weights.memory_.as<float>() + first * weights.padded_in_, x,
                             weights.padded_in_, target);
    } else {
      kernels.gemv_panel_bf16(weights.memory_.as<uint16_t>() + first * weights.padded_in_, x,
                              weights.padded_in_, target);
    }
    if (target == sums) std::copy_n(sums, columns, y + first);
  };
  // Few tasks per thread: one costs about a microsecond to deal out.
  const int64_t num_tasks = std::min<int64_t>(num_panels, 4 * resolve_num_threads(context));
  parallel_for(context, num_tasks, [&](int64_t task, int32_t) {
    for (int64_t panel = num_panels * task / num_tasks; panel < num_panels * (task + 1) / num_tasks;
         ++panel) {
      compute_panel(panel);
    }
  });
}

}  // namespace fovea
