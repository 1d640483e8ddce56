#include "fovea/ops/cpu/row_kernels.h"

#include "fovea/base/cpu_features.h"

namespace fovea::cpu {

const RowKernels& row_kernels() {
#ifdef __x86_64__
  if (cpu_features().avx512) return kRowKernelsAvx512;
  if (cpu_features().avx2) return kRowKernelsAvx2;
#endif
  return kRowKernelsPortable;
}

}  // namespace fovea::cpu
