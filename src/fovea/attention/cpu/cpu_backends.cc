#include "fovea/attention/cpu/cpu_backends.h"

#include "fovea/attention/cpu/decode.h"
#include "fovea/attention/cpu/prefill.h"
#include "fovea/attention/cpu/tile_kernel.h"
#include "fovea/base/cpu_features.h"

namespace fovea {
namespace {

class CpuBackend : public AttentionBackend {
 public:
  CpuBackend(std::string_view name, const cpu::TileKernel& (*kernel)(),
             bool (*is_available)(const CpuFeatures&))
      : name_(name), kernel_(kernel), is_available_(is_available) {}

  std::string_view name() const override { return name_; }

  std::string why_unsupported(const AttentionParams& params,
                              const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    if (!is_available_(cpu_features())) return "the processor lacks its instructions";
    const bool is_bf16 = params.q.dtype == DType::kBF16;
    if (!is_bf16 && params.q.dtype != DType::kF32) return "needs f32 or bf16";
    if (!kernel_().supports(params.head_dim(), is_bf16)) {
      return fmt::format("no head_dim {} in {}", params.head_dim(), dtype_name(params.q.dtype));
    }
    return "";
  }

  void run(const AttentionParams& params, const Context& context) const override {
    cpu::decode(kernel_(), params, context);
    cpu::prefill(kernel_(), params, context);
  }

 private:
  std::string_view name_;
  const cpu::TileKernel& (*kernel_)();
  bool (*is_available_)(const CpuFeatures&);
};

}  // namespace

std::span<const AttentionBackend* const> cpu_attention_backends() {
#if defined(__x86_64__)
  static const CpuBackend amx_bf16("cpu_amx_bf16", &cpu::amx_bf16_tile_kernel,
                                   [](const CpuFeatures& f) { return f.amx_bf16; });
  static const CpuBackend avx512_bf16("cpu_avx512_bf16", &cpu::avx512_bf16_tile_kernel,
                                      [](const CpuFeatures& f) { return f.avx512_bf16; });
  static const CpuBackend avx512("cpu_avx512", &cpu::avx512_tile_kernel,
                                 [](const CpuFeatures& f) { return f.avx512; });
  static const CpuBackend avx2("cpu_avx2", &cpu::avx2_tile_kernel,
                               [](const CpuFeatures& f) { return f.avx2; });
#endif
  static const CpuBackend portable("cpu_portable", &cpu::portable_tile_kernel,
                                   [](const CpuFeatures&) { return true; });
  static const AttentionBackend* const backends[] = {
#if defined(__x86_64__)
    &amx_bf16,
    &avx512_bf16,
    &avx512,
    &avx2,
#endif
    &portable
  };
  return backends;
}

}  // namespace fovea
