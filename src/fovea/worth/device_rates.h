// What a device was measured to do: the two roofs, not the ones on its data sheet.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea::worth {

/// Rates of one device. Rates per second, 1e12 FLOPs and 1e9 bytes.
struct DeviceRates {
  std::string name;
  std::string description;
  std::string source;           // "measured: ..." or "specification: ..."
  double gemm_tflops = 0;       // large matmuls in the model's activation type
  double expert_tflops = 0;     // a mixture's experts; 0 means that they run at gemm_tflops
  double copy_gbps = 0;         // large reads
  double attention_tflops = 0;  // prefill attention; 0 means that it runs at gemm_tflops
  double attention_gbps = 0;    // decode attention's reads; 0 means copy_gbps

  /// FLOPs for each byte at which the two roofs meet.
  double ridge() const { return gemm_tflops * 1e3 / copy_gbps; }
};

/// A device of the shipped table by name ("h200", "h100", "a10g"). `dtype` picks the matmul rate
/// ("bf16", "fp8"). Throws kInvalidArgument listing the names.
DeviceRates device_rates_by_name(std::string_view name, std::string_view dtype = "bf16");

/// Reads {"name": {"description", "source", "gemm_tflops": {"bf16": ...},
/// "expert_tflops": {"bf16": ...}, "copy_gbps", "attention_tflops", "attention_gbps"}}, the table's
/// own format, with one device. Throws kInvalidFile naming what is wrong.
DeviceRates device_rates_from_json(std::string_view json_text, std::string_view dtype = "bf16");

std::vector<std::string> known_device_names();

}  // namespace fovea::worth
