// What would not fit is said before the work: how much it needs, how much there is, what to try.
#include "fovea/engine/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "fovea/base/error.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/memory_plan.h"
#include "fovea/engine/page_key.h"
#include "fovea/engine/session.h"
#include "tests/engine/made_up_model.h"

namespace fovea {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Message of the kOutOfMemory error that `body` throws.
template <typename Body>
std::string out_of_memory(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Memory, TheMessageSaysWhatIsNeededWhatThereIsAndWhatToTry) {
  EXPECT_NO_THROW(check_memory(available_memory_bytes() / 2, "it", "less"));
  EXPECT_THAT(out_of_memory([] { check_memory(int64_t{1} << 50, "A thing", "a smaller one"); }),
              AllOf(HasSubstr("A thing needs 1048576.0 GiB of memory, the machine has "),
                    HasSubstr(" free; try a smaller one")));
}

TEST(Memory, APromptWhoseKvDoesNotFitIsRefusedBeforeItIsRead) {
  const test::TempDir folder;
  // 512 KiB of K and V per token, and a long context.
  test::write_made_up_model(folder, R"({"model_type": "llama", "hidden_size": 16,
    "intermediate_size": 16, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 64,
    "vocab_size": 32, "max_position_embeddings": 1000000, "num_hidden_layers": 16})");
  const auto model = Model::load(folder.path(), {.compute = ComputeType::kF32, .progress = {}});
  const int64_t num_tokens = available_memory_bytes() / model->kv_bytes_per_token() + 1000;
  if (num_tokens > 1000000) GTEST_SKIP() << "this machine has too much memory";
  SessionOptions options;
  options.max_len = num_tokens;
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*model, {}, 128));  // nothing held yet
  Session session(model, options);
  int64_t num_steps = 0;
  PrefillOptions prefill;
  prefill.progress = [&](double) { ++num_steps; };
  const std::vector<int32_t> tokens(static_cast<size_t>(num_tokens), 1);
  EXPECT_THAT(out_of_memory([&] { session.prefill(tokens, prefill); }),
              AllOf(HasSubstr("a prompt of " + std::to_string(num_tokens) + " tokens needs "),
                    HasSubstr("(K and V "), HasSubstr("try fewer tokens")));
  EXPECT_EQ(num_steps, 0);
  EXPECT_EQ(session.length(), 0);
}

TEST(Memory, ALimitIsKeptAndWhatIsPlannedIsWhatIsTaken) {
  const auto model = Model::load("models/needle_7m", {.progress = {}});
  const std::vector<int32_t> tokens(1024, 1);
  SessionOptions options;
  options.chunk_size = 512;
  options.max_len = 2048;
  SelectorSettings selector;
  selector.method = SelectorMethod::kWitness;
  options.attention.selector = selector;
  options.attention.min_sparse_len = 0;
  Session free(model, options);
  free.prefill(tokens);
  const PrefillReport taken = free.report();
  KvCacheShape shape = kv_cache_shape(*model, options.attention, 1024);
  const MemoryPlan plan = plan_memory({.config = &model->config(),
                                       .compute_dtype = model->compute_dtype(),
                                       .weight_dtype = model->weight_dtype(),
                                       .context = model->context(),
                                       .cache = shape,
                                       .attention = options.attention,
                                       .max_len = 2048,
                                       .chunk_rows = 512});
  EXPECT_EQ(plan.kv, taken.kv_bytes);
  EXPECT_EQ(plan.statistics, taken.stats_bytes);
  EXPECT_EQ(plan.chunk, taken.activation_bytes);

  options.memory_limit = plan.total();
  Session enough(model, options);
  EXPECT_NO_THROW(enough.prefill(tokens));
  options.memory_limit = plan.total() - 1;
  Session little(model, options);
  EXPECT_THAT(out_of_memory([&] { little.prefill(tokens); }),
              AllOf(HasSubstr("a prompt of 1024 tokens needs "), HasSubstr("statistics "),
                    HasSubstr("a chunk's buffers "), HasSubstr("smaller chunk size")));
  EXPECT_EQ(little.length(), 0);
}

TEST(Memory, AModelThatDoesNotFitIsRefusedBeforeItIsRead) {
  const test::TempDir folder;
  const std::string config = R"({"model_type": "llama", "hidden_size": 65536,
    "intermediate_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
    "vocab_size": 16777216, "max_position_embeddings": 64, "num_hidden_layers": 1,
    "tie_word_embeddings": true})";
  SafetensorsBuilder tensors;
  int64_t data_bytes = 0;
  std::string header;
  for (const ExpectedTensor& tensor :
       expected_tensors(config_from_json(config, "config.json"), FileFormat::kSafetensors)) {
    int64_t bytes = 2;
    for (const int64_t dim : tensor.shape) bytes *= dim;
    header += fmt::format("{}\"{}\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.empty() ? "" : ",", tensor.file_name, fmt::join(tensor.shape, ","),
                          data_bytes, data_bytes + bytes);
    data_bytes += bytes;
  }
  const std::string file = safetensors_file("{" + header + "}", "");
  test::write_file(folder.file("config.json"), config);
  test::write_file(folder.file("tokenizer.json"), test::kOneTokenJson);
  test::write_file(folder.file("model.safetensors"), file);
  std::error_code error;  // 2 TiB of holes
  std::filesystem::resize_file(folder.file("model.safetensors"),
                               file.size() + static_cast<uintmax_t>(data_bytes), error);
  if (error) GTEST_SKIP() << "this file system holds no file of 2 TiB: " << error.message();
  EXPECT_THAT(out_of_memory([&] { Model::load(folder.path()); }),
              AllOf(HasSubstr(" needs "), HasSubstr(" of memory, the machine has "),
                    HasSubstr("a smaller model")));
}

}  // namespace
}  // namespace fovea
