// What a task says, in words, and how it becomes tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/quality/random.h"
#include "fovea/quality/task.h"
#include "fovea/quality/task_forms.h"

namespace fovea::quality {

/// A sentence to hide in the text.
struct Hidden {
  std::string text;
  double depth = 0;  // 0 (beginning) ... 1 (end)
};

/// A gap in a sentence at the end, for the model to fill.
struct Gap {
  std::string before;  // " Recall: the red code of apple is"; a blank comes between it and answer
  std::string answer;  // "12345"
  std::string fact;    // the sentence that answers it, and where that stands
  double depth = 0;
};

/// A sentence with gaps.
struct Cloze {
  std::vector<Gap> gaps;
  std::string end;  // what comes after the last gap: "."
};

struct Story {
  std::vector<Hidden> hidden;
  std::vector<Cloze> clozes;
};

/// `form` with its {gap_names} as gaps, in order, and everything else from `values`, which has the
/// gaps' answers as well. A blank before a gap is left out. The gaps' facts are the caller's to
/// set.
Cloze make_cloze(std::string_view form, const FormValues& values,
                 std::span<const std::string> gap_names);

/// The story as a task of exactly `settings.length` tokens: its sentences at their depths in a
/// stretch of `filler` from a random place, then the clozes. Throws kInvalidArgument when `filler`
/// is shorter than that or the length has no room.
Task lay_out(Story story, const TaskSettings& settings, std::span<const int32_t> filler,
             const EncodeFunction& encode, Random& random);

}  // namespace fovea::quality
