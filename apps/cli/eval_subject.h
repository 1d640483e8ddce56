// What an attention is judged by: prompts of one task, or stretches of one text, at one length.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/eval_journal.h"
#include "fovea/engine/session.h"
#include "fovea/quality/task.h"

namespace fovea::cli {

/// Prompts that one attention after another reads; the same ones for each.
class EvalSubject {
 public:
  virtual ~EvalSubject() = default;
  /// A task's kind or a text's file name.
  virtual std::string name() const = 0;
  virtual bool is_text() const = 0;
  /// Tokens of a prompt, all of them.
  virtual int64_t length() const = 0;
  virtual int64_t num_prompts() const = 0;
  /// All that the prompts depend on, besides the settings of the journal.
  virtual std::string key() const = 0;
  /// What a model is shown of prompt `prompt`.
  virtual std::vector<int32_t> tokens(int64_t prompt) const = 0;
  /// Reads prompt `prompt` with `session`, which it resets. `dense` is the same prompt's record
  /// under dense attention, null while that is being made.
  virtual PromptRecord ask(Session& session, int64_t prompt, const PrefillOptions& options,
                           const PromptRecord* dense) const = 0;
};

/// `num_questions` questions of one kind, in as many prompts as they take.
class TaskSubject : public EvalSubject {
 public:
  /// Throws kInvalidArgument on an unknown kind.
  TaskSubject(std::shared_ptr<const quality::TaskMaker> maker, std::string kind,
              const quality::TaskSettings& settings, int64_t num_questions);

  std::string name() const override { return kind_; }
  bool is_text() const override { return false; }
  int64_t length() const override { return settings_.length; }
  int64_t num_prompts() const override { return num_prompts_; }
  std::string key() const override;
  std::vector<int32_t> tokens(int64_t prompt) const override;
  PromptRecord ask(Session& session, int64_t prompt, const PrefillOptions& options,
                   const PromptRecord* dense) const override;

 private:
  std::shared_ptr<const quality::TaskMaker> maker_;
  std::string kind_;
  quality::TaskSettings settings_;
  int64_t num_prompts_;
};

/// The tasks of a file in a public format, see quality/load_tasks.h.
class FileSubject : public EvalSubject {
 public:
  /// `hash` stands for the file's content.
  FileSubject(std::string name, std::string hash, int64_t length, std::vector<quality::Task> tasks)
      : name_(std::move(name)), hash_(std::move(hash)), length_(length), tasks_(std::move(tasks)) {}

  std::string name() const override { return name_; }
  bool is_text() const override { return false; }
  int64_t length() const override { return length_; }
  int64_t num_prompts() const override { return static_cast<int64_t>(tasks_.size()); }
  std::string key() const override;
  std::vector<int32_t> tokens(int64_t prompt) const override;
  PromptRecord ask(Session& session, int64_t prompt, const PrefillOptions& options,
                   const PromptRecord* dense) const override;

 private:
  std::string name_, hash_;
  int64_t length_;
  std::vector<quality::Task> tasks_;
};

/// Stretches of a text: is the next token dense's choice, and how much less likely is the text's?
/// Judged at the positions of each stretch's tail, in blocks of quality::kAgreementBlock.
class TextSubject : public EvalSubject {
 public:
  /// `num_prompts` stretches of `length` tokens, fewer where their tails would overlap. Throws
  /// kInvalidArgument when the text is shorter than one, or the tail than two tokens.
  TextSubject(std::string name, std::string_view text, const Model& model, int64_t length,
              int64_t tail, int64_t num_prompts);

  std::string name() const override { return name_; }
  bool is_text() const override { return true; }
  int64_t length() const override { return length_; }
  int64_t num_prompts() const override { return static_cast<int64_t>(stretches_.size()); }
  std::string key() const override;
  std::vector<int32_t> tokens(int64_t prompt) const override;
  PromptRecord ask(Session& session, int64_t prompt, const PrefillOptions& options,
                   const PromptRecord* dense) const override;

 private:
  std::string name_, hash_;
  int64_t length_, tail_begin_;
  std::vector<std::vector<int32_t>> stretches_;
};

}  // namespace fovea::cli
