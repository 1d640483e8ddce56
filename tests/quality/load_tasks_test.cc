#include "fovea/quality/load_tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "fovea/base/error.h"
#include "tests/support/temp_dir.h"

namespace fovea::quality {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// A byte is a token.
std::vector<int32_t> encode(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string decode(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

const PromptFrame kFrame = {encode("<user>"), encode("<model>")};

std::vector<Task> parse(std::string_view content, const std::string& name,
                        const LoadSettings& settings = {}) {
  return parse_tasks(content, name, encode, kFrame, settings);
}

std::string longbench(const std::string& context, const std::string& answer = "C") {
  return R"({"_id": "1", "domain": "d", "sub_domain": "s", "difficulty": "easy", "length": "short",
"question": "Who?", "choice_A": "Ann", "choice_B": "Bob", "choice_C": "Cy", "choice_D": "Di",
"answer": ")" +
         answer + R"(", "context": ")" + context + R"("})";
}

TEST(LoadTasks, ReadsALongBenchList) {
  const std::vector<Task> tasks = parse(
      "[" + longbench("A \\\"text\\\" {with] braces.") + ",\n" + longbench("Two", "A") + "]\n",
      "data.json");
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].kind, "longbench_v2");
  EXPECT_EQ(tasks[0].scoring, Scoring::kChoice);
  EXPECT_FALSE(tasks[0].was_cut);
  ASSERT_EQ(tasks[0].questions.size(), 1u);
  EXPECT_EQ(tasks[0].questions[0].text, "Who?");
  EXPECT_THAT(tasks[0].questions[0].answers, ElementsAre("C"));
  EXPECT_THAT(tasks[1].questions[0].answers, ElementsAre("A"));
  EXPECT_THAT(decode(tasks[0].tokens),
              AllOf(StartsWith("<user>"), HasSubstr("A \"text\" {with] braces."),
                    HasSubstr("(A) Ann\n(B) Bob\n(C) Cy\n(D) Di"),
                    EndsWith("<model>The right choice is (")));
}

TEST(LoadTasks, ReadsInfiniteBenchLinesByTheFilesName) {
  const std::vector<Task> passkey = parse(
      "{\"id\": 0, \"context\": \"x\", \"input\": \"Key?\", \"answer\": [\"71432\"], \"options\": "
      "[]}\n\n"
      "{\"id\": 1, \"context\": \"y\", \"input\": \"Key?\", \"answer\": \"5\"}",
      "some/where/passkey.jsonl");
  ASSERT_EQ(passkey.size(), 2u);
  EXPECT_EQ(passkey[0].kind, "passkey");
  EXPECT_EQ(passkey[0].scoring, Scoring::kFirstNumber);
  EXPECT_THAT(passkey[0].questions[0].answers, ElementsAre("71432"));
  EXPECT_THAT(passkey[1].questions[0].answers, ElementsAre("5"));
  EXPECT_GT(passkey[0].max_new_tokens, 0);
  EXPECT_THAT(decode(passkey[0].tokens), EndsWith("<model>The pass key is"));

  const std::string choice =
      R"({"context": "x", "input": "Who?", "options": ["a", "b", "c", "d"], "answer": ["d"]})";
  const std::vector<Task> book = parse(choice, "longbook_choice_eng_2.jsonl");
  EXPECT_EQ(book[0].scoring, Scoring::kChoice);
  EXPECT_THAT(book[0].questions[0].answers, ElementsAre("D"));
  const std::vector<Task> numbers =
      parse(R"({"context": "1 2", "input": "Most?", "answer": [2.5]})", "math_find.jsonl");
  EXPECT_THAT(numbers[0].questions[0].answers, ElementsAre("2.5"));
}

TEST(LoadTasks, LeavesOutTheMiddleOfWhatIsTooLong) {
  std::string context;
  for (int i = 0; i < 1000; ++i) context += static_cast<char>('a' + i * 26 / 1000);
  const Task whole = parse("[" + longbench(context) + "]", "x.json")[0];
  const Task cut = parse("[" + longbench(context) + "]", "x.json", {.length = 601})[0];
  EXPECT_TRUE(cut.was_cut);
  ASSERT_EQ(cut.tokens.size(), 601u);
  // The same first half and the same last half as the whole prompt has.
  EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.begin() + 300, whole.tokens.begin()));
  EXPECT_TRUE(std::equal(cut.tokens.rbegin(), cut.tokens.rbegin() + 301, whole.tokens.rbegin()));
  // Also where only the ends of the context are looked at.
  std::string huge;
  for (int i = 0; i < 100'000; ++i) huge += static_cast<char>('a' + i * 26 / 100'000);
  const Task ends = parse("[" + longbench(huge) + "]", "x.json", {.length = 400})[0];
  const Task reference = parse("[" + longbench(huge) + "]", "x.json", {.length = 200'000})[0];
  ASSERT_EQ(ends.tokens.size(), 400u);
  EXPECT_TRUE(std::equal(ends.tokens.begin(), ends.tokens.begin() + 200, reference.tokens.begin()));
  EXPECT_TRUE(
      std::equal(ends.tokens.rbegin(), ends.tokens.rbegin() + 200, reference.tokens.rbegin()));
}

TEST(LoadTasks, ReadsTheFirstOnesOnly) {
  EXPECT_EQ(
      parse("[" + longbench("x") + "," + longbench("y") + "]", "x.json", {.max_tasks = 1}).size(),
      1u);
}

std::string error_of(std::string_view content, const std::string& name,
                     const LoadSettings& settings = {}) {
  try {
    parse(content, name, settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(LoadTasks, SaysWhatIsWrongWhere) {
  EXPECT_THAT(error_of("", "x.json"), HasSubstr("'x.json': holds no records"));
  EXPECT_THAT(error_of("[]", "x.json"), HasSubstr("holds no records"));
  EXPECT_THAT(error_of("[" + longbench("x"), "x.json"),
              HasSubstr("line 3': the list does not end"));
  EXPECT_THAT(error_of("[" + longbench("x") + "] 1", "x.json"), HasSubstr("something follows"));
  EXPECT_THAT(error_of("[\n\n1]", "x.json"), HasSubstr("line 3': the list must hold objects"));
  EXPECT_THAT(error_of("[{\"a\": \"}]", "x.json"), HasSubstr("the record does not end"));
  EXPECT_THAT(error_of("[{} {}]", "passkey.json"),
              HasSubstr("'passkey.json, line 1': 'input' is missing"));
  EXPECT_THAT(error_of("[" + longbench("x") + longbench("y") + "]", "x.json"),
              HasSubstr("line 3': a comma must part"));
  EXPECT_THAT(
      error_of("{\"context\": \"x\"}", "tasks.jsonl"),
      HasSubstr(
          "'tasks.jsonl': an InfiniteBench file must be named after its kind, one of passkey,"));
  EXPECT_THAT(error_of("{}", "math_calc.jsonl"), HasSubstr("math_calc is not scored here"));
  EXPECT_THAT(error_of("{\"input\": 1}", "passkey.jsonl"),
              HasSubstr("'input' must be a string, is number"));
  EXPECT_THAT(error_of("{\"input\": \"?\", \"answer\": []}", "passkey.jsonl"),
              HasSubstr("'answer' is empty"));
  EXPECT_THAT(error_of("{\"input\": \"?\", \"answer\": [{}]}", "passkey.jsonl"),
              HasSubstr("'answer' must be a string"));
  EXPECT_THAT(error_of("{\"choice_A\": \"a\"}", "x.jsonl"),
              HasSubstr("line 1': 'choice_B' is missing"));
  EXPECT_THAT(error_of("\n{\"input\": \"?\"", "passkey.jsonl"),
              HasSubstr("line 2': broken JSON at byte"));
  EXPECT_THAT(error_of("[[[[[[]]]]]]", "x.json"), HasSubstr("must hold objects"));
  EXPECT_THAT(error_of("[" + longbench("x", "E") + "]", "x.json"),
              HasSubstr("'answer' must be A, B, C, D or one of the choices, is \"E\""));
  EXPECT_THAT(
      error_of("{\"context\": \"x\", \"input\": \"?\", \"options\": [\"a\"], \"answer\": \"A\"}",
               "code_debug.jsonl"),
      HasSubstr("'options' must be 4, are 1"));
  EXPECT_THAT(error_of("[" + longbench("x") + "]", "x.json", {.length = 100}),
              HasSubstr("100 tokens have no room for the question"));
}

TEST(LoadTasks, ReadsFiles) {
  const test::TempDir dir;
  const std::string path = dir.file("data.json");
  std::ofstream(path) << "[" << longbench("x") << "]";
  EXPECT_EQ(load_tasks(path, encode, kFrame, {}).size(), 1u);
  EXPECT_THROW(load_tasks(dir.file("none.json"), encode, kFrame, {}), Error);
  EXPECT_THROW(load_tasks(dir.path(), encode, kFrame, {}), Error);
}

}  // namespace
}  // namespace fovea::quality
