// What `fovea kernels` measured, on any device.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "benchmarks/kernel_bench.h"

namespace fovea::cli {

/// A row of the table and of the JSON.
struct KernelRow {
  std::string kernel;  // "attention", "attention, sparse", "selection: rescue", "decode"
  std::string backend;
  int64_t length = 0;
  Timing timing;
  double density = 1;
  std::string rate;     // in words, with its unit
  std::string against;  // what it is compared with, in words
  nlohmann::json figures = nlohmann::json::object();
  std::string target = {};  // floor and goal of what `against` says, in words
};

/// What the device does best, measured in the same run.
struct KernelRates {
  double gemm_gflops = 0;
  double copy_gb_per_s = 0;
};

}  // namespace fovea::cli
