#include "fovea/engine/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/base/error.h"
#include "fovea/engine/session.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

using testing::HasSubstr;

TEST(Synthetic, EveryShapeIsAModel) {
  for (const std::string& name : synthetic_names()) {
    const ModelConfig config = synthetic_config(name);
    EXPECT_NO_THROW(check_config(config, name));
    EXPECT_GE(config.context_length, 128 * 1024) << name;
  }
}

TEST(Synthetic, AnUnknownNameIsAnErrorThatListsTheOthers) {
  try {
    synthetic_config("GPT-2");
    FAIL() << "made a model that is not there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("GPT-2"));
    EXPECT_THAT(error.what(), HasSubstr("Qwen2.5-7B"));
  }
}

std::vector<float> logits_of(const std::string& name, uint64_t seed) {
  ModelOptions options;
  options.compute = ComputeType::kF32;
  const auto model = Model::synthetic(name, seed, options);
  Session session(model);
  const std::vector<int32_t> tokens = model->tokenizer().encode("A text of bytes.", {});
  EXPECT_EQ(tokens.size(), 16u);
  const auto logits = session.prefill(tokens);
  return {logits.begin(), logits.end()};
}

TEST(Synthetic, TheSeedDecidesEverything) {
  for (const char* name : {"Test-1M", "Test-MoE", "Test-OSS"}) {
    SCOPED_TRACE(name);
    const std::vector<float> first = logits_of(name, 1);
    EXPECT_EQ(logits_of(name, 1), first);
    EXPECT_NE(logits_of(name, 2), first);
    for (const float logit : first) ASSERT_LT(std::abs(logit), 100.0f);  // they stay in range
  }
}

}  // namespace
}  // namespace fovea
