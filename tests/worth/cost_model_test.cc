#include "fovea/worth/cost_model.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

const OpCost& op(const StepCost& cost, const std::string& name) {
  for (const OpCost& one : cost.ops) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "no operation " << name;
  return cost.ops.front();
}

struct PublishedSize {
  const char* name;
  double parameters, active;  // as their authors publish them
  bool active_without_embedding;
};

TEST(ModelShape, ParametersAreThePublishedOnes) {
  const PublishedSize sizes[] = {
      {"gpt-oss-120b", 116.83e9, 5.13e9, true}, {"gpt-oss-20b", 20.91e9, 3.61e9, true},
      {"DeepSeek-R1", 671e9, 37.5e9, false},    {"Qwen3-30B-A3B", 30.5e9, 3.35e9, false},
      {"Qwen3-32B", 32.8e9, 32.8e9, false},     {"Qwen2.5-7B", 7.62e9, 7.62e9, false},
      {"Llama-3.1-8B", 8.03e9, 8.03e9, false},  {"SmolLM2-135M", 134.5e6, 134.5e6, false},
      {"gemma-3-270m", 268e6, 268e6, false},    {"Qwen3.5-4B", 4.2e9, 4.2e9, false},
  };
  for (const PublishedSize& size : sizes) {
    const ModelShape shape = model_shape_by_name(size.name);
    EXPECT_NEAR(shape.num_parameters() / size.parameters, 1, 0.01) << size.name;
    const double embedding = static_cast<double>(shape.vocab_size * shape.model_dim);
    const double active =
        shape.num_active_parameters() - (size.active_without_embedding ? embedding : 0);
    EXPECT_NEAR(active / size.active, 1, 0.01) << size.name;
  }
  EXPECT_EQ(known_model_names().size(), std::size(sizes));
}

TEST(ModelShape, LayersFollowTheModelType) {
  const ModelShape gpt_oss = model_shape_by_name("GPT-OSS-120B");
  EXPECT_EQ(gpt_oss.count(AttentionKind::kSliding), 18);
  EXPECT_EQ(gpt_oss.count(AttentionKind::kFull), 18);
  EXPECT_EQ(gpt_oss.sliding_window, 128);
  const ModelShape gemma = model_shape_by_name("gemma-3-270m");
  EXPECT_EQ(gemma.count(AttentionKind::kFull), 3);
  const ModelShape hybrid = model_shape_by_name("Qwen3.5-4B");
  EXPECT_EQ(hybrid.count(AttentionKind::kFull), 8);
  EXPECT_EQ(hybrid.count(AttentionKind::kLinear), 24);
  const ModelShape deepseek = model_shape_by_name("DeepSeek-R1");
  EXPECT_EQ(deepseek.layers[2].mlp, MlpKind::kDense);
  EXPECT_EQ(deepseek.layers[3].mlp, MlpKind::kMixture);
  EXPECT_EQ(model_shape_by_name("Qwen2.5-7B").count(AttentionKind::kSliding), 0);
}

TEST(ModelShape, KvBytes) {
  EXPECT_EQ(model_shape_by_name("Qwen2.5-7B").kv_bytes_per_token(), 57344);
  EXPECT_EQ(model_shape_by_name("DeepSeek-R1").kv_bytes_per_token(), 61 * 576 * 2);
}

TEST(ModelShape, ReadsLayerTypesAndNestedConfigs) {
  const ModelShape shape = model_shape_from_config(
      R"({"text_config": {"hidden_size": 64, "vocab_size": 100, "num_attention_heads": 4, "num_hidden_layers": 3,
          "intermediate_size": 128, "sliding_window": 16, "dtype": "float32",
          "layer_types": ["full_attention", "sliding_attention", "full_attention"]}})",
      "nested");
  EXPECT_EQ(shape.count(AttentionKind::kSliding), 1);
  EXPECT_EQ(shape.num_kv_heads, 4);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_EQ(shape.precision.weight_bytes, 4);
}

TEST(ModelShape, BadConfigsNameTheFact) {
  const auto message = [](const char* text) -> std::string {
    try {
      model_shape_from_config(text, "m");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("not json").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("{}").find("hidden_size"), std::string::npos);
  EXPECT_NE(message(R"({"hidden_size": -5})").find("hidden_size"), std::string::npos);
  EXPECT_NE(message(R"({"hidden_size": 1e30})").find("hidden_size"), std::string::npos);
  const std::string base =
      R"({"hidden_size": 64, "vocab_size": 9, "num_attention_heads": 4, "intermediate_size": 8, )";
  EXPECT_NE(
      message((base + R"("num_hidden_layers": 999999999})").c_str()).find("num_hidden_layers"),
      std::string::npos);
  EXPECT_NE(message((base + R"("num_hidden_layers": 1, "layer_types": ["weird"]})").c_str())
                .find("weird"),
            std::string::npos);
  EXPECT_NE(
      message((base + R"("num_hidden_layers": 2, "layer_types": ["full_attention"]})").c_str())
          .find("layer 1"),
      std::string::npos);
  EXPECT_NE(message((base + R"("num_hidden_layers": 1, "num_key_value_heads": 3})").c_str())
                .find("no multiple"),
            std::string::npos);
  const std::string deep =
      R"({"hidden_size": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_NE(message(deep.c_str()).find("hidden_size"), std::string::npos);
  EXPECT_THROW(model_shape_by_name("gpt-5"), Error);
}

TEST(Roofline, DecodeIntensityOfAGroupOfEight) {
  const ModelShape bf16 = model_shape_by_name("Qwen3-32B");  // 64 q heads on 8 kv heads
  const DeviceRates h100 = device_rates_by_name("h100");
  EXPECT_NEAR(h100.ridge(), 296, 1);
  EXPECT_NEAR(decode_cost(bf16, h100, 32768).attention_intensity(), 8, 0.01);
  EXPECT_EQ(decode_cost(bf16, h100, 32768).attention_bound(), "memory");
  ModelShape fp8 = bf16;
  fp8.precision.kv_bytes = 1;
  EXPECT_NEAR(decode_cost(fp8, h100, 32768).attention_intensity(), 16, 0.02);
  EXPECT_EQ(prefill_cost(bf16, h100, 32768).attention_bound(), "compute");
}

// MLA in decode reads one latent for all 128 heads: 2 x 128 x (576 + 512) FLOPs for 576 x 2 bytes.
TEST(Roofline, LatentAttentionIsNearTheRidge) {
  const StepCost cost =
      decode_cost(model_shape_by_name("DeepSeek-R1"), device_rates_by_name("h100"), 131072);
  EXPECT_NEAR(cost.attention_intensity(), 2.0 * 128 * 1088 / 1152, 0.5);
}

// Everything counted by hand for a model of two layers: one full, one with a window of 4.
TEST(CostModel, SmallModelByHand) {
  const ModelShape shape = model_shape_from_config(
      R"({"hidden_size": 8, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
          "num_hidden_layers": 2, "intermediate_size": 16, "sliding_window": 4, "model_type": "gpt_oss"})",
      "tiny");
  DeviceRates device;
  device.name = "unit";
  device.gemm_tflops = 1e-12;  // one FLOP a second
  device.copy_gbps = 1e-9;     // one byte a second
  const StepCost prefill = prefill_cost(shape, device, 6, /*cached_tokens=*/2, /*batch_size=*/3);
  // Queries at positions 3 ... 8 see 3+4+5+6+7+8 = 33 keys, and 3+4+4+4+4+4 = 23 in the window.
  EXPECT_DOUBLE_EQ(op(prefill, "attention_full").flops, 2.0 * 3 * 33 * 4 * (2 + 2));
  EXPECT_DOUBLE_EQ(op(prefill, "attention_sliding").flops, 2.0 * 3 * 23 * 4 * (2 + 2));
  // K and V of 8 tokens, and of all 8 in the window too (6 queries reach back 3); Q and output of
  // 18 tokens.
  EXPECT_DOUBLE_EQ(op(prefill, "attention_full").bytes, 3 * 8 * 2 * 4 * 2 + 18 * 4 * 4 * 2);
  EXPECT_DOUBLE_EQ(op(prefill, "attention_sliding").bytes, 3 * 8 * 2 * 4 * 2 + 18 * 4 * 4 * 2);
  EXPECT_DOUBLE_EQ(op(prefill, "qkv_projection").flops, 2.0 * 18 * (8 * 8 + 8 * 8));
  EXPECT_DOUBLE_EQ(op(prefill, "output_projection").flops, 2.0 * 18 * 64);
  EXPECT_DOUBLE_EQ(op(prefill, "mlp").flops, 2 * 2.0 * 18 * 3 * 8 * 16);
  EXPECT_DOUBLE_EQ(op(prefill, "lm_head").flops, 2.0 * 3 * 100 * 8);
  EXPECT_DOUBLE_EQ(op(prefill, "kv_write").bytes, 18 * 8 * (2 + 2));
  EXPECT_EQ(op(prefill, "kv_write").group, OpGroup::kKvWrite);
  double sum = 0;
  for (const OpCost& one : prefill.ops) sum += one.time_s;
  EXPECT_DOUBLE_EQ(sum, prefill.time_s);

  const StepCost decode = decode_cost(shape, device, 10, 3);
  EXPECT_DOUBLE_EQ(op(decode, "attention_full").flops, 2.0 * 3 * 10 * 4 * 4);
  EXPECT_DOUBLE_EQ(op(decode, "attention_sliding").flops, 2.0 * 3 * 4 * 4 * 4);
  EXPECT_DOUBLE_EQ(op(decode, "attention_sliding").bytes, 3 * 4 * 2 * 4 * 2 + 3 * 4 * 4 * 2);
}

// A prompt computed in two chunks costs the attention FLOPs of one.
TEST(CostModel, ChunksAddUp) {
  const ModelShape shape = model_shape_by_name("gpt-oss-20b");
  const DeviceRates device = device_rates_by_name("h200");
  const auto attention_flops = [](const StepCost& cost) {
    return op(cost, "attention_full").flops + op(cost, "attention_sliding").flops;
  };
  const double whole = attention_flops(prefill_cost(shape, device, 5000));
  const double chunks = attention_flops(prefill_cost(shape, device, 100)) +
                        attention_flops(prefill_cost(shape, device, 2900, 100)) +
                        attention_flops(prefill_cost(shape, device, 2000, 3000));
  EXPECT_NEAR(chunks / whole, 1, 1e-12);
}

TEST(CostModel, MatmulFlopsAreTwiceTheActiveWeights) {
  for (const char* name : {"SmolLM2-135M", "gemma-3-270m", "Qwen3-30B-A3B", "DeepSeek-R1"}) {
    const ModelShape shape = model_shape_by_name(name);
    const StepCost cost = decode_cost(shape, device_rates_by_name("h200"), 1);
    double matmuls = 0;
    for (const OpCost& one : cost.ops) {
      if (one.group == OpGroup::kMatmul || one.group == OpGroup::kLmHead) matmuls += one.flops;
    }
    // The embedding is looked up, not multiplied.
    const double embedding = static_cast<double>(shape.vocab_size * shape.model_dim);
    const double multiplied =
        shape.num_active_parameters() - (shape.tied_embeddings ? 0 : embedding);
    EXPECT_NEAR(matmuls / (2 * multiplied), 1, 1e-9) << name;
  }
}

TEST(CostModel, SharesGrowWithContextAndWindowsCapThem) {
  const DeviceRates device = device_rates_by_name("h200");
  for (const std::string& name : known_model_names()) {
    const ModelShape shape = model_shape_by_name(name);
    double previous = 0;
    for (int64_t n = 1024; n <= 1 << 20; n *= 4) {
      const double share = prefill_cost(shape, device, n).attention_share();
      EXPECT_GT(share, previous) << name << " at " << n;
      EXPECT_LT(share, 1) << name;
      previous = share;
      EXPECT_GT(decode_cost(shape, device, n).attention_share(), 0) << name;
    }
  }
  ModelShape windowed = model_shape_by_name("gpt-oss-120b");
  const double half = op(prefill_cost(windowed, device, 1 << 20), "attention_full").flops;
  for (LayerShape& layer : windowed.layers) layer.attention = AttentionKind::kFull;
  EXPECT_NEAR(op(prefill_cost(windowed, device, 1 << 20), "attention_full").flops, 2 * half,
              1e-9 * half);
}

TEST(CostModel, MixtureReadsMoreExpertsAsTheBatchGrows) {
  const ModelShape shape = model_shape_by_name("Qwen3-30B-A3B");
  const DeviceRates device = device_rates_by_name("h200");
  const double one = op(decode_cost(shape, device, 1024, 1), "experts").bytes;
  const double many = op(decode_cost(shape, device, 1024, 4096), "experts").bytes;
  const double per_expert = expert_parameters(shape) * shape.precision.expert_bytes * 48;
  EXPECT_NEAR(one, 8 * per_expert, 0.01 * one);
  EXPECT_GT(many, 127 * per_expert);
}

TEST(CostModel, RefusesNonsense) {
  const ModelShape shape = model_shape_by_name("SmolLM2-135M");
  const DeviceRates device = device_rates_by_name("h200");
  EXPECT_THROW(prefill_cost(shape, device, 0), Error);
  EXPECT_THROW(prefill_cost(shape, device, 1, -1), Error);
  EXPECT_THROW(decode_cost(shape, device, 1, 0), Error);
  EXPECT_THROW(decode_cost(shape, device, int64_t{1} << 40), Error);
  EXPECT_THROW(prefill_cost(shape, DeviceRates{}, 1), Error);
  EXPECT_THROW(prefill_cost(ModelShape{}, device, 1), Error);
}

TEST(DeviceRates, TableAndFiles) {
  EXPECT_EQ(device_rates_by_name("a10g").copy_gbps, 483);
  EXPECT_GT(device_rates_by_name("h100", "fp8").gemm_tflops,
            device_rates_by_name("h100").gemm_tflops);
  EXPECT_THROW(device_rates_by_name("h100", "int3"), Error);
  EXPECT_THROW(device_rates_by_name("abacus"), Error);
  const DeviceRates mine = device_rates_from_json(
      R"({"mine": {"source": "measured", "gemm_tflops": {"bf16": 2}, "copy_gbps": 30, "attention_tflops": 1}})");
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.attention_tflops, 1);
  for (const char* bad :
       {"", "[]", "{}", R"({"a": 5})", R"({"a": {"gemm_tflops": 5, "copy_gbps": 1}})",
        R"({"a": {"gemm_tflops": {"bf16": -1}, "copy_gbps": 1}})",
        R"({"a": {"gemm_tflops": {"bf16": 1}}})",
        R"({"a": {"gemm_tflops": {"bf16": 1}, "copy_gbps": 1, "expert_tflops": 1}})",
        R"({"a": {"gemm_tflops": {"bf16": 1}, "copy_gbps": 1, "expert_tflops": {"bf16": 0}}})"}) {
    EXPECT_THROW(device_rates_from_json(bad), Error) << bad;
  }
}

TEST(DeviceRates, ExpertsMayHaveARateOfTheirOwn) {
  const ModelShape shape = model_shape_by_name("Qwen3-30B-A3B");
  const auto seconds = [&](const char* experts) {
    const DeviceRates device = device_rates_from_json(fmt::format(
        R"({{"mine": {{"gemm_tflops": {{"bf16": 100}}, "copy_gbps": 1e6{}}}}})", experts));
    double experts_s = 0, others_s = 0;
    for (const OpCost& op : prefill_cost(shape, device, 8192).ops) {
      (op.name == "experts" ? experts_s : others_s) += op.time_s;
    }
    return std::pair(experts_s, others_s);
  };
  const auto [same, others] = seconds("");
  const auto [half, same_others] = seconds(R"(, "expert_tflops": {"bf16": 50})");
  EXPECT_GT(same, 0);
  EXPECT_DOUBLE_EQ(half, 2 * same);
  EXPECT_EQ(same_others, others);
  // A rate for another type says nothing of this one.
  EXPECT_EQ(seconds(R"(, "expert_tflops": {"fp8": 50})").first, same);
}

}  // namespace
}  // namespace fovea::worth
