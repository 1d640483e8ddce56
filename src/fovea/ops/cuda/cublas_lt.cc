#include "fovea/ops/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>

#include "fovea/base/error.h"

namespace fovea::cuda {
namespace {

CublasLt load() {
  // Both major versions have the same signatures and attributes, and we touch no opaque layout.
  constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  void* library = nullptr;
  for (const char* name : kNames) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    fail(ErrorCode::kUnsupported,
         "cuBLASLt is not here, neither {} nor {}: install it or name its folder in "
         "LD_LIBRARY_PATH (the CUDA toolkit has it)",
         kNames[0], kNames[1]);
  }
  const auto find = [&](const char* symbol, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) fail(ErrorCode::kUnsupported, "cuBLASLt has no {}", symbol);
  };
  CublasLt functions;
  find("cublasLtCreate", functions.create);
  find("cublasLtDestroy", functions.destroy);
  find("cublasLtMatmul", functions.matmul);
  find("cublasLtMatmulAlgoGetHeuristic", functions.get_heuristic);
  find("cublasLtMatmulDescCreate", functions.create_desc);
  find("cublasLtMatmulDescDestroy", functions.destroy_desc);
  find("cublasLtMatmulDescSetAttribute", functions.set_desc_attribute);
  find("cublasLtMatrixLayoutCreate", functions.create_layout);
  find("cublasLtMatrixLayoutDestroy", functions.destroy_layout);
  find("cublasLtMatmulPreferenceCreate", functions.create_preference);
  find("cublasLtMatmulPreferenceDestroy", functions.destroy_preference);
  find("cublasLtMatmulPreferenceSetAttribute", functions.set_preference_attribute);
  find("cublasLtGetStatusString", functions.status_string);
  return functions;
}

}  // namespace

void CublasLt::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(ErrorCode::kDevice, "{} failed: {}", what, status_string(status));
  }
}

const CublasLt& cublas_lt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace fovea::cuda
