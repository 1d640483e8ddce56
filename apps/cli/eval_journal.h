// What an evaluation has measured so far, prompt by prompt, kept on disk so that a killed run goes
// on.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/quality/statistics.h"

namespace fovea::cli {

/// One prompt read under one attention.
struct PromptRecord {
  quality::PromptScores scores;        // 0 ... 1: one a question, or one a block of a text
  std::vector<double> nll_difference;  // texts: one a block, nats a token above dense's
  double density = 1;                  // measured
  double prefill_ms = 0;
  std::optional<double> attention_ms;  // of it, selection included; journals may lack it
  // Texts under dense attention: what the others are compared with, one a position.
  std::vector<int32_t> best_tokens;
  std::vector<float> logprobs;
};

/// Records by what they were measured on. With a file behind it, each record is a line of JSON that
/// reaches the file before append() returns.
class EvalJournal {
 public:
  /// In memory alone.
  EvalJournal() = default;
  /// Opens `path` or makes it, and takes over the records in it; a last line that was cut off is
  /// dropped with a note. `settings` are what every record depends on.
  ///
  /// Throws kInvalidFile when the file cannot be written, is no journal, or is in use by another
  /// run; kInvalidArgument naming the first of `settings` that it was not begun with.
  EvalJournal(const std::string& path, const nlohmann::json& settings);
  ~EvalJournal();
  EvalJournal(const EvalJournal&) = delete;
  EvalJournal& operator=(const EvalJournal&) = delete;

  /// The record of prompt `prompt` of the cell that `key` names; null when there is none.
  const PromptRecord* find(const std::string& key, int64_t prompt) const;
  /// Adds one; `labels` are for people who read the file. Throws kInvalidFile when the line cannot
  /// be written; the file then ends with the line before.
  void append(const std::string& key, int64_t prompt, const nlohmann::json& labels,
              PromptRecord record);

  int64_t num_taken_over() const { return num_taken_over_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void take_over(const std::string& text, const nlohmann::json& settings);
  void check_settings(const nlohmann::json& header, const nlohmann::json& settings);
  void write_line(const std::string& line);

  std::map<std::pair<std::string, int64_t>, PromptRecord> records_;
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;  // of the file's whole lines
  int64_t num_taken_over_ = 0;
  std::vector<std::string> notes_;
};

/// 16 hex digits that stand for `text`.
std::string text_hash(std::string_view text);

/// The same for a file, or the files of a folder: names, sizes, and 16 MiB spread evenly over each;
/// for the name alone where there is no such file.
/// Throws kInvalidFile when one cannot be read.
std::string content_hash(const std::string& path);

}  // namespace fovea::cli
