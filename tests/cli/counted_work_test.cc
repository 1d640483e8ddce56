// The cost model of `fovea worth` against what the engine counts while it runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <random>

#include "apps/cli/worth_models.h"
#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"

namespace fovea::cli {
namespace {

constexpr double kTolerance = 0.01;

/// needle_7m, and what scripts/get_model.py has put beside it.
std::vector<std::string> model_paths() {
  std::vector<std::string> paths;
  std::error_code not_in_the_tree;
  for (const auto& entry : std::filesystem::directory_iterator("models", not_in_the_tree)) {
    if (entry.is_directory() || entry.path().extension() == ".gguf") {
      paths.push_back(entry.path().string());
    }
  }
  return paths;
}

/// The counts that the cost model and the engine share. Activations are left out: the engine keeps
/// them in a core's cache.
WorkDone modelled(const worth::StepCost& cost) {
  double matmul_flops = 0, attention_flops = 0, weight_bytes = 0, kv_bytes = 0;
  for (const worth::OpCost& op : cost.ops) {
    if (op.group == worth::OpGroup::kMatmul || op.group == worth::OpGroup::kLmHead) {
      matmul_flops += op.flops;
      weight_bytes += op.bytes;
    } else if (op.group == worth::OpGroup::kAttention) {
      attention_flops += op.flops;
      kv_bytes += op.bytes;
    }
  }
  return {static_cast<int64_t>(matmul_flops), static_cast<int64_t>(attention_flops),
          static_cast<int64_t>(weight_bytes), static_cast<int64_t>(kv_bytes)};
}

void expect_close(int64_t counted, int64_t expected, const char* what) {
  EXPECT_GT(counted, 0) << what;
  EXPECT_NEAR(static_cast<double>(counted) / static_cast<double>(expected), 1, kTolerance) << what;
}

void expect_close(const WorkDone& counted, const WorkDone& expected) {
  expect_close(counted.matmul_flops, expected.matmul_flops, "matmul FLOPs");
  expect_close(counted.attention_flops, expected.attention_flops, "attention FLOPs");
  expect_close(counted.weight_bytes, expected.weight_bytes, "bytes of weights");
  expect_close(counted.kv_bytes, expected.kv_bytes, "bytes of KV");
}

class CountedWork : public testing::TestWithParam<std::string> {};

TEST_P(CountedWork, IsWhatTheCostModelSays) {
  const auto model = Model::load(GetParam());
  worth::ModelShape shape = load_model_shape(GetParam());
  const auto element = static_cast<double>(dtype_bytes(model->compute_dtype()));
  shape.precision = {
      .weight_bytes = element, .expert_bytes = element, .activation_bytes = 0, .kv_bytes = element};
  const worth::DeviceRates device = load_device_rates("h200", "bf16");

  std::mt19937 random(1);
  std::vector<int32_t> tokens(1500);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(model->config().vocab_size));
  }
  SessionOptions options;
  options.max_len = 2048;
  Session session(model, options);
  session.prefill(tokens);
  expect_close(session.report().work, modelled(worth::prefill_cost(shape, device, 1500)));

  // A second prompt behind the first, whose tokens are in the cache.
  session.prefill(std::span(tokens).first(500));
  const WorkDone before = session.work();
  EXPECT_EQ(before.matmul_flops, session.report().work.matmul_flops);
  session.decode(tokens[0]);
  WorkDone step = session.work();
  step.matmul_flops -= before.matmul_flops;
  step.attention_flops -= before.attention_flops;
  step.weight_bytes -= before.weight_bytes;
  step.kv_bytes -= before.kv_bytes;
  expect_close(step, modelled(worth::decode_cost(shape, device, 2001)));
}

std::string case_name(const testing::TestParamInfo<std::string>& model) {
  std::string name = std::filesystem::path(model.param).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, CountedWork, testing::ValuesIn(model_paths()), case_name);

// A selection that keeps some blocks costs these; of a query block's own, only the causal half.
TEST(CountedSparseWork, IsWhatTheListsKeep) {
  const auto model = Model::load("models/needle_7m");
  const ModelConfig& config = model->config();
  const std::vector<int32_t> tokens(4096, 7);
  SessionOptions options;
  options.max_len = 4096;
  options.attention.min_sparse_len = 0;
  options.attention.selector = SelectorSettings{};
  options.attention.selector->method = SelectorMethod::kRescue;
  for (const float density : {0.25f, 1.0f}) {
    options.attention.selector->density = density;
    Session session(model, options);
    session.prefill(tokens);
    const int64_t block_size = options.attention.selector->block_size;
    const int64_t diagonals = config.num_layers * config.num_q_heads * 4096 / block_size;
    const int64_t pairs = session.report().kept_pairs * block_size * block_size -
                          diagonals * block_size * (block_size - 1) / 2;
    EXPECT_EQ(session.work().attention_flops, 4 * pairs * config.head_dim) << density;
    if (density < 1) continue;
    EXPECT_EQ(pairs, config.num_layers * config.num_q_heads * 4096 * 4097 / 2);
  }
}

}  // namespace
}  // namespace fovea::cli
