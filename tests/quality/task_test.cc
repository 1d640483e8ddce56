#include "fovea/quality/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "fovea/base/error.h"
#include "fovea/engine/model.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::quality {
namespace {

using testing::HasSubstr;

// Tasks for the model that the project carries, in a text that it carries as well.
class Tasks : public testing::Test {
 protected:
  static TaskMaker make_maker() {
    static const std::shared_ptr<const Model> model = Model::load("models/needle_7m");
    std::ifstream file("LICENSE");
    const std::string once(std::istreambuf_iterator<char>(file), {});
    return TaskMaker(once + once + once, [](std::string_view part) {
      return model->tokenizer().encode(part, {.add_bos = false});
    });
  }
  static const TaskMaker& maker() {
    static const TaskMaker maker = make_maker();
    return maker;
  }
};

uint64_t hash_of(std::string_view kind, const TaskMaker& maker) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a over the words
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  for (int64_t i = 0; i < 3; ++i) {
    const Task task = maker.make(kind, {.length = 4096, .seed = 7, .bos_id = 0}, i, 3);
    for (const int32_t token : task.tokens) add(static_cast<uint64_t>(token));
    for (const Question& question : task.questions) {
      add(static_cast<uint64_t>(question.answer_begin));
    }
  }
  return hash;
}

// Published results name their seed: the same seed must go on to ask the same.
TEST_F(Tasks, OfPublishedResultsStayAsTheyWere) {
  EXPECT_EQ(hash_of("single", maker()), 0x9a0093e11c5dbf3au);
  EXPECT_EQ(hash_of("lookalike", maker()), 0x3c970e4d3506566eu);
  EXPECT_EQ(hash_of("eight", maker()), 0xe76440d76e227264u);
}

TEST_F(Tasks, OfAnUnknownKindNameTheKnownOnes) {
  EXPECT_THROW(questions_per_task("triple"), Error);
  try {
    maker().make("triple", {.length = 1024}, 0, 1);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown task \"triple\", use single, lookalike, eight"));
  }
}

}  // namespace
}  // namespace fovea::quality
