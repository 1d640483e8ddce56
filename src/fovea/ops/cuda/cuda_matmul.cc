#include "fovea/ops/cuda/cuda_matmul.h"

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/ops/cuda/grouped_product.h"
#include "fovea/ops/cuda/quantize.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {
namespace {

constexpr uint32_t kAlignment = 16;  // bytes, of every pointer
constexpr size_t kMaxPlans = 1024;   // a plan is half a KB; prompts end in any number of rows

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::kF8E4M3) return CUDA_R_8F_E4M3;
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// A column-major matrix as cuBLASLt sees it.
class Layout {
 public:
  Layout(DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    cublas_lt().check(
        cublas_lt().create_layout(&layout_, cuda_type(dtype), static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns), stride),
        "describing a matrix to cuBLASLt");
  }
  ~Layout() { cublas_lt().destroy_layout(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

/// cuBLASLt takes rows in f8 by fours, and wants as many columns in the scales of a matrix.
constexpr int64_t kLtUnit = 4;

/// What a copy takes of scales whose rows cuBLASLt wants longer; 0: it takes them as they are.
int64_t lt_scale_bytes(const PackedWeights& weights) {
  const int64_t rows = weights.scales().shape[0], blocks = weights.scales().shape[1];
  return blocks % kLtUnit == 0 ? 0 : rows * ceil_div(blocks, kLtUnit) * kLtUnit * 4;
}

/// Scales of a matrix's blocks as cuBLASLt wants them; `workspace` has lt_scale_bytes().
const float* lt_scales(const PackedWeights& weights, Workspace& workspace, cudaStream_t stream) {
  const auto* scales = weights.scales().as<const float>();
  const int64_t bytes = lt_scale_bytes(weights);
  if (bytes == 0) return scales;
  const auto rows = static_cast<size_t>(weights.scales().shape[0]);
  const size_t width = static_cast<size_t>(weights.scales().shape[1]) * sizeof(float);
  auto* padded = workspace.take<float>(bytes / 4);
  check_cuda(cudaMemcpy2DAsync(padded, static_cast<size_t>(bytes) / rows, scales, width, width,
                               rows, cudaMemcpyDeviceToDevice, stream),
             "padding scales");
  return padded;
}

class Preference {
 public:
  Preference() {
    cublas_lt().check(cublas_lt().create_preference(&preference_), "asking cuBLASLt");
  }
  ~Preference() { cublas_lt().destroy_preference(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    cublas_lt().check(
        cublas_lt().set_preference_attribute(preference_, attribute, &value, sizeof(value)),
        "telling cuBLASLt a preference");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

int64_t f8_rows_bytes(int64_t rows, int64_t in_features) {
  return Workspace::padded(rows * in_features) +
         Workspace::padded(num_row_scales(rows, in_features) * 4);
}

/// What cuBLASLt needs to know of a shape. Its matrices are column-major, so ours are transposed
/// there: out^T [out_features, rows] = weights [out_features, in_features] in^T.
struct CudaMatmul::Plan {
  explicit Plan(const Shape& shape)
      : weights(shape.dtype, shape.in_features, shape.out_features, shape.in_features),
        in(shape.dtype, shape.in_features, shape.rows, shape.in_stride),
        out(shape.out_dtype, shape.out_features, shape.rows, shape.out_stride) {
    cublas_lt().check(cublas_lt().create_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                      "describing a product to cuBLASLt");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublas_lt().check(set(CUBLASLT_MATMUL_DESC_TRANSA, transposed),
                      "describing a product to cuBLASLt");
  }
  ~Plan() { cublas_lt().destroy_desc(desc); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <typename T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    return cublas_lt().set_desc_attribute(desc, attribute, &value, sizeof(value));
  }
  /// Scales for each 128 columns of a row and each 128 x 128 block; false: the library has none.
  bool has_block_scales() const {
    const auto mode = [](cublasLtMatmulMatrixScale_t value) { return static_cast<int32_t>(value); };
    return set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
               mode(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)) == CUBLAS_STATUS_SUCCESS &&
           set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F)) ==
               CUBLAS_STATUS_SUCCESS;
  }
  void set_scales(const float* of_weights, const float* of_in) const {
    constexpr const char* kWhat = "naming scales to cuBLASLt";
    cublas_lt().check(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_weights), kWhat);
    cublas_lt().check(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_in), kWhat);
  }

  Layout weights, in, out;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

CudaMatmul::CudaMatmul(const Context& context) : context_(context) {
  const CublasLt& lt = cublas_lt();
  const DeviceScope scope(context);
  workspace_ = Tensor(DType::kI32, {kWorkspaceBytes / 4}, context.device);
  lt.check(lt.create(&handle_), "starting cuBLASLt");
}

CudaMatmul::~CudaMatmul() {
  plans_.clear();
  if (handle_ != nullptr) cublas_lt().destroy(handle_);
}

const CudaMatmul::Plan* CudaMatmul::find_plan(const Shape& shape) {
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();
  const CublasLt& lt = cublas_lt();
  auto plan = std::make_unique<Plan>(shape);
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    preference.set(attribute, kAlignment);
  }
  if (shape.rows > kMaxSplitRows) {
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  }
  const bool is_f8 = shape.dtype == DType::kF8E4M3;
  bool is_there = !is_f8 || plan->has_block_scales();
  if (is_there) {
    if (is_f8) {  // any will do: the real ones come with each product
      const auto* scales = workspace_.as<const float>();
      plan->set_scales(scales, scales);
    }
    cublasLtMatmulHeuristicResult_t best{};
    int num_found = 0;
    const cublasStatus_t status =
        lt.get_heuristic(handle_, plan->desc, plan->weights.get(), plan->in.get(), plan->out.get(),
                         plan->out.get(), preference.get(), 1, &best, &num_found);
    is_there = status == CUBLAS_STATUS_SUCCESS && num_found > 0;
    plan->algorithm = best.algo;
  }
  if (!is_there) plan.reset();
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

void CudaMatmul::run(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                     bool add) {
  if (in.shape[0] == 0) return;
  const DeviceScope scope(context_);
  using After = RowProduct::After;
  if (in.shape[0] == 1 && run_row({.in = in,
                                   .weights = &weights,
                                   .after = add ? After::kAdd : After::kStore,
                                   .out = out})) {
    return;
  }
  if (weights.dtype() == DType::kF8E4M3) {
    run_f8(in, weights, out, add);
    return;
  }
  const Plan* plan = find_plan({.dtype = DType::kBF16,
                                .rows = in.shape[0],
                                .in_features = in.shape[1],
                                .out_features = weights.out_features(),
                                .in_stride = in.stride[0],
                                .out_stride = out.stride[0],
                                .out_dtype = out.dtype,
                                .add = add});
  if (plan == nullptr) {
    fail(ErrorCode::kUnsupported, "cuBLASLt has no product of bf16[{}, {}] with bf16[{}, {}]",
         in.shape[0], in.shape[1], weights.out_features(), in.shape[1]);
  }
  multiply(*plan, in.data, weights.view().data, out.data, add);
}

void CudaMatmul::multiply(const Plan& plan, const void* in, const void* weights, void* out,
                          bool add) const {
  const CublasLt& lt = cublas_lt();
  const float one = 1;
  const float beta = add ? 1 : 0;
  lt.check(
      lt.matmul(handle_, plan.desc, &one, weights, plan.weights.get(), in, plan.in.get(), &beta,
                out, plan.out.get(), out, plan.out.get(), &plan.algorithm, workspace_.view().data,
                static_cast<size_t>(kWorkspaceBytes), stream_of(context_)),
      "a product in cuBLASLt");
}

bool CudaMatmul::run_row(const RowProduct& product) const {
  const DeviceScope scope(context_);
  return launch_row_product(product, num_multiprocessors(context_.device.index),
                            stream_of(context_));
}

void CudaMatmul::run_f8(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                        bool add) {
  const int64_t rows = in.shape[0], depth = in.shape[1];
  check_argument(out.stride[0] % 8 == 0, "rows of out must be multiples of 8 apart, got {}",
                 out.stride[0]);
  // Outputs in bf16 are faster by our kernel.
  const bool by_library = add && rows % kLtUnit == 0;
  const Plan* plan = by_library ? find_plan({.dtype = DType::kF8E4M3,
                                             .rows = rows,
                                             .in_features = depth,
                                             .out_features = weights.out_features(),
                                             .in_stride = depth,
                                             .out_stride = out.stride[0],
                                             .out_dtype = out.dtype,
                                             .add = add})
                                : nullptr;
  const int64_t scale_bytes = plan == nullptr ? 0 : Workspace::padded(lt_scale_bytes(weights));
  Workspace workspace(f8_rows_bytes(rows, depth) + scale_bytes, "rows in f8", context_);
  auto* quantized = workspace.take<uint8_t>(rows * depth);
  auto* scales = workspace.take<float>(num_row_scales(rows, depth));
  launch_quantize_rows(in, quantized, scales, plan == nullptr ? scale_rows(rows) : rows,
                       stream_of(context_));
  if (plan != nullptr) {
    plan->set_scales(lt_scales(weights, workspace, stream_of(context_)), scales);
    multiply(*plan, quantized, weights.view().data, out.data, add);
    return;
  }
  launch_grouped_product(
      {.tiles = {.rows = rows},
       .in = make_view(quantized, DType::kF8E4M3, {rows, depth}, context_.device),
       .in_scales = scales,
       .weights = weights.view(),
       .weight_scales = weights.scales().as<const float>(),
       .out = out.data,
       .out_dtype = out.dtype,
       .columns = weights.out_features(),
       .out_stride = out.stride[0],
       .add = add},
      context_);
}

}  // namespace fovea::cuda
