// Tokens drawn by a GPU are those that the CPU draws, whatever the options.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/row_ops.h"
#include "fovea/ops/sampling.h"
#include "tests/ops/gpu_rows.h"

namespace fovea {
namespace {

using test::kGpu;
using test::kNaN;
using test::random_values;
using test::upload;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Kept by the GPU, so that many draws are made from logits that were brought there once.
class LogitsOnGpu {
 public:
  LogitsOnGpu(RowOps& ops, const std::vector<float>& logits)
      : ops_(ops), logits_(upload(logits, DType::kF32, {1, static_cast<int64_t>(logits.size())})) {}

  int32_t draw(const Draw& draw) {
    copy_tensor(make_view(const_cast<Draw*>(&draw), DType::kI64, {kWords}), draw_.view(), kGpu);
    int32_t token = -2;
    const TensorView token_view = make_view(&token, DType::kI32, {1});
    copy_tensor(token_view, token_.view(), kGpu);
    ops_.draw(logits_.view(), draw_.as<Draw>(), token_.as<int32_t>());
    copy_tensor(token_.view(), token_view, kGpu);
    return token;
  }

 private:
  static constexpr int64_t kWords = sizeof(Draw) / sizeof(int64_t);
  RowOps& ops_;
  Tensor logits_;
  Tensor draw_ = Tensor(DType::kI64, {kWords}, kGpu.device);
  Tensor token_ = Tensor(DType::kI32, {1}, kGpu.device);
};

std::vector<SamplingSettings> settings_of_all_kinds() {
  std::vector<SamplingSettings> all;
  for (const float temperature : {0.f, 0.01f, 0.7f, 5.f}) {
    for (const int32_t top_k : {0, 1, 40, 3000, 1 << 30}) {
      for (const float top_p : {1.f, 0.9f, 1e-30f}) {
        for (const float min_p : {0.f, 0.05f}) {
          all.push_back({temperature, top_k, top_p, min_p, all.size()});
        }
      }
    }
  }
  return all;
}

class CudaSampling : public test::GpuRowOps {
 protected:
  void expect_the_cpus(const std::vector<float>& logits) {
    LogitsOnGpu on_gpu(*ops_, logits);
    for (const SamplingSettings& settings : settings_of_all_kinds()) {
      Sampler cpu(settings), gpu(settings);
      for (int i = 0; i < 2; ++i) {
        const Draw draw = gpu.next();
        ASSERT_EQ(on_gpu.draw(draw), cpu.sample(logits))
            << logits.size() << " logits, temperature " << settings.temperature << ", top_k "
            << settings.top_k << ", top_p " << settings.top_p << ", min_p " << settings.min_p
            << ", random " << draw.random;
      }
    }
  }
};

TEST_F(CudaSampling, DrawsWhatTheCpuDraws) {
  for (const int64_t vocab_size : {1, 31, 32, 49152, 152064}) {
    for (const float spread : {0.01f, 1.f, 4.f}) {
      expect_the_cpus(random_values(vocab_size, DType::kF32, 7, spread));
    }
  }
}

TEST_F(CudaSampling, EqualLogitsAreKeptTogether) {
  expect_the_cpus(std::vector<float>(50257, -3.f));
  std::vector<float> coarse = random_values(49152, DType::kF32, 8, 3);
  for (float& logit : coarse) logit = std::round(logit);
  expect_the_cpus(coarse);
}

TEST_F(CudaSampling, InfinitiesAreNoNumbersOfTokens) {
  std::vector<float> logits = random_values(49152, DType::kF32, 9);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i % 7 != 3) logits[i] = -kInf;
  }
  expect_the_cpus(logits);
  logits[20000] = logits[30000] = kInf;
  expect_the_cpus(logits);
  expect_the_cpus(std::vector<float>(1000, -kInf));
  expect_the_cpus({-kInf, -0.f, 0.f, -kInf});
  std::vector<float> one_hot(152064, -kInf);
  one_hot.back() = -1e30f;
  expect_the_cpus(one_hot);
}

TEST_F(CudaSampling, NanIsSaid) {
  for (const size_t at : {0, 17, 151999}) {
    std::vector<float> logits = random_values(152000, DType::kF32, 10);
    logits[at] = kNaN;
    LogitsOnGpu on_gpu(*ops_, logits);
    EXPECT_EQ(on_gpu.draw({}), -1);
    EXPECT_EQ(on_gpu.draw({.random = 0.5, .temperature = 1}), -1);
  }
}

// Every random number's token, also the first and the last.
TEST_F(CudaSampling, AllNumbersOfASmallVocabulary) {
  const std::vector<float> logits = random_values(40, DType::kF32, 11, 2);
  LogitsOnGpu on_gpu(*ops_, logits);
  DrawScratch scratch;
  for (int i = 0; i <= 1000; ++i) {
    const Draw draw{.random = i < 1000 ? i / 1000.0 : 1 - 0x1p-53, .temperature = 1.5f};
    ASSERT_EQ(on_gpu.draw(draw), draw_token(logits, draw, scratch)) << i;
  }
}

TEST_F(CudaSampling, VocabulariesBeyondSharedMemory) {
  expect_the_cpus(random_values(500001, DType::kF32, 12, 2));
}

TEST_F(CudaSampling, RefusesOtherTensors) {
  const Tensor draw(DType::kI64, {3}, kGpu.device), token(DType::kI32, {1}, kGpu.device);
  const auto refuse = [&](const TensorView& logits) {
    EXPECT_THROW(ops_->draw(logits, draw.as<Draw>(), token.as<int32_t>()), Error);
  };
  refuse(Tensor(DType::kF32, {2, 32}, kGpu.device).view());
  refuse(Tensor(DType::kF32, {1, 0}, kGpu.device).view());
  refuse(Tensor(DType::kBF16, {1, 32}, kGpu.device).view());
  refuse(Tensor(DType::kF32, {1, 32}).view());
}

}  // namespace
}  // namespace fovea
