// What a task says, in words, and how it becomes tokens.
#pragma once

#include <cstdint>
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
  Hidden fact;         // the sentence that answers it
};

/// A sentence with gaps.
struct Cloze {
  std::vector<Gap> gaps;
  std::string end;         // what comes after the last gap: "."
  bool any_order = false;  // the gaps' answers are a set
};

/// The same content for both ways of asking: gaps to fill, or one question in words.
struct Story {
  std::vector<Hidden> hidden;
  std::vector<Cloze> clozes;
  FormValues asked;  // of the form that asks in words; its answers are those of all gaps
};

/// `form` with its {gap_names} as gaps, in order, and everything else from `values`, which has the
/// gaps' answers as well. A blank before a gap is left out. `facts` has one sentence a gap.
Cloze make_cloze(std::string_view form, const FormValues& values,
                 std::span<const std::string> gap_names, std::span<const Hidden> facts);

/// What a task is laid out with.
struct Ground {
  std::span<const int32_t> filler;  // text with nothing to find
  const EncodeFunction& encode;
};

/// The story as a task of exactly `settings.length` tokens: its sentences at their depths in a
/// stretch of filler from a random place, then the clozes. Throws kInvalidArgument when the filler
/// is shorter than that or the length has no room.
Task lay_out_forced(const Story& story, const TaskSettings& settings, const Ground& ground,
                    Random& random);

/// The story as a question to a chat model, whose answer has room within `settings.length`.
/// Sentences go to the next end of a sentence. `frame` as TaskMaker has it. Throws as
/// lay_out_forced().
Task lay_out_generated(const Story& story, const GeneratedQuestion& question,
                       const PromptFrame& frame, const TaskSettings& settings, const Ground& ground,
                       Random& random);

}  // namespace fovea::quality
