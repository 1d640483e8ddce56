// `fovea kernels --device-file`, and `fovea worth --device` on what it wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "fovea/worth/device_rates.h"
#include "tests/cli/process.h"
#include "tests/support/temp_dir.h"

namespace fovea::cli {
namespace {

using testing::HasSubstr;

TEST(DeviceFile, WhatKernelsMeasuredIsWhatWorthReckonsWith) {
  const test::TempDir folder;
  const std::string path = folder.file("mine.json");
  const ProcessResult kernels = run_fovea(
      {"kernels", "--lengths", "1K", "--attention", "witness", "--head-dim", "64", "--q-heads", "2",
       "--kv-heads", "1", "--min-seconds", "0", "--dtype", "f32", "--json", "--device-file", path});
  ASSERT_EQ(kernels.exit_code, 0) << kernels.err;
  const nlohmann::json measured = nlohmann::json::parse(kernels.out);
  double best_gflops = 0;
  double best_kv = 0;
  for (const auto& row : measured.at("rows")) {
    if (row.at("kernel") == "attention") {
      best_gflops = std::max(best_gflops, row.at("gflops").get<double>());
    }
    if (row.at("kernel") == "decode") {
      best_kv = std::max(best_kv, row.at("kv_gb_per_s").get<double>());
    }
  }
  std::ifstream file(path);
  const worth::DeviceRates rates =
      worth::device_rates_from_json(std::string(std::istreambuf_iterator<char>(file), {}), "f32");
  EXPECT_NEAR(rates.gemm_tflops, measured.at("gemm_gflops").get<double>() / 1e3, 1e-9);
  EXPECT_NEAR(rates.copy_gbps, measured.at("copy_gb_per_s").get<double>(), 1e-9);
  EXPECT_NEAR(rates.attention_tflops, best_gflops / 1e3, 1e-9);
  EXPECT_NEAR(rates.attention_gbps, best_kv, 1e-9);
  EXPECT_THAT(rates.source, HasSubstr("measured: "));

  const ProcessResult worth =
      run_fovea({"worth", "--model", "Qwen2.5-7B", "--device", path, "--dtype", "f32"});
  EXPECT_EQ(worth.exit_code, 0) << worth.err;
  EXPECT_THAT(worth.out, HasSubstr("measured: fovea kernels"));
  const ProcessResult other_type = run_fovea({"worth", "--model", "Qwen2.5-7B", "--device", path});
  EXPECT_EQ(other_type.exit_code, 2);
  EXPECT_THAT(other_type.err, HasSubstr("no matmul rate for bf16; it has f32"));
}

}  // namespace
}  // namespace fovea::cli
