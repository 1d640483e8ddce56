// Long-context tasks: a prompt, questions about it, and how an answer is scored.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {
class Tokenizer;  // tokenizer/tokenizer.h
}

namespace fovea::quality {

/// Text to token ids, without special tokens.
using EncodeFunction = std::function<std::vector<int32_t>(std::string_view)>;

enum class Scoring {
  kForced,    // 1 when every answer token is the model's first choice where it stands in the text:
              // teacher forcing, many questions for one prefill. Of a set, in any order, also when
              // the first choice is the first token of an answer still to come
  kAllFound,  // share of the answers found in the generated text, whatever their case: RULER's
              // string_match_all
  kAnyFound,  // 1 when any answer is found: RULER's string_match_part
  kChoice,    // 1 when the right letter of A ... D has the largest logit after the prompt
  kFirstNumber,  // 1 when the first number of the generated text is the answer
  kLastNumber,   // the same of the last word
  kWordFound,    // 1 when an answer is among the words of the text, punctuation not counted
  kWordF1,       // F1 of the text's words against an answer's, the best of the answers
};

struct Question {
  std::string fact;                    // the sentence that answers it; empty where no one does
  std::string text;                    // " Recall: the red code of apple is"
  std::vector<std::string> answers;    // {"12345"}; kForced and kChoice have one
  double depth = 0;                    // where the fact stands, 0 (beginning) ... 1 (end)
  std::vector<int32_t> answer_tokens;  // kForced: of answers[0]
  int64_t answer_begin = 0;            // kForced: place of answer_tokens[0] in Task::tokens
  // kForced: first tokens of later questions' answers that would be as right here
  std::vector<int32_t> other_first_tokens;
};

/// One prompt and its questions. kForced: the questions stand at its end with their answers, the
/// last one's included; else there is one question and the tokens end where the answer begins.
struct Task {
  std::string kind;
  Scoring scoring = Scoring::kForced;
  std::vector<int32_t> tokens;
  std::vector<Question> questions;
  int64_t max_new_tokens = 0;  // of an answer that is generated
  bool was_cut = false;        // a context from a file whose middle was left out to fit

  /// kForced: everything before the last answer, which ends in the middle of a sentence that only a
  /// fact completes.
  std::span<const int32_t> prompt() const {
    return std::span(tokens).first(static_cast<size_t>(questions.back().answer_begin));
  }
};

struct TaskSettings {
  int64_t length = 32768;  // tokens of the whole task, answers (or the room for them) included
  uint64_t seed = 1;
  std::optional<int32_t> bos_id = std::nullopt;  // first token, if the model has one
  bool generated = false;  // one question in plain English, whose answer the model writes, rather
                           // than gaps in a sentence
};

/// Names of the kinds that TaskMaker makes.
std::vector<std::string> task_kinds();
/// What `kind` asks, in a few words. Throws kInvalidArgument listing the known kinds.
std::string_view task_description(std::string_view kind);
/// Questions that one task of `kind` has; 1 when answers are generated. Throws as
/// task_description().
int64_t questions_per_task(std::string_view kind, bool generated = false);

/// Tokens around what a user says: those of a chat template, or few.
struct PromptFrame {
  std::vector<int32_t> before;  // bos included, if the model wants one
  std::vector<int32_t> after;   // up to where the answer begins
};

/// What the model's chat template puts around a user's words; bos and a line break for a model
/// without one. Throws kUnsupported on a template of no family we know.
PromptFrame chat_frame(const Tokenizer& tokenizer);

/// Makes tasks out of a text that has nothing to do with them. Immutable: threads may share it.
class TaskMaker {
 public:
  /// `filler_text` is what the facts are hidden in; its words become their names. `frame` goes
  /// around tasks with generated answers.
  TaskMaker(std::string_view filler_text, EncodeFunction encode, PromptFrame frame = {});

  /// Task `index` of `num_tasks`: the same arguments give the same task. Throws kInvalidArgument on
  /// an unknown kind, when the text is shorter than the task or has too few words, or when `length`
  /// has no room for the facts and the questions.
  Task make(std::string_view kind, const TaskSettings& settings, int64_t index,
            int64_t num_tasks) const;

 private:
  EncodeFunction encode_;
  std::vector<int32_t> filler_;
  std::vector<std::string> names_;
  PromptFrame frame_;
};

}  // namespace fovea::quality
