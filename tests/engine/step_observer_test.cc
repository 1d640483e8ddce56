// What an observer is told agrees with the session's own report, and changes nothing.
#include "fovea/engine/step_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "fovea/engine/generate.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

struct Recorder final : StepObserver {
  void begin_step(const StepStart& step) override {
    steps.push_back(step);
    op_s.emplace_back();
  }
  void record(const OpTiming& timing) override {
    ASSERT_FALSE(steps.empty()) << "a piece outside every step";
    EXPECT_GE(timing.start, steps.back().start);
    EXPECT_GE(timing.seconds, 0);
    EXPECT_GE(timing.start, last_start) << step_op_name(timing.op);
    last_start = timing.start;
    op_s.back()[timing.op] += timing.seconds;
    layers[timing.op].push_back(timing.layer);
  }
  double seconds(size_t step, std::initializer_list<StepOp> ops) const {
    double sum = 0;
    for (const StepOp op : ops) {
      if (op_s[step].contains(op)) sum += op_s[step].at(op);
    }
    return sum;
  }

  std::vector<StepStart> steps;
  std::vector<std::map<StepOp, double>> op_s;
  std::map<StepOp, std::vector<int64_t>> layers;
  StepClock::time_point last_start;
};

SessionOptions options_of(StepObserver* observer, bool sparse) {
  SessionOptions options;
  options.chunk_size = 512;
  options.observer = observer;
  if (sparse) options.attention.selector = SelectorSettings{};
  options.attention.min_sparse_len = 0;
  return options;
}

class Observed : public testing::TestWithParam<bool> {};

TEST_P(Observed, PiecesAddUpToTheReport) {
  const auto model = Model::load("models/needle_7m");
  std::vector<int32_t> prompt(1000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i * 37 % 4000);
  GenerateOptions generation;
  generation.max_new_tokens = 3;
  generation.stop_at_eos = false;

  Session plain(model, options_of(nullptr, GetParam()));
  Recorder recorder;
  Session observed(model, options_of(&recorder, GetParam()));
  const GenerateResult expected = generate(plain, prompt, generation);
  const GenerateResult result = generate(observed, prompt, generation);
  EXPECT_EQ(result.tokens, expected.tokens);

  // Two chunks, then a decode step for each token but the last, whose logits nobody needs.
  ASSERT_EQ(recorder.steps.size(), 4u);
  const bool is_decode[] = {false, false, true, true};
  const int64_t num_tokens[] = {512, 488, 1, 1};
  const int64_t position[] = {0, 512, 1000, 1001};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(recorder.steps[i].is_decode, is_decode[i]);
    EXPECT_EQ(recorder.steps[i].num_tokens, num_tokens[i]);
    EXPECT_EQ(recorder.steps[i].position, position[i]);
  }

  const auto prefill_ms = [&](std::initializer_list<StepOp> ops) {
    return 1e3 * (recorder.seconds(0, ops) + recorder.seconds(1, ops));
  };
  const PhaseTimes& times = result.prefill.times;
  EXPECT_NEAR(prefill_ms({StepOp::kDenseAttention, StepOp::kSparseAttention}), times.attention_ms,
              1e-6);
  EXPECT_NEAR(prefill_ms({StepOp::kBlockStatistics, StepOp::kSelection}), times.selection_ms, 1e-6);
  EXPECT_NEAR(prefill_ms({StepOp::kQkvMatmul, StepOp::kOutputMatmul, StepOp::kGateUpMatmul,
                          StepOp::kDownMatmul, StepOp::kLogitsMatmul}),
              times.matmul_ms, 1e-6);
  double all_ms = 0;
  for (int i = 0; i < kNumStepOps; ++i) {
    if (i != static_cast<int>(StepOp::kSampling)) all_ms += prefill_ms({static_cast<StepOp>(i)});
  }
  EXPECT_LE(all_ms, times.total_ms);
  EXPECT_EQ(times.selection_ms > 0, GetParam());

  // Every layer of every step, in order.
  const int64_t num_layers = model->config().num_layers;
  std::vector<int64_t> each_layer;
  for (int step = 0; step < 4; ++step) {
    for (int64_t layer = 0; layer < num_layers; ++layer) each_layer.push_back(layer);
  }
  EXPECT_EQ(recorder.layers[StepOp::kQkvMatmul], each_layer);
  EXPECT_EQ(recorder.layers[StepOp::kDownMatmul], each_layer);
  EXPECT_EQ(recorder.layers[StepOp::kSampling], (std::vector<int64_t>(3, -1)));
}

INSTANTIATE_TEST_SUITE_P(Attention, Observed, testing::Bool(),
                         [](const auto& test) { return test.param ? "Sparse" : "Dense"; });

// What stepping aside costs is nothing, since nothing else is done: no statistics, no selection.
TEST(StepObserver, BelowTheBreakEvenLengthEveryPieceIsOneOfDense) {
  const auto model = Model::load("models/needle_7m");
  std::vector<int32_t> prompt(900);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i * 37 % 4000);
  GenerateOptions generation;
  generation.max_new_tokens = 3;
  generation.stop_at_eos = false;
  Recorder of_dense, of_sparse;
  Session dense(model, options_of(&of_dense, false));
  SessionOptions options = options_of(&of_sparse, true);
  options.attention.min_sparse_len = 1000;
  options.attention.sparse_decode = true;
  Session aside(model, options);
  EXPECT_EQ(generate(aside, prompt, generation).tokens, generate(dense, prompt, generation).tokens);
  EXPECT_EQ(of_sparse.layers, of_dense.layers);
  EXPECT_TRUE(of_sparse.layers.contains(StepOp::kDenseAttention));
  for (const StepOp op : {StepOp::kBlockStatistics, StepOp::kSelection, StepOp::kSparseAttention}) {
    EXPECT_FALSE(of_sparse.layers.contains(op)) << step_op_name(op);
  }
}

TEST(StepOp, EveryOneHasANameOfItsOwn) {
  std::map<std::string_view, int> names;
  for (int i = 0; i < kNumStepOps; ++i) ++names[step_op_name(static_cast<StepOp>(i))];
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumStepOps));
  EXPECT_FALSE(names.contains(""));
}

}  // namespace
}  // namespace fovea
