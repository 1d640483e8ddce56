// Scores of answers that a model wrote.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fovea/quality/task.h"

namespace fovea::quality {

/// Score of `text`, 0 ... 1, as `scoring` says; ASCII letters match in either case. Throws
/// kInvalidArgument without answers, and for kForced and kChoice, which do not look at text.
///
/// Source: RULER's string_match_all and string_match_part; InfiniteBench's scores of passkey,
/// number_string and math_find (kFirstNumber), code_run (kLastNumber), kv_retrieval and
/// longdialogue_qa_eng (kWordFound) and longbook_qa_eng (kWordF1: case, punctuation and the words
/// a, an, the do not count).
double score_text(Scoring scoring, std::string_view text, std::span<const std::string> answers);

}  // namespace fovea::quality
