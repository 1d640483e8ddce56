#include "fovea/quality/diagnose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/quality/task.h"
#include "fovea/selector/reference/reference_selector.h"
#include "fovea/tensor/random_value.h"
#include "fovea/tensor/tensor.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::quality {
namespace {

// A call of one sequence of 40 tokens in pages of 16, two q heads on one KV head of 8, the queries
// those of positions 16 ... 39.
struct SmallCall {
  Tensor q{DType::kF32, {24, 2, 8}}, k{DType::kF32, {4, 1, 16, 8}}, v{DType::kF32, {4, 1, 16, 8}};
  std::vector<int32_t> pages = {2, 0, 3};
  std::vector<int64_t> q_offsets = {0, 24}, kv_lens = {40};
  SelectorParams params;

  SmallCall() {
    for (int64_t i = 0; i < 24 * 2 * 8; ++i) q.as<float>()[i] = 3 * random_value(1, i);
    for (int64_t i = 0; i < 4 * 16 * 8; ++i) k.as<float>()[i] = random_value(2, i);
    params.q = q.view();
    params.kv.k = k.view();
    params.kv.v = v.view();
    params.kv.page_table = pages.data();
    params.kv.page_table_stride = 3;
    params.kv.page_size = 16;
    params.batch = {1, q_offsets.data(), kv_lens.data()};
  }
  double logit(int64_t position, int64_t head, int64_t key) const {
    double sum = 0;
    for (int64_t c = 0; c < 8; ++c) {
      const int64_t page = pages[static_cast<size_t>(key / 16)];
      sum += static_cast<double>(q.as<float>()[((position - 16) * 2 + head) * 8 + c]) *
             static_cast<double>(k.as<float>()[(page * 16 + key % 16) * 8 + c]);
    }
    return sum / std::sqrt(8.0);
  }
};

TEST(AttentionMass, IsTheMeanOfTheRowsWeights) {
  const SmallCall call;
  for (const int64_t head : {0, 1}) {
    for (const int64_t q_block : {1, 2}) {  // the second ends within its page
      const int64_t first = q_block * 16, end = std::min<int64_t>(first + 16, 40);
      std::vector<double> want(static_cast<size_t>(end), 0.0);
      for (int64_t position = first; position < end; ++position) {
        double sum = 0;
        for (int64_t key = 0; key <= position; ++key) {
          sum += std::exp(call.logit(position, head, key));
        }
        for (int64_t key = 0; key <= position; ++key) {
          want[static_cast<size_t>(key)] +=
              std::exp(call.logit(position, head, key)) / sum / static_cast<double>(end - first);
        }
      }
      const AttentionMass mass = attention_mass(call.params, head, q_block);
      ASSERT_EQ(mass.keys.size(), want.size());
      for (size_t key = 0; key < want.size(); ++key) EXPECT_NEAR(mass.keys[key], want[key], 1e-6);
      ASSERT_EQ(mass.blocks.size(), static_cast<size_t>(q_block + 1));
      EXPECT_NEAR(mass.blocks[0], std::accumulate(want.begin(), want.begin() + 16, 0.0), 1e-6);
      EXPECT_NEAR(std::accumulate(mass.blocks.begin(), mass.blocks.end(), 0.0), 1, 1e-6);
      // The row that looks hardest at the first block.
      double highest = 0;
      for (int64_t position = first; position < end; ++position) {
        double in_block = 0, all = 0;
        for (int64_t key = 0; key <= position; ++key) {
          all += std::exp(call.logit(position, head, key));
          if (key < 16) in_block += std::exp(call.logit(position, head, key));
        }
        highest = std::max(highest, in_block / all);
      }
      EXPECT_NEAR(mass.peaks[0].mass, highest, 1e-6);
      EXPECT_LT(mass.peaks[0].key, 16);
      EXPECT_LE(mass.peaks[0].key_weight, mass.peaks[0].mass);
    }
  }
}

// The model that the project carries, on one of its tasks.
class NeedleDiagnosis : public testing::Test {
 protected:
  NeedleDiagnosis() : model_(Model::load("models/needle_7m")) {
    std::ifstream file("LICENSE");
    std::string text(std::istreambuf_iterator<char>(file), {});
    text = text + text;
    const TaskMaker maker(text, [this](std::string_view part) {
      return model_->tokenizer().encode(part, {.add_bos = false, .parse_special = false});
    });
    prompt_ = maker.make("single", {.length = 4096, .bos_id = 0}, 0, 4).tokens;
  }
  static NamedSelector selector(SelectorMethod method, float density) {
    NamedSelector named{std::string(selector_method_name(method)), {}};
    named.settings.method = method;
    named.settings.density = density;
    return named;
  }

  std::shared_ptr<const Model> model_;
  std::vector<int32_t> prompt_;
};

TEST_F(NeedleDiagnosis, TheOracleHoldsTheMostAndMeansHideTheNeedle) {
  DiagnoseSettings settings;
  settings.density = 0.2f;
  settings.num_q_blocks = 2;  // of the last, where the question stands
  settings.selectors = {selector(SelectorMethod::kCentroid, 0.2f),
                        selector(SelectorMethod::kWitness, 0.2f),
                        selector(SelectorMethod::kOracle, 0.2f)};
  Diagnoser diagnoser(model_, settings);
  diagnoser.read(prompt_, {});
  const Diagnosis diagnosis = diagnoser.result();
  EXPECT_EQ(diagnosis.num_prompts, 1);
  EXPECT_EQ(diagnosis.num_query_blocks, 2 * diagnosis.num_layers * diagnosis.num_q_heads);
  ASSERT_EQ(diagnosis.selectors.size(), 3u);
  for (const SelectorDiagnosis& one : diagnosis.selectors) {
    EXPECT_NEAR(one.density(), 0.2, 0.03) << one.name;  // 32 blocks make coarse steps
    EXPECT_GT(one.recall, one.free_recall * 0.5);
    EXPECT_LE(one.recall, 1 + 1e-6);
    EXPECT_LE(one.free_recall, one.oracle_free_recall + 1e-6) << one.name;
    EXPECT_NEAR(one.head_density(0, 0, diagnosis.num_q_heads), 0.2, 0.03);
  }
  // The oracle's score is the sum of exponentials over the rows, not the mean of their weights, so
  // it need not choose the very best.
  EXPECT_GT(diagnosis.selectors[2].free_recall, diagnosis.selectors[0].free_recall);
  EXPECT_GT(diagnosis.selectors[2].free_recall, 0.8 * diagnosis.selectors[2].oracle_free_recall);

  EXPECT_GT(diagnosis.num_top, 0);
  EXPECT_NEAR(std::accumulate(diagnosis.top_by_radius.begin(), diagnosis.top_by_radius.end(), 0.0),
              1, 1e-9);
  const ScoreDiagnosis& centroid = diagnosis.scores[0];
  const ScoreDiagnosis& witness = diagnosis.scores[3];
  EXPECT_EQ(centroid.name, "centroid");
  EXPECT_EQ(witness.name, "witness");
  EXPECT_GT(witness.in_budget, centroid.in_budget);
  EXPECT_LE(diagnosis.diluted_share, diagnosis.single_token_share);
  ASSERT_FALSE(diagnosis.cases.empty());
  double previous = 1;
  for (const DilutionCase& found : diagnosis.cases) {
    EXPECT_LE(found.block_mass, previous);
    previous = found.block_mass;
    EXPECT_GE(found.block_mass, kLookedAt);
    EXPECT_GE(found.token_share, 0.5);
    EXPECT_GE(found.centroid_rank, found.budget);
    EXPECT_EQ(found.position / 128, found.block);
  }
}

TEST_F(NeedleDiagnosis, ThresholdsKeepMoreInSomeHeads) {
  DiagnoseSettings settings;
  settings.num_q_blocks = 1;
  settings.selectors = {selector(SelectorMethod::kRescue, 0)};
  Diagnoser diagnoser(model_, settings);
  diagnoser.read(prompt_, {});
  const Diagnosis diagnosis = diagnoser.result();
  double low = 1, high = 0;
  for (int64_t head = 0; head < diagnosis.num_q_heads; ++head) {
    const double density = diagnosis.selectors[0].head_density(1, head, diagnosis.num_q_heads);
    low = std::min(low, density);
    high = std::max(high, density);
  }
  EXPECT_GT(high - low, 0.05);
}

TEST_F(NeedleDiagnosis, RefusesTwoBlockSizesAndNone) {
  DiagnoseSettings settings;
  EXPECT_THROW(Diagnoser(model_, settings), Error);
  settings.selectors = {selector(SelectorMethod::kRescue, 0), selector(SelectorMethod::kBound, 0)};
  settings.selectors[1].settings.block_size = 64;
  EXPECT_THROW(Diagnoser(model_, settings), Error);
}

}  // namespace
}  // namespace fovea::quality
