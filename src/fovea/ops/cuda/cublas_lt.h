// The functions of cuBLASLt that we call, looked up in the library at run time: a binary starts
// where there is none.
#pragma once

#include <cublasLt.h>

namespace fovea::cuda {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulDescCreate) create_desc;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc_attribute;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference_attribute;
  decltype(&cublasLtGetStatusString) status_string;

  /// Throws kDevice naming what failed, unless `status` is success.
  void check(cublasStatus_t status, const char* what) const;
};

/// Throws kUnsupported saying where the library was looked for.
const CublasLt& cublas_lt();

}  // namespace fovea::cuda
