#include "fovea/model_io/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/model_io/expect_error.h"
#include "tests/model_io/gguf_builder.h"

namespace fovea {
namespace {

using nlohmann::json;
using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

json llama_json() {
  return {{"model_type", "llama"},    {"hidden_size", 64},
          {"num_hidden_layers", 3},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"intermediate_size", 96},
          {"vocab_size", 100},        {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},     {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

ModelConfig parse(const json& value) { return config_from_json(value.dump(), "config.json"); }

void expect_refused(const json& value, ErrorCode code, const std::string& part) {
  expect_error(code, part, [&] { parse(value); });
}

TEST(ConfigFromJson, Llama) {
  const ModelConfig config = parse(llama_json());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.mlp_dim, 96);
  EXPECT_DOUBLE_EQ(config.softmax_scale, 0.25);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rms_eps, 1e-5);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_FALSE(config.qkv_bias || config.qk_norm || config.post_norms || config.tied_embeddings);
  EXPECT_TRUE(config.local_layers.empty());
  EXPECT_EQ(config.activation, Activation::kSilu);
}

TEST(ConfigFromJson, Llama3RopeScaling) {
  json value = llama_json();
  value["hidden_size"] = 512;  // head_dim 128
  value["rope_theta"] = 500000.0;
  value["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  const ModelConfig config = parse(value);
  ASSERT_EQ(config.rope_factors.size(), 64u);
  // Llama 3.1 8B: pairs up to 28 turn more than four times in 8192 tokens, those from 36 less than
  // once.
  EXPECT_EQ(config.rope_factors[0], 1.0f);
  EXPECT_EQ(config.rope_factors[28], 1.0f);
  EXPECT_GT(config.rope_factors[29], 1.0f);
  EXPECT_LT(config.rope_factors[34], 8.0f);
  EXPECT_EQ(config.rope_factors[35], 8.0f);
  EXPECT_EQ(config.rope_factors[63], 8.0f);
  for (size_t i = 1; i < 64; ++i) EXPECT_GE(config.rope_factors[i], config.rope_factors[i - 1]);
}

TEST(ConfigFromJson, LinearAndUnknownRopeScaling) {
  json value = llama_json();
  value["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(parse(value).rope_factors, Each(4.0f));
  EXPECT_EQ(parse(value).rope_factors.size(), 8u);
  value["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  expect_refused(value, ErrorCode::kUnsupported, "rope scaling 'dynamic' is not supported");
  value["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 0.0}};
  expect_refused(value, ErrorCode::kInvalidFile, "rope factor must be in (0, 1000000], is 0");
  value["rope_scaling"] = 4;
  expect_refused(value, ErrorCode::kInvalidFile, "expected an object");
}

TEST(ConfigFromJson, Yarn) {
  json value = llama_json();
  value["rope_scaling"] = {{"rope_type", "yarn"},
                           {"factor", 4.0},
                           {"original_max_position_embeddings", 512},
                           {"truncate", false}};
  // Divisors of the frequencies and the factor of q and k that transformers computes.
  EXPECT_THAT(parse(value).rope_factors,
              Pointwise(FloatNear(1e-6f),
                        {1.0f, 1.0491738f, 1.4204821f, 2.1985669f, 4.0f, 4.0f, 4.0f, 4.0f}));
  EXPECT_NEAR(parse(value).softmax_scale, 1.138629436 * 1.138629436 / 4.0, 1e-9);
  value["rope_scaling"]["truncate"] = true;
  EXPECT_THAT(
      parse(value).rope_factors,
      Pointwise(FloatNear(1e-6f), {1.0f, 1.2307692f, 1.6f, 2.2857142f, 4.0f, 4.0f, 4.0f, 4.0f}));
  value["rope_scaling"]["attention_factor"] = 1.0;
  EXPECT_NEAR(parse(value).softmax_scale, 1.0 / 4.0, 1e-9);
  value["rope_scaling"]["beta_slow"] = -1.0;
  expect_refused(value, ErrorCode::kInvalidFile, "beta_slow must be in (0, 1000000], is -1");
  value["rope_scaling"]["mscale"] = 0.7;
  expect_refused(value, ErrorCode::kUnsupported, "yarn's mscale is not supported");
}

TEST(ConfigFromJson, GptOssNeedsItsOwnTypesAndNumbers) {
  std::ifstream file("tests/golden/architectures.json");
  const json good = json::parse(file).at("gpt_oss").at("config");
  EXPECT_TRUE(parse(good).attention_sinks);
  json value = good;
  value["swiglu_limit"] = 6.0;
  expect_refused(value, ErrorCode::kUnsupported, "a swiglu_limit other than 7");
  value = good;
  value.erase("quantization_config");
  expect_refused(value, ErrorCode::kUnsupported, "gpt_oss without experts in MXFP4");
  value = good;
  value["hidden_size"] = 80;
  expect_refused(value, ErrorCode::kInvalidFile, "multiples of 32 for MXFP4, are 80 and 96");
  value = good;
  value["attention_bias"] = false;
  expect_refused(value, ErrorCode::kUnsupported, "no attention_bias");
}

TEST(ConfigFromJson, MistralWindow) {
  json value = llama_json();
  value["model_type"] = "mistral";
  value["sliding_window"] = nullptr;
  EXPECT_TRUE(parse(value).local_layers.empty());
  value["sliding_window"] = 128;
  EXPECT_EQ(parse(value).sliding_window, 128);
  EXPECT_THAT(parse(value).local_layers, ElementsAre(true, true, true));
}

TEST(ConfigFromJson, Qwen) {
  json value = llama_json();
  value["model_type"] = "qwen2";
  value["sliding_window"] = 128;
  EXPECT_TRUE(parse(value).qkv_bias);
  EXPECT_TRUE(parse(value).local_layers.empty());
  value["use_sliding_window"] = true;
  value["max_window_layers"] = 1;
  EXPECT_THAT(parse(value).local_layers, ElementsAre(false, true, true));
  value["model_type"] = "qwen3";
  value["use_sliding_window"] = false;
  value["head_dim"] = 32;
  const ModelConfig config = parse(value);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.head_dim, 32);
}

TEST(ConfigFromJson, Fp8) {
  json value = llama_json();
  value["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(parse(value).num_layers, 3);
}

TEST(ConfigFromJson, HeadDimIsNotGuessedWhereItsDefaultIsNoDivision) {
  for (const char* type : {"qwen3", "gemma3_text"}) {
    json value = llama_json();
    value["model_type"] = type;
    expect_refused(value, ErrorCode::kInvalidFile, "'head_dim' is missing");
  }
}

TEST(ConfigFromJson, Gemma3) {
  json value = llama_json();
  value["model_type"] = "gemma3_text";
  value["num_hidden_layers"] = 7;
  value["head_dim"] = 64;
  value["query_pre_attn_scalar"] = 256;
  value["sliding_window"] = 512;
  value["hidden_activation"] = "gelu_pytorch_tanh";
  value["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  value["eos_token_id"] = {1, 99};
  const ModelConfig config = parse(value);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_DOUBLE_EQ(config.softmax_scale, 1.0 / 16.0);
  EXPECT_DOUBLE_EQ(config.embedding_scale, 8.0);
  EXPECT_TRUE(config.qk_norm && config.post_norms && config.tied_embeddings);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.rope_theta_local, 1e4);
  EXPECT_THAT(config.rope_factors, Each(8.0f));
  EXPECT_THAT(config.local_layers, ElementsAre(true, true, true, true, true, false, true));
  EXPECT_THAT(config.eos_ids, ElementsAre(1, 99));

  value.erase("rope_scaling");  // the newer spelling
  value["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  value["layer_types"] =
      json::array({"full_attention", "sliding_attention", "full_attention", "full_attention",
                   "full_attention", "full_attention", "full_attention"});
  const ModelConfig newer = parse(value);
  EXPECT_EQ(newer.rope_theta, 5e5);
  EXPECT_EQ(newer.rope_theta_local, 2e4);
  EXPECT_THAT(newer.rope_factors, Each(2.0f));
  EXPECT_TRUE(newer.is_local(1));
  EXPECT_FALSE(newer.is_local(5));
  value["layer_types"] = json::array({"full_attention"});
  expect_refused(value, ErrorCode::kInvalidFile, "'layer_types' must list 7 layers");
}

TEST(ConfigFromJson, RefusesWhatWeDoNotRun) {
  const std::vector<std::tuple<const char*, json, const char*>> cases = {
      {"model_type", "mamba\n2", "architecture 'mamba?2' is not supported"},
      {"hidden_act", "relu", "activation 'relu'"},
      {"mlp_bias", true, "mlp_bias"},
      {"attention_bias", true, "attention_bias"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"final_logit_softcapping", 30.0, "final_logit_softcapping"},
      {"quantization_config", {{"quant_method", "gptq"}}, "quantization 'gptq'"},
      {"quantization_config", {{"quant_method", "fp8"}}, "FP8 without scales of 128 x 128"},
      {"quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {64, 128}}},
       "FP8 without scales of 128 x 128"}};
  for (const auto& [key, value, part] : cases) {
    json config = llama_json();
    config[key] = value;
    expect_refused(config, ErrorCode::kUnsupported, part);
  }
}

TEST(ConfigFromJson, RefusesNumbersThatMakeNoModel) {
  const std::vector<std::tuple<const char*, json, const char*>> cases = {
      {"num_hidden_layers", 0, "number of layers must be in [1, 1024], is 0"},
      {"num_hidden_layers", 1000000, "number of layers must be in [1, 1024], is 1000000"},
      {"num_hidden_layers", -1, "number of layers"},
      {"num_attention_heads", 0, "does not divide among 0 heads"},
      {"num_attention_heads", -4, "does not divide among -4 heads"},
      {"num_attention_heads", 5, "hidden_size 64 does not divide among 5 heads"},
      {"num_key_value_heads", 3, "4 query heads do not divide among 3 key-value heads"},
      {"num_key_value_heads", 0, "number of key-value heads must be in [1, 1024], is 0"},
      {"head_dim", 15, "head_dim must be even"},
      {"head_dim", 1 << 20, "head_dim must be in [1, 1024]"},
      {"hidden_size", 0, "model_dim must be in"},
      {"intermediate_size", 0, "mlp_dim must be in"},
      {"vocab_size", 0, "vocab_size must be in"},
      {"vocab_size", 9007199254740993, "vocab_size must be in"},
      {"max_position_embeddings", 0, "context_length must be in"},
      {"rms_norm_eps", 0.0, "rms epsilon must be in (0, 1], is 0"},
      {"rms_norm_eps", -1.0, "rms epsilon"},
      {"rope_theta", 0.0, "rope theta must be in"},
      {"sliding_window", -1, "sliding window must be in"},
      {"eos_token_id", 100, "end-of-text id 100 is outside the vocabulary of 100"},
      {"eos_token_id", -2, "'eos_token_id' must be a token id"},
      {"bos_token_id", 1.5, "'bos_token_id' must be a token id"},
      {"hidden_size", "64", "'hidden_size' must be an integer, is string"},
      {"hidden_size", 64.0, "'hidden_size' must be an integer, is number"},
      {"vocab_size", 18446744073709551615u, "'vocab_size' must be below 2^63"},
      {"tie_word_embeddings", 1, "'tie_word_embeddings' must be true or false"}};
  for (const auto& [key, value, part] : cases) {
    json config = llama_json();
    config[key] = value;
    expect_refused(config, ErrorCode::kInvalidFile, part);
  }
  for (const char* key : {"hidden_size", "vocab_size", "model_type", "intermediate_size"}) {
    json config = llama_json();
    config.erase(key);
    expect_refused(config, ErrorCode::kInvalidFile, fmt::format("'{}' is missing", key));
  }
  expect_error(ErrorCode::kInvalidFile, "nested deeper than 16 levels",
               [] { config_from_json(std::string(100'000, '['), "config.json"); });
}

TEST(ConfigFromJson, GenerationConfigAddsEndOfTextIds) {
  ModelConfig config = parse(llama_json());
  add_generation_config(R"({"eos_token_id":[2,7]})", "generation_config.json", config);
  EXPECT_THAT(config.eos_ids, ElementsAre(2, 7));
  expect_error(ErrorCode::kInvalidFile, "end-of-text id 1000", [&] {
    add_generation_config(R"({"eos_token_id":1000})", "generation_config.json", config);
  });
}

GgufBuilder gguf_config(const std::string& architecture) {
  GgufBuilder file;
  file.add_string("general.architecture", architecture);
  file.add_int(architecture + ".embedding_length", 64);
  file.add_int(architecture + ".feed_forward_length", 96);
  file.add_int(architecture + ".context_length", 512);
  file.add_float(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  file.add_strings("tokenizer.ggml.tokens", {"a", "b", "c"});
  return file;
}

void add_heads(GgufBuilder& file, const std::string& architecture, uint32_t layers,
               uint32_t q_heads, uint32_t kv_heads) {
  file.add_int(architecture + ".block_count", layers);
  file.add_int(architecture + ".attention.head_count", q_heads);
  file.add_int(architecture + ".attention.head_count_kv", kv_heads);
}

ModelConfig parse(const GgufBuilder& file) {
  const std::string bytes = file.build();
  return config_from_gguf(Gguf::parse(as_bytes(bytes), "model.gguf"));
}

TEST(ConfigFromGguf, Llama) {
  GgufBuilder file = gguf_config("llama");
  add_heads(file, "llama", 2, 4, 2);
  file.add_int("tokenizer.ggml.eos_token_id", 2);
  file.add_int("tokenizer.ggml.eot_token_id", 1);
  const ModelConfig config = parse(file);
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.vocab_size, 3);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_FLOAT_EQ(static_cast<float>(config.rms_eps), 1e-5f);
  EXPECT_THAT(config.eos_ids, ElementsAre(2, 1));
  EXPECT_FALSE(config.bos_id.has_value());
  EXPECT_TRUE(config.tied_embeddings);
}

TEST(ConfigFromGguf, Gemma3) {
  GgufBuilder file = gguf_config("gemma3");
  add_heads(file, "gemma3", 6, 4, 1);
  file.add_int("gemma3.attention.key_length", 32);
  file.add_int("gemma3.attention.value_length", 32);
  file.add_int("gemma3.attention.sliding_window", 16);
  file.add_float("gemma3.rope.freq_base", 1e6f);
  file.add_string("gemma3.rope.scaling.type", "linear");
  file.add_float("gemma3.rope.scaling.factor", 8.0f);
  const ModelConfig config = parse(file);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.rope_theta_local, 1e4);
  EXPECT_THAT(config.rope_factors, Each(8.0f));
  EXPECT_THAT(config.local_layers, ElementsAre(true, true, true, true, true, false));
  EXPECT_TRUE(config.qk_norm && config.post_norms);
  EXPECT_DOUBLE_EQ(config.embedding_scale, 8.0);
}

TEST(ConfigFromGguf, RefusesWhatMakesNoModel) {
  const auto refuse = [](const GgufBuilder& file, ErrorCode code, const std::string& part) {
    expect_error(code, part, [&] { parse(file); });
  };
  GgufBuilder unknown = gguf_config("mamba");
  refuse(unknown, ErrorCode::kUnsupported, "architecture 'mamba' is not supported");
  GgufBuilder none;
  refuse(none, ErrorCode::kInvalidFile, "'general.architecture' is missing");
  for (const auto& [layers, q_heads, kv_heads, part] :
       std::vector<std::tuple<uint32_t, uint32_t, uint32_t, const char*>>{
           {2, 4, 3, "4 query heads do not divide among 3"},
           {2, 5, 5, "model_dim 64 does not divide among 5 heads"},
           {2, 0, 0, "does not divide among 0 heads"},
           {2, 4, 0, "number of key-value heads"},
           {0, 4, 2, "number of layers"},
           {4'000'000'000u, 4, 2, "number of layers must be in [1, 1024], is 4000000000"}}) {
    GgufBuilder file = gguf_config("qwen3");
    add_heads(file, "qwen3", layers, q_heads, kv_heads);
    refuse(file, ErrorCode::kInvalidFile, part);
  }
  for (const uint32_t heads : {1u << 20, 4'000'000'000u}) {  // width given: nothing to divide
    GgufBuilder file = gguf_config("qwen3");
    add_heads(file, "qwen3", 2, heads, heads);
    file.add_int("qwen3.attention.key_length", 16);
    file.add_int("qwen3.attention.value_length", 16);
    refuse(file, ErrorCode::kInvalidFile, "number of query heads");
  }
  GgufBuilder trap;  // INT64_MIN / -1 would trap
  trap.add_string("general.architecture", "llama");
  trap.add_int("llama.block_count", 1);
  trap.add_number<int64_t>("llama.embedding_length", 11, std::numeric_limits<int64_t>::min());
  trap.add_number<int32_t>("llama.attention.head_count", GgufBuilder::kInt32, -1);
  trap.add_int("llama.feed_forward_length", 1);
  trap.add_int("llama.context_length", 1);
  trap.add_float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  refuse(trap, ErrorCode::kInvalidFile, "does not divide among -1 heads");
  GgufBuilder moe = gguf_config("llama");
  add_heads(moe, "llama", 1, 4, 2);
  moe.add_int("llama.expert_count", 8);
  refuse(moe, ErrorCode::kUnsupported, "mixtures of experts");
  GgufBuilder yarn = gguf_config("llama");
  add_heads(yarn, "llama", 1, 4, 2);
  yarn.add_string("llama.rope.scaling.type", "yarn");
  refuse(yarn, ErrorCode::kUnsupported, "rope scaling 'yarn'");
  GgufBuilder partial = gguf_config("llama");
  add_heads(partial, "llama", 1, 4, 2);
  partial.add_int("llama.rope.dimension_count", 8);
  refuse(partial, ErrorCode::kUnsupported, "rope.dimension_count of 8 with a head_dim of 16");
  GgufBuilder nan = gguf_config("llama");
  add_heads(nan, "llama", 1, 4, 2);
  nan.add_float("llama.rope.freq_base", std::nanf(""));
  refuse(nan, ErrorCode::kInvalidFile, "rope theta must be in");
  GgufBuilder per_layer = gguf_config("llama");
  per_layer.add_int("llama.block_count", 1);
  per_layer.add_array("llama.attention.head_count", GgufBuilder::kUint8, 1, "\4");
  refuse(per_layer, ErrorCode::kInvalidFile, "must be an integer, is array");
}

}  // namespace
}  // namespace fovea
