#include "fovea/model_io/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "fovea/base/context.h"
#include "fovea/base/parallel.h"
#include "fovea/model_io/tensor_names.h"
#include "tests/model_io/expect_error.h"
#include "tests/model_io/gguf_builder.h"
#include "tests/model_io/safetensors_builder.h"
#include "tests/model_io/tiny_config.h"
#include "tests/support/temp_dir.h"

namespace fovea {
namespace {

using testing::Each;
using testing::ElementsAre;

// Value of element `index` of a tensor: different everywhere within it.
float value_at(const ExpectedTensor& tensor, int64_t index) {
  return static_cast<float>(index) * 0.25f + static_cast<float>(tensor.name.size());
}

std::vector<float> values_of(const ExpectedTensor& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value_at(tensor, i));
  return values;
}

// Changes a tensor before it is written; returning false leaves it out.
using Edit = std::function<bool(ExpectedTensor& tensor, std::vector<float>& values)>;
bool keep(ExpectedTensor&, std::vector<float>&) { return true; }

std::string gguf_model(
    Architecture architecture, const Edit& edit = keep,
    const std::function<void(GgufBuilder&)>& add = [](GgufBuilder&) {}, GgufBuilder file = {},
    uint32_t num_layers = 1) {
  const std::string prefix = fmt::format("{}.", architecture_name(architecture));
  file.add_string("general.architecture", architecture_name(architecture));
  file.add_int(prefix + "block_count", num_layers);
  file.add_int(prefix + "embedding_length", 8);
  file.add_int(prefix + "attention.head_count", 2);
  file.add_int(prefix + "attention.head_count_kv", 1);
  file.add_int(prefix + "feed_forward_length", 12);
  file.add_int(prefix + "context_length", 64);
  file.add_int(prefix + "vocab_size", 5);
  file.add_float(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  if (architecture == Architecture::kQwen3Moe) {
    file.add_int(prefix + "expert_count", 3);
    file.add_int(prefix + "expert_used_count", 2);
    file.add_int(prefix + "expert_feed_forward_length", 6);
  }
  for (ExpectedTensor tensor : expected_tensors(tiny_config(architecture), FileFormat::kGguf)) {
    if (tensor.part > 0) continue;  // they are in the tensor of the first
    if (tensor.num_parts > 1) tensor.shape.insert(tensor.shape.begin(), tensor.num_parts);
    std::vector<float> values = values_of(tensor);
    if (!edit(tensor, values)) continue;
    const std::vector<uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
    file.add_f32(tensor.file_name, dims, values);
  }
  add(file);
  return file.build();
}

std::string safetensors_model(Architecture architecture, const Edit& edit = keep) {
  SafetensorsBuilder file;
  for (ExpectedTensor tensor :
       expected_tensors(tiny_config(architecture), FileFormat::kSafetensors)) {
    std::vector<float> values = values_of(tensor);
    if (edit(tensor, values)) file.add_f32(tensor.file_name, tensor.shape, values);
  }
  return file.build();
}

// The bytes must outlive the model.
ModelFile open_gguf(const std::string& bytes) {
  return ModelFile::from_gguf(Gguf::parse(as_bytes(bytes), "tiny.gguf"));
}
ModelFile open_safetensors(const std::string& bytes, Architecture architecture) {
  return ModelFile::from_safetensors(Safetensors::parse(as_bytes(bytes), "tiny.safetensors"),
                                     tiny_config(architecture), "tiny.safetensors");
}

class EveryArchitecture : public testing::TestWithParam<Architecture> {};

TEST_P(EveryArchitecture, GivesTheSameNamesAndShapesFromBothFormats) {
  const std::string gguf_bytes = gguf_model(GetParam());
  const std::string safetensors_bytes = safetensors_model(GetParam());
  const ModelFile gguf = open_gguf(gguf_bytes);
  const ModelFile safetensors = open_safetensors(safetensors_bytes, GetParam());
  ASSERT_EQ(gguf.tensors().size(), safetensors.tensors().size());
  for (const auto& [name, tensor] : gguf.tensors()) {
    ASSERT_NE(safetensors.find_tensor(name), nullptr) << name;
    EXPECT_EQ(tensor.shape, safetensors.tensor(name).shape) << name;
  }
  if (GetParam() == Architecture::kQwen3Moe) {
    EXPECT_EQ(gguf.tensor("layers.0.router").shape, (std::vector<int64_t>{3, 8}));
    EXPECT_EQ(gguf.tensor("layers.0.experts.2.down").shape, (std::vector<int64_t>{8, 6}));
  } else {
    EXPECT_EQ(gguf.tensor("layers.0.gate").shape, (std::vector<int64_t>{12, 8}));
  }
  EXPECT_EQ(gguf.find_tensor("layers.0.q_bias") != nullptr, GetParam() == Architecture::kQwen2);
  EXPECT_EQ(gguf.config().qkv_bias, GetParam() == Architecture::kQwen2);
}

INSTANTIATE_TEST_SUITE_P(, EveryArchitecture,
                         testing::Values(Architecture::kLlama, Architecture::kQwen2,
                                         Architecture::kQwen3, Architecture::kQwen3Moe,
                                         Architecture::kGemma3),
                         [](const auto& param) {
                           return std::string(architecture_name(param.param));
                         });

TEST(ModelFile, ExpertsOfOneGgufTensorAreItsParts) {
  const std::string bytes = gguf_model(Architecture::kQwen3Moe);
  const ModelFile model = open_gguf(bytes);
  EXPECT_EQ(model.config().num_experts, 3);
  EXPECT_EQ(model.config().experts_per_token, 2);
  const ModelTensor& first = model.tensor("layers.0.experts.0.up");
  const ModelTensor& last = model.tensor("layers.0.experts.2.up");
  EXPECT_EQ(first.file_name, "blk.0.ffn_up_exps.weight");
  std::vector<float> of_first(48), of_last(48);
  model.read_f32(first, of_first);
  model.read_f32(last, of_last);
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(of_last[i], of_first[i] + 96 * 0.25f) << i;
}

TEST(ModelFile, AnExpertTooFewIsNamed) {
  const std::string bytes =
      gguf_model(Architecture::kQwen3Moe, [](ExpectedTensor& tensor, std::vector<float>& values) {
        if (tensor.file_name == "blk.0.ffn_down_exps.weight") {
          tensor.shape[0] = 2;
          values.resize(96);
        }
        return true;
      });
  expect_error(ErrorCode::kInvalidFile, "ffn_down_exps", [&] { open_gguf(bytes); });
}

// Version 2, tensors at any byte, nothing behind the last one: odd, but all of it is allowed.
TEST(ModelFile, ReadsTensorsOfAnOddFileAsThoseOfAUsualOne) {
  GgufBuilder odd;
  odd.version = 2;
  odd.alignment = 1;
  odd.pad_last = false;
  odd.add_int("general.alignment", 1);
  const std::string usual_bytes = gguf_model(Architecture::kQwen2);
  std::string odd_bytes;
  for (size_t name_size = 0; name_size < 4; ++name_size) {  // until floats lie across words
    GgufBuilder named = odd;
    named.add_string("general.name", std::string(name_size, 'x'));
    odd_bytes = gguf_model(
        Architecture::kQwen2, keep, [](GgufBuilder&) {}, named);
    if (odd_bytes.size() % 4 == 3) break;
  }
  ASSERT_EQ(odd_bytes.size() % 4, 3u);
  const ModelFile usual = open_gguf(usual_bytes), strange = open_gguf(odd_bytes);
  ASSERT_EQ(strange.tensors().size(), usual.tensors().size());
  for (const auto& [name, tensor] : usual.tensors()) {
    EXPECT_EQ(strange.read_f32(name), usual.read_f32(name)) << name;
  }
}

TEST(ModelFile, NamesTheFirstTensorOfLayersThatAreOnlyCounted) {
  const std::string bytes = gguf_model(
      Architecture::kLlama, keep, [](GgufBuilder&) {}, {}, 1000);
  expect_error(ErrorCode::kInvalidFile, "blk.1.", [&] { open_gguf(bytes); });
}

TEST(ModelFile, PutsInterleavedRowsOfLlamaBack) {
  const std::string bytes =
      gguf_model(Architecture::kLlama, [](ExpectedTensor& tensor, auto& values) {
        // Row r of the file holds r everywhere.
        for (size_t i = 0; i < values.size() && tensor.shape.size() == 2; ++i) {
          values[i] = static_cast<float>(static_cast<int64_t>(i) / tensor.shape[1]);
        }
        return true;
      });
  const ModelFile model = open_gguf(bytes);
  const auto rows = [&](const char* name) {
    const std::vector<float> values = model.read_f32(name);
    std::vector<float> firsts;
    for (size_t i = 0; i < values.size(); i += 8) firsts.push_back(values[i]);
    return firsts;
  };
  // Pairs (0, 1), (2, 3) of each head of 4 become (0, 2), (1, 3).
  EXPECT_THAT(rows("layers.0.q"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(rows("layers.0.k"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(rows("layers.0.v"), ElementsAre(0, 1, 2, 3));
  std::vector<float> two(16);
  model.read_rows(model.tensor("layers.0.q"), 5, 2, two);
  EXPECT_EQ(two[0], 6.0f);
  EXPECT_EQ(two[8], 5.0f);
}

TEST(ModelFile, PutsInterleavedBiasesOfLlamaBack) {
  const std::string bytes = gguf_model(Architecture::kLlama, keep, [](GgufBuilder& file) {
    file.add_f32("blk.0.attn_q.bias", {8}, {0, 1, 2, 3, 4, 5, 6, 7});
    file.add_f32("blk.0.attn_k.bias", {4}, {0, 1, 2, 3});
    file.add_f32("blk.0.attn_v.bias", {4}, {0, 1, 2, 3});
  });
  const ModelFile model = open_gguf(bytes);
  EXPECT_TRUE(model.config().qkv_bias);
  EXPECT_THAT(model.read_f32("layers.0.q_bias"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(model.read_f32("layers.0.k_bias"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(model.read_f32("layers.0.v_bias"), ElementsAre(0, 1, 2, 3));
}

TEST(ModelFile, RefusesAPartOfASplitModel) {
  const std::string bytes = gguf_model(Architecture::kLlama, keep,
                                       [](GgufBuilder& file) { file.add_int("split.count", 3); });
  expect_error(ErrorCode::kUnsupported, "'tiny.gguf' is one of 3 parts of a model",
               [&] { open_gguf(bytes); });
}

TEST(ModelFile, LeavesRowsOfOthersAsTheyAre) {
  const std::string bytes = gguf_model(Architecture::kQwen3);
  const ModelFile model = open_gguf(bytes);
  const std::vector<float> q = model.read_f32("layers.0.q");
  for (size_t i = 1; i < q.size(); ++i) ASSERT_EQ(q[i] - q[i - 1], 0.25f);
}

TEST(ModelFile, AddsOneToNormsOfGemmaFromHuggingFaceOnly) {
  const auto zero = [](ExpectedTensor&, std::vector<float>& values) {
    std::fill(values.begin(), values.end(), 0.0f);
    return true;
  };
  const std::string safetensors_bytes = safetensors_model(Architecture::kGemma3, zero);
  const ModelFile safetensors = open_safetensors(safetensors_bytes, Architecture::kGemma3);
  for (const char* norm :
       {"output_norm", "layers.0.attention_norm", "layers.0.q_norm", "layers.0.k_norm",
        "layers.0.post_attention_norm", "layers.0.mlp_norm", "layers.0.post_mlp_norm"}) {
    EXPECT_THAT(safetensors.read_f32(norm), Each(1.0f)) << norm;
  }
  EXPECT_THAT(safetensors.read_f32("layers.0.down"), Each(0.0f));
  const std::string gguf_bytes = gguf_model(Architecture::kGemma3, zero);
  EXPECT_THAT(open_gguf(gguf_bytes).read_f32("output_norm"), Each(0.0f));
}

TEST(ModelFile, ScalesFp8Tiles) {
  // down [8, 12] fits one tile; gate is made of two tiles by a config of its own.
  ModelConfig config = tiny_config(Architecture::kQwen3);
  config.mlp_dim = 130;
  const auto build = [&](bool with_scale) {
    SafetensorsBuilder file;
    for (const ExpectedTensor& tensor : expected_tensors(config, FileFormat::kSafetensors)) {
      if (tensor.name != "layers.0.gate") {
        file.add_f32(tensor.file_name, tensor.shape, values_of(tensor));
        continue;
      }
      file.add(tensor.file_name, "F8_E4M3", tensor.shape, std::string(130 * 8, '\x38'));  // 1.0
      if (with_scale) file.add_f32(tensor.file_name + "_scale_inv", {2, 1}, {0.5f, 4.0f});
    }
    return file.build();
  };
  const auto open = [&](const std::string& bytes) {
    return ModelFile::from_safetensors(Safetensors::parse(as_bytes(bytes), "fp8.safetensors"),
                                       config, "fp8.safetensors");
  };
  const std::string bytes = build(true);
  const std::vector<float> gate = open(bytes).read_f32("layers.0.gate");
  EXPECT_EQ(gate[0], 0.5f);
  EXPECT_EQ(gate[127 * 8 + 7], 0.5f);
  EXPECT_EQ(gate[128 * 8], 4.0f);
  const std::string without = build(false);
  expect_error(ErrorCode::kInvalidFile, "gate_proj.weight' needs a", [&] { open(without); });
}

TEST(ModelFile, TakesRopeFactorsFromATensor) {
  const std::string bytes = gguf_model(Architecture::kLlama, keep, [](GgufBuilder& file) {
    file.add_f32("rope_freqs.weight", {2}, {1.0f, 8.0f});
  });
  EXPECT_THAT(open_gguf(bytes).config().rope_factors, ElementsAre(1.0f, 8.0f));
  const std::string wrong = gguf_model(Architecture::kLlama, keep, [](GgufBuilder& file) {
    file.add_f32("rope_freqs.weight", {3}, {1.0f, 8.0f, 8.0f});
  });
  expect_error(ErrorCode::kInvalidFile, "'rope_freqs.weight' must be F32 [2], is F32 [3]",
               [&] { open_gguf(wrong); });
}

TEST(ModelFile, NamesATensorThatIsMissingOrMisshapen) {
  const std::string missing = gguf_model(Architecture::kLlama, [](ExpectedTensor& tensor, auto&) {
    return tensor.name != "layers.0.up";
  });
  expect_error(ErrorCode::kInvalidFile,
               "'tiny.gguf': tensor 'blk.0.ffn_up.weight' of shape [12, 8] is missing",
               [&] { open_gguf(missing); });
  const std::string misshapen =
      safetensors_model(Architecture::kQwen2, [](ExpectedTensor& tensor, auto&) {
        if (tensor.name == "layers.0.down") tensor.shape = {12, 8};
        return true;
      });
  expect_error(ErrorCode::kInvalidFile,
               "tensor 'model.layers.0.mlp.down_proj.weight' must have shape [8, 12], has [12, 8]",
               [&] { open_safetensors(misshapen, Architecture::kQwen2); });
}

TEST(ModelFile, RefusesATensorThatNobodyWouldMultiply) {
  const std::string bytes = gguf_model(Architecture::kQwen3, keep, [](GgufBuilder& file) {
    file.add_f32("blk.0.attn_output.bias", {8}, std::vector<float>(8));
  });
  expect_error(ErrorCode::kUnsupported,
               "tensor 'blk.0.attn_output.bias' has no place in a model of architecture qwen3",
               [&] { open_gguf(bytes); });
}

TEST(ModelFile, RefusesExponentsThatNoMatrixHas) {
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj_scales";
  const ModelConfig config = tiny_config(Architecture::kQwen3);
  SafetensorsBuilder file;
  for (const ExpectedTensor& tensor : expected_tensors(config, FileFormat::kSafetensors)) {
    file.add_f32(tensor.file_name, tensor.shape, values_of(tensor));
  }
  file.add(name, "U8", {4}, "abcd");
  const std::string bytes = file.build();
  expect_error(ErrorCode::kUnsupported,
               "tensor '" + name + "' has no place in a model of architecture qwen3",
               [&] { open_safetensors(bytes, Architecture::kQwen3); });
}

TEST(ModelFile, RefusesTypesThatHoldNoWeights) {
  const std::string bytes = gguf_model(
      Architecture::kQwen3,
      [](ExpectedTensor& tensor, auto&) { return tensor.name != "output_norm"; },
      [](GgufBuilder& file) {
        file.add_tensor("output_norm.weight", {8}, 26, std::string(32, '\1'));
      });
  expect_error(ErrorCode::kUnsupported, "'output_norm.weight' of type I32 is not supported",
               [&] { open_gguf(bytes); });
}

TEST(ModelFile, NamesANaNOrInfinityInWeights) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const std::string bytes =
        safetensors_model(Architecture::kQwen3, [&](ExpectedTensor& tensor, auto& values) {
          if (tensor.name == "layers.0.v") values[2 * 8 + 3] = bad;
          return true;
        });
    const ModelFile model = open_safetensors(bytes, Architecture::kQwen3);
    expect_error(
        ErrorCode::kInvalidFile,
        "tensor 'model.layers.0.self_attn.v_proj.weight' holds a NaN or infinity at [2, 3]",
        [&] { model.read_f32("layers.0.v"); });
    std::vector<float> row(8);
    model.read_rows(model.tensor("layers.0.v"), 1, 1, row);  // other rows are fine
    EXPECT_EQ(row[1] - row[0], 0.25f);
  }
}

TEST(ModelFile, ChecksArgumentsOfReads) {
  const std::string bytes = gguf_model(Architecture::kQwen3);
  const ModelFile model = open_gguf(bytes);
  std::vector<float> row(8);
  const ModelTensor& embedding = model.tensor("token_embedding");
  model.read_rows(embedding, 4, 1, row);
  model.read_rows(embedding, 5, 0, {});
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {5, 1}, {-1, 1}, {0, -1}, {0, std::numeric_limits<int64_t>::max()}}) {
    expect_error(ErrorCode::kInvalidArgument, "outside tensor 'token_embedding' of shape [5, 8]",
                 [&] { model.read_rows(embedding, first, count, row); });
  }
  expect_error(ErrorCode::kInvalidArgument, "take 16 floats, got 8",
               [&] { model.read_rows(embedding, 0, 2, row); });
  expect_error(ErrorCode::kInvalidArgument, "has no tensor 'output'",
               [&] { model.tensor("output"); });
}

TEST(ModelFile, ReadsFromManyThreads) {
  const ModelFile model = ModelFile::open("models/needle_7m");
  const ModelTensor& embedding = model.tensor("token_embedding");
  const std::vector<float> whole = model.read_f32("token_embedding");
  std::vector<float> rows(whole.size());
  parallel_for(Context{.num_threads = 4}, 64, [&](int64_t task, int32_t) {
    model.read_rows(embedding, task * 64, 64,
                    std::span(rows).subspan(static_cast<size_t>(task) * 64 * 256, 64 * 256));
  });
  EXPECT_EQ(rows, whole);
}

TEST(ModelFile, OpensNeedle7m) {
  const ModelFile model = ModelFile::open("models/needle_7m");
  const ModelConfig& config = model.config();
  EXPECT_EQ(config.architecture, Architecture::kQwen3);
  EXPECT_EQ(config.num_layers, 6);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.context_length, 131072);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_THAT(config.eos_ids, ElementsAre(0));
  EXPECT_TRUE(config.qk_norm && config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.rope_factors.empty() && config.local_layers.empty());
  EXPECT_EQ(model.folder(), "models/needle_7m");
  EXPECT_EQ(model.gguf(), nullptr);
  EXPECT_EQ(model.tensors().size(), 2u + 6u * 11u);
  const ModelFile by_file = ModelFile::open("models/needle_7m/model.safetensors");
  EXPECT_EQ(by_file.folder(), "models/needle_7m");
  EXPECT_EQ(by_file.read_f32("layers.5.k"), model.read_f32("layers.5.k"));
}

// Published files, where they have been fetched into models/ (scripts/get_model.py); sums of
// squares over all weights are those of the Python package gguf.
struct Published {
  const char* path;
  Architecture architecture;
  size_t num_tensors;
  double mean_square;
};

class PublishedFile : public testing::TestWithParam<Published> {};

TEST_P(PublishedFile, ReadsAsTheOracleDoes) {
  const Published& published = GetParam();
  if (!std::filesystem::exists(published.path)) GTEST_SKIP() << published.path << " is absent";
  const ModelFile model = ModelFile::open(published.path);
  EXPECT_EQ(model.config().architecture, published.architecture);
  EXPECT_EQ(model.tensors().size(), published.num_tensors);
  ASSERT_NE(model.gguf(), nullptr);
  EXPECT_EQ(static_cast<int64_t>(model.gguf()->find_strings("tokenizer.ggml.tokens")->size()),
            model.config().vocab_size);
  double sum = 0.0;
  double count = 0.0;
  for (const auto& [name, tensor] : model.tensors()) {
    for (const float value : model.read_f32(name)) {
      sum += static_cast<double>(value) * static_cast<double>(value);
      count += 1.0;
    }
  }
  EXPECT_NEAR(sum / count / published.mean_square, 1.0, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(, PublishedFile,
                         testing::Values(Published{"models/SmolLM2-135M-Instruct.Q4_1.gguf",
                                                   Architecture::kLlama, 272, 0.03341988698287687},
                                         Published{"models/gemma-3-270m-q4_k_m.gguf",
                                                   Architecture::kGemma3, 236, 1.9337009741749323}),
                         [](const auto& param) {
                           return std::string(architecture_name(param.param.architecture));
                         });

TEST(ModelFile, KnowsAGgufFileByItsContent) {
  const test::TempDir folder;
  for (const char* name : {"model.bin", "model.safetensors", "model"}) {
    std::ofstream(folder.file(name), std::ios::binary) << gguf_model(Architecture::kLlama);
    EXPECT_NE(ModelFile::open(folder.file(name)).gguf(), nullptr) << name;
  }
}

TEST(ModelFile, SaysWhatAPathMustBe) {
  expect_error(ErrorCode::kInvalidFile, "'no/such/model' does not exist",
               [] { ModelFile::open("no/such/model"); });
  expect_error(ErrorCode::kUnsupported, "is neither a GGUF file, nor",
               [] { ModelFile::open("models/needle_7m/config.json"); });
  expect_error(ErrorCode::kInvalidFile, "'cmake' has no config.json in it; a GGUF file is given by",
               [] { ModelFile::open("cmake"); });
  expect_error(ErrorCode::kInvalidFile, "'none.safetensors' has no config.json beside it",
               [] { ModelFile::open("none.safetensors"); });
  expect_error(ErrorCode::kInvalidFile, "cannot open 'none.gguf'",
               [] { ModelFile::open("none.gguf"); });
}

}  // namespace
}  // namespace fovea
