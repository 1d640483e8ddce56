#include "fovea/quality/load_tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/json_file.h"
#include "fovea/base/mapped_file.h"
#include "fovea/base/shown.h"
#include "fovea/quality/json_records.h"

namespace fovea::quality {
namespace {

using nlohmann::json;

constexpr int64_t kLargestFile = int64_t{4} << 30;
constexpr size_t kMostRecords = 100'000;
constexpr int kDeepest = 4;

// A kind of InfiniteBench's: how many tokens its answers have there, how they are scored, and our
// words around context and question.
struct InfiniteKind {
  std::string_view name;
  Scoring scoring;
  int64_t max_new_tokens;
  std::string_view intro;
  std::string_view begin;
};
constexpr std::string_view kRead = "Read the following text; a question about it comes after it.";
constexpr std::array<InfiniteKind, 9> kInfiniteKinds = {{
    {"passkey", Scoring::kFirstNumber, 12, kRead, "The pass key is"},
    {"number_string", Scoring::kFirstNumber, 16, kRead, "The sequence of digits is"},
    {"kv_retrieval", Scoring::kWordFound, 50,
     "Below is a JSON object. A question asks for the value of one of its keys.", "The value is"},
    {"longbook_choice_eng", Scoring::kChoice, 0, kRead, "The letter of the right choice is ("},
    {"longbook_qa_eng", Scoring::kWordF1, 40, kRead, "In few words:"},
    {"longdialogue_qa_eng", Scoring::kWordFound, 40,
     "In the following script one name is hidden behind $$MASK$$.", "The name behind $$MASK$$ is"},
    {"math_find", Scoring::kFirstNumber, 12, "Below is a list of numbers.", "The number is"},
    {"code_run", Scoring::kLastNumber, 8, "Below are functions in Python.", "The value is"},
    {"code_debug", Scoring::kChoice, 0,
     "One function of the following code has an error that was put in on purpose.",
     "The letter of the function with the error is ("},
}};
constexpr std::array<std::string_view, 3> kNotScored = {"longbook_sum_eng", "longbook_qa_chn",
                                                        "math_calc"};

// What a prompt is made of, before it is cut to fit.
struct Parts {
  std::string before;   // words before the context
  std::string context;  // the only part that may be cut
  std::string after;    // the question
  std::string begin;    // of the answer
};

const InfiniteKind& infinite_kind(const std::string& file_name) {
  const std::string stem = std::filesystem::path(file_name).stem().string();
  for (const InfiniteKind& kind : kInfiniteKinds) {
    if (stem.starts_with(kind.name)) return kind;
  }
  std::vector<std::string_view> names;
  for (const InfiniteKind& kind : kInfiniteKinds) names.push_back(kind.name);
  for (const std::string_view name : kNotScored) {
    if (stem.starts_with(name)) {
      fail(ErrorCode::kUnsupported, "'{}': {} is not scored here, but {} are", shown(file_name),
           name, fmt::join(names, ", "));
    }
  }
  fail(ErrorCode::kInvalidFile,
       "'{}': an InfiniteBench file must be named after its kind, one of {}", shown(file_name),
       fmt::join(names, ", "));
}

// The fields of one record, with errors that name it.
class Record {
 public:
  Record(const json& object, const std::string& name) : object_(object, name) {}

  std::string text(const char* key) const {
    const auto value = object_.find_string(key);
    if (!value) missing(key);
    return *value;
  }
  /// A string, a number, or a list of them.
  std::vector<std::string> texts(const char* key) const {
    const json* value = object_.find(key);
    if (value == nullptr) missing(key);
    std::vector<std::string> texts;
    for (const json& item : value->is_array() ? *value : json::array({*value})) {
      if (!item.is_string() && !item.is_number()) {
        fail(ErrorCode::kInvalidFile, "'{}': '{}' must be a string, a number or a list of them",
             name(), key);
      }
      texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    }
    if (texts.empty()) fail(ErrorCode::kInvalidFile, "'{}': '{}' is empty", name(), key);
    return texts;
  }
  bool has(const char* key) const { return object_.find(key) != nullptr; }
  const std::string& name() const { return object_.name(); }

 private:
  [[noreturn]] void missing(const char* key) const {
    fail(ErrorCode::kInvalidFile, "'{}': '{}' is missing", name(), key);
  }

  JsonObject object_;
};

std::string choices_text(std::span<const std::string> choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    text += fmt::format("\n({}) {}", static_cast<char>('A' + i), choices[i]);
  }
  return text + "\n\nAnswer with the letter of the right one.";
}

bool is_letter(std::string_view text) {
  return text.size() == 1 && text[0] >= 'A' && text[0] <= 'D';
}

// The letter of the choice that `answers` name, by itself or by its text.
std::string right_letter(std::span<const std::string> answers, std::span<const std::string> choices,
                         const std::string& name) {
  for (const std::string& answer : answers) {
    const auto found = std::find(choices.begin(), choices.end(), answer);
    if (found != choices.end()) return {static_cast<char>('A' + (found - choices.begin()))};
  }
  for (const std::string& answer : answers) {
    if (is_letter(answer)) return answer;
  }
  fail(ErrorCode::kInvalidFile,
       "'{}': 'answer' must be A, B, C, D or one of the choices, is \"{}\"", name,
       shown(answers.front()));
}

Parts read_longbench(const Record& record, Task& task) {
  task.kind = "longbench_v2";
  task.scoring = Scoring::kChoice;
  std::vector<std::string> choices;
  for (const char* key : {"choice_A", "choice_B", "choice_C", "choice_D"}) {
    choices.push_back(record.text(key));
  }
  Question question;
  question.text = record.text("question");
  question.answers = {right_letter(record.texts("answer"), choices, record.name())};
  task.questions.push_back(question);
  return {std::string(kRead) + "\n\n", record.text("context"),
          "\n\nQuestion: " + question.text + "\n" + choices_text(choices), "The right choice is ("};
}

Parts read_infinitebench(const Record& record, const InfiniteKind& kind, Task& task) {
  task.kind = kind.name;
  task.scoring = kind.scoring;
  task.max_new_tokens = kind.max_new_tokens;
  Question question;
  question.text = record.text("input");
  question.answers = record.texts("answer");
  std::string choices;
  if (kind.scoring == Scoring::kChoice) {
    const std::vector<std::string> options = record.texts("options");
    if (options.size() != 4) {
      fail(ErrorCode::kInvalidFile, "'{}': 'options' must be 4, are {}", record.name(),
           options.size());
    }
    question.answers = {right_letter(question.answers, options, record.name())};
    choices = "\n" + choices_text(options);
  } else if (kind.scoring == Scoring::kWordFound) {
    question.answers.resize(1);  // the original looks at the first one only
  }
  task.questions.push_back(question);
  return {std::string(kind.intro) + "\n\n", record.text("context"),
          "\n\nQuestion: " + question.text + choices, std::string(kind.begin)};
}

void append(std::vector<int32_t>& to, std::span<const int32_t> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// Tokens of the parts, the middle of the context left out where they are more than fit.
void fit(const Parts& parts, const EncodeFunction& encode, const PromptFrame& frame,
         const LoadSettings& settings, const std::string& name, Task& task) {
  std::vector<int32_t> head = frame.before;
  append(head, encode(parts.before));
  std::vector<int32_t> tail = encode(parts.after);
  append(tail, frame.after);
  append(tail, encode(parts.begin));
  const auto num_head = static_cast<int64_t>(head.size());
  const int64_t num_prompt = settings.length - task.max_new_tokens;
  const int64_t room = num_prompt - num_head - static_cast<int64_t>(tail.size());
  check_argument(room > 0, "'{}': {} tokens have no room for the question, which has {}", name,
                 settings.length, num_head + static_cast<int64_t>(tail.size()));

  // Of a very long context only the ends are encoded: no token has 64 bytes on average.
  std::string_view context = parts.context;
  const size_t end_bytes = static_cast<size_t>(room) * 64;
  const bool is_long = context.size() / 2 > end_bytes;
  std::vector<int32_t> tokens = encode(is_long ? context.substr(0, end_bytes) : context);
  if (is_long) append(tokens, encode(context.substr(context.size() - end_bytes)));

  task.was_cut = is_long || static_cast<int64_t>(tokens.size()) > room;
  task.tokens = std::move(head);
  if (task.was_cut) {
    const int64_t kept = std::min(room, static_cast<int64_t>(tokens.size()));
    const auto first = static_cast<size_t>(std::clamp<int64_t>(num_prompt / 2 - num_head, 0, kept));
    const size_t last = static_cast<size_t>(kept) - first;
    append(task.tokens, std::span(tokens).first(first));
    append(task.tokens, std::span(tokens).last(last));
  } else {
    append(task.tokens, tokens);
  }
  append(task.tokens, tail);
}

}  // namespace

std::vector<Task> load_tasks(const std::string& path, const EncodeFunction& encode,
                             const PromptFrame& frame, const LoadSettings& settings) {
  const MappedFile file(path);
  if (file.size() > kLargestFile) {
    fail(ErrorCode::kInvalidFile, "'{}': a file of tasks must have at most 4 GiB", path);
  }
  const auto* bytes = reinterpret_cast<const char*>(file.bytes().data());
  return parse_tasks({bytes, file.bytes().size()}, path, encode, frame, settings);
}

std::vector<Task> parse_tasks(std::string_view content, const std::string& name,
                              const EncodeFunction& encode, const PromptFrame& frame,
                              const LoadSettings& settings) {
  check_argument(settings.length > 0, "a task's length must be positive, is {}", settings.length);
  check_argument(settings.max_tasks >= 0, "max_tasks must not be negative, is {}",
                 settings.max_tasks);
  std::vector<Task> tasks;
  JsonRecords records(content, name);
  while (const std::optional<JsonRecord> found = records.next()) {
    if (tasks.size() >= kMostRecords) {
      fail(ErrorCode::kInvalidFile, "'{}': a file of tasks must have at most {} records", name,
           kMostRecords);
    }
    const std::string where = fmt::format("{}, line {}", name, found->line);
    const json object = parse_json_object(found->text, where, kDeepest);
    const Record record(object, where);
    Task task;
    const Parts parts = record.has("choice_A")
                            ? read_longbench(record, task)
                            : read_infinitebench(record, infinite_kind(name), task);
    fit(parts, encode, frame, settings, where, task);
    tasks.push_back(std::move(task));
    if (settings.max_tasks > 0 && static_cast<int64_t>(tasks.size()) == settings.max_tasks) break;
  }
  if (tasks.empty()) fail(ErrorCode::kInvalidFile, "'{}': holds no records", name);
  return tasks;
}

}  // namespace fovea::quality
