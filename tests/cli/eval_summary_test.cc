#include "apps/cli/eval_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/cli/eval_page.h"

namespace fovea::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class FakeSubject : public EvalSubject {
 public:
  FakeSubject(std::string name, bool is_text, int64_t length)
      : name_(std::move(name)), is_text_(is_text), length_(length) {}
  std::string name() const override { return name_; }
  bool is_text() const override { return is_text_; }
  int64_t length() const override { return length_; }
  int64_t num_prompts() const override { return 8; }
  std::string key() const override { return name_; }
  std::vector<int32_t> tokens(int64_t) const override { return {}; }
  PromptRecord ask(Session&, int64_t, const PrefillOptions&, const PromptRecord*) const override {
    return {};
  }

 private:
  std::string name_;
  bool is_text_;
  int64_t length_;
};

// Eight prompts, the first `num_right` of them answered.
EvalCell cell(size_t subject, size_t variant, int num_right, double density) {
  EvalCell one;
  one.subject = subject;
  one.variant = variant;
  for (int i = 0; i < 8; ++i) {
    PromptRecord record;
    record.scores = {i < num_right ? 1.0 : 0.0};
    record.nll_difference = {static_cast<double>(variant) * 0.5};
    record.density = density;
    record.prefill_ms = 10;
    one.records.push_back(record);
  }
  if (variant > 0) one.budget = {density, density, density < 0.06};
  return one;
}

// dense, rescue and witness at 5.34 % on two tasks; rescue misses the density on the second.
Evaluation two_tasks() {
  Evaluation evaluation;
  evaluation.variants = expand_variants({"rescue,witness", "5.34", "off", "128"}, {});
  evaluation.subjects.push_back(std::make_unique<FakeSubject>("single", false, 4096));
  evaluation.subjects.push_back(std::make_unique<FakeSubject>("eight", false, 4096));
  evaluation.cells = {cell(0, 0, 8, 1), cell(0, 1, 6, 0.0534), cell(0, 2, 8, 0.0534),
                      cell(1, 0, 8, 1), cell(1, 1, 0, 0.09),   cell(1, 2, 7, 0.0534)};
  evaluation.finished = true;
  return evaluation;
}

TEST(EvalSummary, ComparesWithDenseAndTheReference) {
  const Evaluation evaluation = two_tasks();
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_TRUE(groups[0].is_average);
  EXPECT_EQ(groups[1].title(), "single, 4096 tokens");
  const EvalRow& rescue = groups[2].rows[1];
  EXPECT_EQ(rescue.against_dense->mean, -1);
  EXPECT_TRUE(rescue.against_dense->significant);
  EXPECT_FALSE(rescue.against_reference.has_value());  // it is the reference
  EXPECT_FALSE(rescue.matched);
  const EvalRow& witness = groups[2].rows[2];
  EXPECT_EQ(witness.against_reference->mean, 0.875);
  EXPECT_EQ(witness.score.value, 0.875);
  EXPECT_FALSE(groups[2].rows[0].against_dense.has_value());  // dense itself

  const EvalRow& average = groups[0].rows[1];
  EXPECT_EQ(average.score.value, 0.375);
  EXPECT_EQ(average.worst_subject, "eight");
  EXPECT_EQ(average.worst_score, 0);
  EXPECT_EQ(average.score.num_questions, 16);
  EXPECT_EQ(groups[0].rows[0].worst_subject, "");
  EXPECT_THAT(summary_notes(evaluation, groups),
              ElementsAre(AllOf(HasSubstr("1 row is"), HasSubstr("3.66 points")),
                          HasSubstr("4 rows are more than 75 % forced blocks")));
}

TEST(EvalSummary, SaysWhichRowsWereReadDensely) {
  Evaluation evaluation = two_tasks();
  for (PromptRecord& record : evaluation.cells[4].records) record.density = 1;
  EXPECT_THAT(summary_notes(evaluation, summarize(evaluation, "rescue", 1)),
              ElementsAre(AllOf(HasSubstr("1 row was read densely"), HasSubstr("--min-sparse-len")),
                          HasSubstr("more than 75 % forced blocks")));
  for (EvalVariant& variant : evaluation.variants) variant.settings.min_sparse_len = 0;
  EXPECT_THAT(summary_notes(evaluation, summarize(evaluation, "rescue", 1)),
              ElementsAre(HasSubstr("1 row is marked"), HasSubstr("75 % forced blocks")));
}

TEST(EvalSummary, AnInterruptedCellCountsWithWhatItHas) {
  Evaluation evaluation = two_tasks();
  evaluation.cells.pop_back();                // not begun
  evaluation.cells.back().records.resize(3);  // rescue, eight
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].rows.size(), 2u);  // witness has no average
  EXPECT_EQ(groups[2].rows.size(), 2u);
  EXPECT_EQ(groups[2].rows[1].against_dense->num_prompts, 3);
  evaluation.cells.clear();
  EXPECT_TRUE(summarize(evaluation, "", 1).empty());
}

TEST(EvalSummary, RowsTablesAndPageSayTheSame) {
  Evaluation evaluation = two_tasks();
  evaluation.subjects.push_back(std::make_unique<FakeSubject>("a.txt", true, 4096));
  for (size_t v = 0; v < 3; ++v) {
    evaluation.cells.push_back(cell(2, v, 8 - static_cast<int>(v), v == 0 ? 1 : 0.0534));
  }
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  ASSERT_EQ(groups.size(), 4u);  // one text has no average
  const nlohmann::json rows = rows_json(evaluation, groups, "rescue");
  ASSERT_EQ(rows.size(), 12u);
  EXPECT_EQ(rows[1]["worst"], "eight");
  EXPECT_EQ(rows[7]["task"], "eight");
  EXPECT_EQ(rows[7]["density_matched"], false);
  EXPECT_EQ(rows[8]["against_rescue"]["difference"], 0.875);
  EXPECT_NEAR(rows[8]["density_asked"], 0.0534, 1e-12);
  EXPECT_TRUE(rows[6]["against_dense"].is_null());
  EXPECT_EQ(rows[11]["text"], "a.txt");
  EXPECT_EQ(rows[11]["nll_above_dense"]["difference"], 1.0);

  const worth::ReportTable table = group_table(evaluation, groups[2], "rescue");
  EXPECT_THAT(table.rows[1],
              ElementsAre("rescue, 5.34 %", "0.000 (0.000-0.324)", "-1.000 (-1.000 to -1.000) yes",
                          "-", "9.00 % (missed)", "8", "10.0 ms"));
  const std::string page = eval_page(evaluation, groups, std::vector<std::vector<EqualTimeRow>>(4),
                                     "rescue", {"a note"}, {});
  EXPECT_THAT(page, AllOf(HasSubstr("rescue, 5.34 % scores 0.000 on eight, 4096 tokens"),
                          HasSubstr("a note"), HasSubstr("<svg"), Not(HasSubstr("nan"))));
}

// Three densities of rescue and of witness, which takes twice as long for the same density; eight
// prompts, of which each point more in a hundred answers one more.
Evaluation three_densities() {
  Evaluation evaluation;
  evaluation.variants = expand_variants({"rescue,witness", "10,20,40", "off", "128"}, {});
  evaluation.subjects.push_back(std::make_unique<FakeSubject>("single", false, 4096));
  const std::vector<int> num_right = {8, 1, 2, 4, 3, 5, 7};
  const std::vector<double> density = {1, 0.1, 0.2, 0.4, 0.1, 0.2, 0.4};
  const std::vector<double> time_ms = {100, 10, 20, 40, 15, 25, 45};
  for (size_t v = 0; v < num_right.size(); ++v) {
    evaluation.cells.push_back(cell(0, v, num_right[v], density[v]));
    for (PromptRecord& record : evaluation.cells.back().records) {
      record.prefill_ms = time_ms[v];
      record.attention_ms = v <= 3 ? time_ms[v] / 10 : 1 + time_ms[v] / 100;
    }
  }
  evaluation.finished = true;
  return evaluation;
}

TEST(EvalEqualTime, InterpolatesBetweenMeasuredDensities) {
  const Evaluation evaluation = three_densities();
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  ASSERT_EQ(groups.size(), 1u);
  const std::vector<EqualTimeRow> rows = compare_at_equal_time(evaluation, groups[0], "rescue", 1);
  // By prefill witness has nothing as fast as rescue at 10 %; by attention it has, or is faster.
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].reference, 2u);
  EXPECT_EQ(rows[0].clock, EvalClock::kPrefill);
  EXPECT_EQ(rows[0].time_ms, 20);
  EXPECT_NEAR(rows[0].density, 0.15, 1e-12);  // half-way between 15 and 25 ms
  EXPECT_NEAR(rows[0].difference.mean, (4.0 - 2.0) / 8, 1e-12);
  EXPECT_FALSE(rows[0].is_densest);
  EXPECT_EQ(rows[0].difference.num_differing, 3);  // half an answer counts as a difference
  EXPECT_NEAR(rows[1].density, 0.2 + 0.2 * 15 / 20, 1e-12);
  EXPECT_NEAR(rows[1].difference.mean, (5 + 2 * 0.75 - 4) / 8, 1e-12);
  EXPECT_EQ(rows[2].clock, EvalClock::kAttention);
  EXPECT_EQ(rows[2].time_ms, 2);
  EXPECT_TRUE(rows[2].is_densest);
  EXPECT_NEAR(rows[2].density, 0.4, 1e-12);
  EXPECT_NEAR(rows[2].difference.mean, (7.0 - 2.0) / 8, 1e-12);

  const nlohmann::json json = equal_time_json(evaluation, groups[0], rows);
  EXPECT_EQ(json[0]["at_the_time_of"], "rescue, 20 %, blocks of 128");
  EXPECT_EQ(json[2]["counted"], "attention and selection");
  const worth::ReportTable table = equal_time_table(evaluation, rows);
  EXPECT_THAT(table.rows[0], ElementsAre("witness", "rescue, 20 %", "prefill", "20.0 ms", "15.00 %",
                                         HasSubstr("+0.250")));
  EXPECT_THAT(table.rows[2][4], HasSubstr("its most"));
  const std::string page = eval_page(evaluation, groups, {rows}, "rescue", {}, {});
  EXPECT_THAT(page, AllOf(HasSubstr("score against time"),
                          HasSubstr("attention\u00a0and\u00a0selection"), Not(HasSubstr("nan"))));
}

TEST(EvalEqualTime, WhereNoDensityTakesLongerItIsTheLargestWhateverNoiseSays) {
  Evaluation evaluation = three_densities();
  for (PromptRecord& record : evaluation.cells[4].records) record.attention_ms = 1.9;  // 10 %
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  const std::vector<EqualTimeRow> rows = compare_at_equal_time(evaluation, groups[0], "rescue", 1);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2].clock, EvalClock::kAttention);
  EXPECT_TRUE(rows[2].is_densest);
  EXPECT_NEAR(rows[2].density, 0.4, 1e-12);
  EXPECT_NEAR(rows[2].difference.mean, (7.0 - 2.0) / 8, 1e-12);
}

TEST(EvalEqualTime, SaysNothingWithoutAReferenceOrTheClock) {
  Evaluation evaluation = three_densities();
  EXPECT_TRUE(compare_at_equal_time(evaluation, summarize(evaluation, "", 1)[0], "", 1).empty());
  evaluation.cells[2].records[5].attention_ms.reset();  // a journal from before
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  for (const EqualTimeRow& row : compare_at_equal_time(evaluation, groups[0], "rescue", 1)) {
    EXPECT_EQ(row.clock, EvalClock::kPrefill);
  }
}

TEST(EvalEqualTime, AveragesPairWithinEachTask) {
  Evaluation evaluation = three_densities();
  evaluation.subjects.push_back(std::make_unique<FakeSubject>("eight", false, 4096));
  for (size_t v = 0; v < 7; ++v) {
    EvalCell other = evaluation.cells[v];
    other.subject = 1;
    if (v == 2) {  // rescue at 20 % answers everything here
      for (PromptRecord& record : other.records) record.scores = {1};
    }
    evaluation.cells.push_back(std::move(other));
  }
  const std::vector<EvalGroup> groups = summarize(evaluation, "rescue", 1);
  ASSERT_TRUE(groups[0].is_average);
  const auto rows = compare_at_equal_time(evaluation, groups[0], "rescue", 1);
  EXPECT_NEAR(rows[0].difference.mean, ((4.0 - 2.0) / 8 + (4.0 - 8.0) / 8) / 2, 1e-12);
  EXPECT_EQ(rows[0].difference.num_prompts, 16);
}

}  // namespace
}  // namespace fovea::cli
