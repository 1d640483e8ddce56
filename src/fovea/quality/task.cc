#include "fovea/quality/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/quality/needle_task.h"
#include "fovea/quality/task_forms.h"

namespace fovea::quality {
namespace {

struct Kind {
  std::string_view name;
  std::string_view description;
  int64_t num_questions;
};
constexpr std::array<Kind, 3> kKinds = {{
    {"single", "one fact", 1},
    {"lookalike", "one question among facts of the same form", 1},
    {"eight", "eight questions among facts of the same form", 8},
}};

const Kind& find_kind(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  fail(ErrorCode::kInvalidArgument, "unknown task \"{}\", use {}", name,
       fmt::join(task_kinds(), ", "));
}

}  // namespace

std::vector<std::string> task_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::string_view task_description(std::string_view kind) { return find_kind(kind).description; }

int64_t questions_per_task(std::string_view kind) { return find_kind(kind).num_questions; }

TaskMaker::TaskMaker(std::string_view filler_text, EncodeFunction encode)
    : encode_(std::move(encode)),
      filler_(encode_(filler_text)),
      names_(needle_names(filler_text, encode_)) {}

Task TaskMaker::make(std::string_view kind, const TaskSettings& settings, int64_t index,
                     int64_t num_tasks) const {
  NeedleSettings needle;
  needle.length = settings.length;
  needle.seed = settings.seed;
  needle.bos_id = settings.bos_id;
  needle.num_questions = questions_per_task(kind);
  if (kind != "single") {
    const int64_t num_facts = std::max<int64_t>(8, settings.length / task_forms().tokens_per_fact);
    needle.num_distractors = num_facts - needle.num_questions;
  }
  Task task = make_needle_task(needle, index, num_tasks, filler_, names_, encode_);
  task.kind = kind;
  return task;
}

}  // namespace fovea::quality
