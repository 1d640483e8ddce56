// Recording through CUPTI: on a GPU, what was launched; without one, a clear refusal.
#include "fovea/trace/cuda/cupti_trace.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "tests/support/temp_dir.h"

namespace fovea::trace {
namespace {

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

void clear(void* data, size_t bytes) {
  ASSERT_EQ(cudaMemset(data, 0, bytes), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(CuptiTrace, WithoutAGpuItSaysSoAndLeavesNoFile) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU";
  const test::TempDir folder;
  const std::string path = folder.file("trace.json");
  try {
    const CuptiTrace trace(path);
    FAIL() << "recorded without a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("CUPTI"));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(CuptiTrace, RecordsWhatAStepLaunchedAndNothingOutside) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  const test::TempDir folder;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 1 << 20), cudaSuccess);
  clear(data, 1 << 20);                                  // before the recording
  for (int recording = 0; recording < 2; ++recording) {  // a second one begins anew
    const std::string path = folder.file("trace" + std::to_string(recording) + ".json");
    CuptiTrace trace(path);
    trace.begin_step("step[decode bs=1]");
    clear(data, 1 << 20);
    trace.end_step();
    trace.finish();

    std::ifstream file(path);
    const nlohmann::json events = nlohmann::json::parse(file)["traceEvents"];
    nlohmann::json step, call, memset;
    for (const nlohmann::json& event : events) {
      if (event["cat"] == "user_annotation") step = event;
      if (event["cat"] == "gpu_memset") {
        EXPECT_TRUE(memset.is_null()) << "more than one";
        memset = event;
      }
    }
    ASSERT_FALSE(step.is_null());
    ASSERT_FALSE(memset.is_null());
    EXPECT_GT(memset["dur"], 0);
    for (const nlohmann::json& event : events) {
      if (event["cat"] == "cuda_runtime" &&
          event["args"]["correlation"] == memset["args"]["correlation"]) {
        call = event;
      }
    }
    ASSERT_FALSE(call.is_null());
    EXPECT_THAT(call["name"].get<std::string>(), testing::HasSubstr("Memset"));
    EXPECT_EQ(call["tid"], step["tid"]);
    EXPECT_GE(call["ts"], step["ts"]);
    EXPECT_LE(call["ts"].get<double>(), step["ts"].get<double>() + step["dur"].get<double>());
    EXPECT_GE(memset["ts"], call["ts"]);
  }
  cudaFree(data);
}

}  // namespace
}  // namespace fovea::trace
