// What this processor can do, asked once. Kernels compiled for an instruction set run only behind
// these.
#pragma once

#include <string>

namespace fovea {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // VDPBF16PS, VNNI and VBMI
  bool amx_bf16 = false;     // TDPBF16PS, AMX-INT8 beside it, and the kernel granted this process
                             // the tile registers
};

/// The processor's features, lowered to FOVEA_MAX_ISA when that variable is set to one of
/// portable, avx2, avx512, avx512_bf16, amx_bf16 (for tests and comparisons).
const CpuFeatures& cpu_features();

/// The processor's model name as the system reports it, or "unknown".
std::string cpu_model_name();

}  // namespace fovea
