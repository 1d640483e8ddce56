#include "fovea/quality/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/quality/kinds.h"
#include "fovea/quality/needle_task.h"
#include "fovea/tokenizer/chat_template.h"

namespace fovea::quality {
namespace {

struct Kind {
  std::string_view name;
  std::string_view description;
  int64_t num_questions;       // with gaps
  std::string_view generated;  // the question in words
};
constexpr std::array<Kind, 12> kKinds = {{
    {"single", "one fact", 1, "one"},
    {"lookalike", "one question among facts of the same form", 1, "one"},
    {"eight", "eight questions among facts of the same form", 8, "several"},
    {"multi_key", "names of two words among look-alikes that share one", 1, "one"},
    {"multi_value", "four values of one key", 4, "values"},
    {"multi_query", "four keys in one prompt", 4, "several"},
    {"trace", "which variable got its value from which", 4, "trace"},
    {"common_words", "the words that lists have often", 3, "common"},
    {"frequent_words", "the three most frequent words of lists by Zipf's law", 3, "frequent"},
    {"soft", "an ordinary word as the value", 1, "one"},
    {"qa_single", "where somebody lives", 1, "where_lives"},
    {"qa_two_hop", "where the office is that somebody works for", 1, "where_works"},
}};

const Kind& find_kind(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  fail(ErrorCode::kInvalidArgument, "unknown task \"{}\", use {}", name,
       fmt::join(task_kinds(), ", "));
}

Story make_story(std::string_view kind, const StorySource& source, int64_t index,
                 int64_t num_tasks) {
  if (kind == "trace") return trace_story(source);
  if (kind == "common_words") return word_story(source, WordCounts::kCommon);
  if (kind == "frequent_words") return word_story(source, WordCounts::kFrequent);
  if (kind == "qa_single") return home_story(source);
  if (kind == "qa_two_hop") return office_story(source);

  CodeSettings codes;
  codes.index = index;
  codes.num_tasks = num_tasks;
  if (kind == "eight") codes.num_questions = 8;
  if (kind == "multi_query") codes.num_questions = 4;
  if (kind == "multi_query" || kind == "multi_key") codes.form = "question";
  if (kind == "multi_value") {
    codes.form = "list";
    codes.values_per_key = 4;
  }
  if (kind == "soft") {
    codes.form = "soft_recall";
    codes.words = true;
  }
  codes.two_word_names = kind == "multi_key";
  if (kind != "single") {
    const int64_t num_facts = std::max<int64_t>(8, source.length / task_forms().tokens_per_fact);
    codes.num_distractors = num_facts - codes.num_questions;
  }
  return code_story(source, codes);
}

}  // namespace

std::vector<std::string> task_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::string_view task_description(std::string_view kind) { return find_kind(kind).description; }

int64_t questions_per_task(std::string_view kind, bool generated) {
  return generated ? 1 : find_kind(kind).num_questions;
}

PromptFrame chat_frame(const Tokenizer& tokenizer) {
  PromptFrame frame;
  const auto chat = detect_chat_template(tokenizer.chat_template());
  if (!chat) return {tokenizer.encode({}), tokenizer.encode("\n", {.add_bos = false})};
  // The user's words are a mark that is then cut out.
  const std::string mark = "\x01";
  const std::vector<ChatMessage> messages = {{"user", mark}};
  const std::vector<ChatPiece> pieces = render_chat(*chat, messages);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t at = pieces[i].text.find(mark);
    if (at == std::string::npos) continue;
    std::vector<ChatPiece> before(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(i));
    std::vector<ChatPiece> after(pieces.begin() + static_cast<ptrdiff_t>(i) + 1, pieces.end());
    before.push_back({pieces[i].text.substr(0, at), false});
    after.insert(after.begin(), {pieces[i].text.substr(at + mark.size()), false});
    frame.before = encode_chat(tokenizer, before);
    frame.after = encode_chat(tokenizer, after);
    const size_t num_bos = tokenizer.encode({}).size();  // which encode_chat puts before either
    frame.after.erase(frame.after.begin(), frame.after.begin() + static_cast<ptrdiff_t>(num_bos));
  }
  return frame;
}

TaskMaker::TaskMaker(std::string_view filler_text, EncodeFunction encode, PromptFrame frame)
    : encode_(std::move(encode)),
      filler_(encode_(filler_text)),
      names_(needle_names(filler_text, encode_)),
      frame_(std::move(frame)) {}

Task TaskMaker::make(std::string_view kind, const TaskSettings& settings, int64_t index,
                     int64_t num_tasks) const {
  const std::string_view asked = find_kind(kind).generated;
  check_argument(num_tasks > 0 && index >= 0 && index < num_tasks, "task {} is not one of {}",
                 index, num_tasks);
  Random random = task_random(settings.seed, index);
  const FormSet& forms = settings.generated ? task_forms().generated : task_forms().forced;
  const StorySource source = {forms, settings.generated, settings.length, names_, encode_, random};
  const Story story = make_story(kind, source, index, num_tasks);
  const Ground ground = {filler_, encode_};
  Task task = settings.generated
                  ? lay_out_generated(story, task_forms().generated_questions.find(asked)->second,
                                      frame_, settings, ground, random)
                  : lay_out_forced(story, settings, ground, random);
  if (settings.generated && kind.starts_with("qa_")) task.scoring = Scoring::kAnyFound;
  task.kind = kind;
  return task;
}

}  // namespace fovea::quality
