// Tasks from files in public formats, which users bring: LongBench-v2 and InfiniteBench.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/quality/task.h"

namespace fovea::quality {

struct LoadSettings {
  /// Most tokens of a prompt and its answer. Longer prompts lose their middle, which lies in the
  /// context: what is left begins and ends with as many tokens, as both benchmarks do it.
  int64_t length = 32768;
  int64_t max_tasks = 0;  // the first ones of the file only; 0: all
};

/// Reads the tasks of a file.
///
/// A JSON list, or a record in each line. Records with "choice_A" are LongBench-v2's (question,
/// choice_A ... choice_D, answer, context), others InfiniteBench's (context, input, answer,
/// options), whose kind is what the file's name begins with: "passkey.jsonl". Prompts are worded
/// by us, go into `frame` and ask as the originals do: a letter for choices, else a generated
/// answer. Not scored here, and refused: longbook_sum_eng (ROUGE), longbook_qa_chn, math_calc.
///
/// The file may be anything: throws kInvalidFile naming the record's line and the field that is
/// wrong, or for files over 4 GiB, records over 64 MiB and more than 100,000 of them; kUnsupported
/// for a kind not scored here; kInvalidArgument when `length` has no room for a question.
std::vector<Task> load_tasks(const std::string& path, const EncodeFunction& encode,
                             const PromptFrame& frame, const LoadSettings& settings);

/// The same from the content of a file called `name`.
std::vector<Task> parse_tasks(std::string_view content, const std::string& name,
                              const EncodeFunction& encode, const PromptFrame& frame,
                              const LoadSettings& settings);

}  // namespace fovea::quality
