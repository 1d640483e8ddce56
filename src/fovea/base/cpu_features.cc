#include "fovea/base/cpu_features.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "fovea/base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fovea {
namespace {

#if defined(__x86_64__)
// Linux hands out the 8 KiB of tile registers only on request, once per process.
bool request_tile_registers() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

bool cpuid_has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  return (edx & kAll) == kAll;
}

// clang 14 does not know the name in __builtin_cpu_supports.
bool cpuid_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

CpuFeatures detect() {
  __builtin_cpu_init();
  CpuFeatures found;
  found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpuid_has_f16c();
  found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
  found.avx512_bf16 = found.avx512 && __builtin_cpu_supports("avx512bf16") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  found.amx_bf16 = found.avx512_bf16 && cpuid_has_amx() && request_tile_registers();
  return found;
}
#else
CpuFeatures detect() { return {}; }
#endif

CpuFeatures limited(CpuFeatures found) {
  const char* limit = std::getenv("FOVEA_MAX_ISA");
  if (limit == nullptr || *limit == '\0') return found;
  constexpr std::string_view kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  int level = -1;
  for (int i = 0; i < 5; ++i) {
    if (kNames[i] == limit) level = i;
  }
  check_argument(level >= 0,
                 "FOVEA_MAX_ISA must be portable, avx2, avx512, avx512_bf16 or amx_bf16, got '{}'",
                 limit);
  found.avx2 = found.avx2 && level >= 1;
  found.avx512 = found.avx512 && level >= 2;
  found.avx512_bf16 = found.avx512_bf16 && level >= 3;
  found.amx_bf16 = found.amx_bf16 && level >= 4;
  return found;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = limited(detect());
  return features;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace fovea
