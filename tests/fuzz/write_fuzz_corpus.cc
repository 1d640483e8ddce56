// Writes the files that fuzzing starts from: one small valid model of each architecture and format.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "fovea/model_io/tensor_names.h"
#include "tests/model_io/gguf_builder.h"
#include "tests/model_io/safetensors_builder.h"
#include "tests/model_io/tiny_config.h"

namespace fovea {
namespace {

std::vector<float> ones(const ExpectedTensor& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  return std::vector<float>(static_cast<size_t>(count), 1.0f);
}

std::string gguf_model(Architecture architecture) {
  const std::string prefix = fmt::format("{}.", architecture_name(architecture));
  GgufBuilder file;
  file.add_string("general.architecture", architecture_name(architecture));
  file.add_int("general.alignment", 32);
  file.add_int(prefix + "block_count", 1);
  file.add_int(prefix + "embedding_length", 8);
  file.add_int(prefix + "attention.head_count", 2);
  file.add_int(prefix + "attention.head_count_kv", 1);
  file.add_int(prefix + "attention.sliding_window", 16);
  file.add_int(prefix + "feed_forward_length", 12);
  file.add_int(prefix + "context_length", 64);
  file.add_float(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  file.add_float(prefix + "rope.freq_base", 1e6f);
  file.add_string(prefix + "rope.scaling.type", "linear");
  file.add_float(prefix + "rope.scaling.factor", 8.0f);
  file.add_strings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e"});
  file.add_array("tokenizer.ggml.token_type", GgufBuilder::kUint8, 5, "\1\1\1\1\1");
  file.add_int("tokenizer.ggml.eos_token_id", 2);
  file.add_int(prefix + "expert_used_count", 2);
  file.add_int(prefix + "expert_feed_forward_length", 6);
  if (architecture == Architecture::kQwen3Moe) file.add_int(prefix + "expert_count", 3);
  for (ExpectedTensor tensor : expected_tensors(tiny_config(architecture), FileFormat::kGguf)) {
    if (tensor.part > 0) continue;  // they are in the tensor of the first
    if (tensor.num_parts > 1) tensor.shape.insert(tensor.shape.begin(), tensor.num_parts);
    file.add_f32(tensor.file_name, {tensor.shape.rbegin(), tensor.shape.rend()}, ones(tensor));
  }
  return file.build();
}

// One tensor of each quantised type; no model.
std::string gguf_of_types() {
  GgufBuilder file;
  for (uint32_t number = 0; number <= 30; ++number) {
    const auto type = weight_type_from_gguf(number);
    if (!type) continue;
    file.add_tensor("t" + std::to_string(number), {static_cast<uint64_t>(pack_elements(*type))},
                    number, std::string(static_cast<size_t>(pack_bytes(*type)), '\x3c'));
  }
  return file.build();
}

std::string safetensors_model(Architecture architecture) {
  SafetensorsBuilder file;
  for (const ExpectedTensor& tensor :
       expected_tensors(tiny_config(architecture), FileFormat::kSafetensors)) {
    file.add_f32(tensor.file_name, tensor.shape, ones(tensor));
  }
  return file.build();
}

std::string config_json(const std::string& model_type) {
  return fmt::format(
      R"({{"model_type":"{}","hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"head_dim":16,"intermediate_size":96,"vocab_size":100,)"
      R"("max_position_embeddings":512,"rms_norm_eps":1e-6,"rope_theta":10000.0,"eos_token_id":[1,2],)"
      R"("bos_token_id":0,"hidden_act":"silu","sliding_window":16,"use_sliding_window":true,)"
      R"("max_window_layers":1,"layer_types":["full_attention","sliding_attention","full_attention"],)"
      R"("rope_scaling":{{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
      R"("high_freq_factor":4.0,"original_max_position_embeddings":256}},)"
      R"("rope_parameters":{{"full_attention":{{"rope_type":"linear","factor":2.0,"rope_theta":1e6}},)"
      R"("sliding_attention":{{"rope_theta":1e4}}}},"query_pre_attn_scalar":16,)"
      R"("num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":24,"norm_topk_prob":true,)"
      R"("tie_word_embeddings":true}})",
      model_type);
}

// tokenizer.json, tokenizer_config.json and a text, parted by NUL bytes; `regex` splits the text.
std::string tokenizer_files(const std::string& regex) {
  std::string files = fmt::format(
      R"({{"added_tokens":[{{"id":5,"content":"<|im_end|>","special":true}},)"
      R"({{"id":6,"content":"<b>","special":false}}],"normalizer":{{"type":"NFC"}},)"
      R"("pre_tokenizer":{{"type":"Sequence","pretokenizers":[)"
      R"({{"type":"Digits","individual_digits":true}},)"
      R"({{"type":"Split","pattern":{{"Regex":"{}"}},"behavior":"Isolated","invert":false}},)"
      R"({{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}}]}},)"
      R"("post_processor":{{"type":"TemplateProcessing","single":[{{"SpecialToken":{{"id":"<b>"}}}}]}},)"
      R"("model":{{"type":"BPE","unk_token":"<b>","ignore_merges":false,)"
      R"("vocab":{{"a":0,"b":1,"c":2,"ab":3,"abc":4}},"merges":["a b",["ab","c"]]}}}})",
      regex);
  files.push_back('\0');
  files += R"({"eos_token":{"content":"<|im_end|>"},"add_bos_token":true,)"
           R"("chat_template":"<|im_start|>system\nBe.<|im_end|>"})";
  files.push_back('\0');
  files += "abcab 12 <b>a<|im_end|> \xE2\x82\xAC\xFF";
  return files;
}

std::string small_trace() {
  return R"json({"schemaVersion": 1, "with_stack": 0, "deviceProperties": [{"id": 0, "name": "GPU"}],
 "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "execute_context_1(8)_generation_2(2)", "pid": 9, "tid": 9,
  "ts": 1.5, "dur": 90, "args": {"External id": 1}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 2, "dur": 9, "args": {"External id": 2}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 9, "tid": 9, "ts": 3, "dur": 4,
  "args": {"External id": 2, "correlation": 5}},
 {"ph": "s", "id": 5, "pid": 9, "tid": 9, "ts": 3, "cat": "ac2g", "name": "ac2g"},
 {"ph": "X", "cat": "kernel", "name": "void flash::flash_fwd_kernel<T<1> >(P)", "pid": 0, "tid": 7, "ts": 200.25,
  "dur": 11.5, "args": {"correlation": 5, "grid": [1, 2, 3]}},
 {"ph": "X", "cat": "kernel", "name": "_ZN7ck_tile6kentryILi2ENS_9FmhaFwdKeIS1_EEEvT_", "pid": 0, "tid": 8, "ts": 205,
  "dur": 20, "args": {"correlation": 5}},
 {"ph": "X", "cat": "kernel", "name": "triton_tem_fused_0", "pid": 0, "tid": 7, "ts": 240, "dur": 3,
  "args": {"External id": 2, "correlation": 6}},
 {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 250, "dur": NaN}
 ], "distributedInfo": {"rank": 0}})json";
}

void write(const std::filesystem::path& folder, const std::string& name,
           const std::string& content) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary) << content;
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  using namespace fovea;
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_fuzz_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path root(argv[1]);
  for (const auto architecture : {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
                                  Architecture::kQwen3Moe, Architecture::kGemma3}) {
    const std::string name(architecture_name(architecture));
    write(root / "fuzz_gguf", name + ".gguf", gguf_model(architecture));
    write(root / "fuzz_safetensors", name + ".safetensors", safetensors_model(architecture));
    write(root / "fuzz_model_config", name + ".json",
          config_json(architecture == Architecture::kGemma3     ? "gemma3_text"
                      : architecture == Architecture::kQwen3Moe ? "qwen3_moe"
                                                                : name));
  }
  write(root / "fuzz_tokenizer_json", "letters", tokenizer_files(R"([a-z]+|\\s+(?!\\S))"));
  write(root / "fuzz_tokenizer_json", "words",
        tokenizer_files(R"((?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}]+)"));
  write(root / "fuzz_gguf", "types.gguf", gguf_of_types());
  write(root / "fuzz_trace", "small.json", small_trace());
  write(root / "fuzz_tasks", "longbench.json",
        "\x04[{\"question\": \"Who?\", \"choice_A\": \"a\", \"choice_B\": \"b\", \"choice_C\": "
        "\"c\",\n"
        "\"choice_D\": \"d\", \"answer\": \"C\", \"context\": \"A text.\"}]");
  write(root / "fuzz_tasks", "passkey.jsonl",
        "\x05{\"context\": \"x\", \"input\": \"Key?\", \"answer\": [71432]}\n"
        "{\"context\": \"y\", \"input\": \"Key?\", \"answer\": \"5\"}\n");
  write(root / "fuzz_tasks", "choice.jsonl",
        "\x06{\"context\": \"x\", \"input\": \"Who?\", \"options\": [\"a\", \"b\", \"c\", \"d\"], "
        "\"answer\": [\"d\"]}\n");
  write(root / "fuzz_completion_stream", "text.sse",
        "\x10: hello\r\ndata: {\"choices\": [{\"text\": \"a\"}]}\n\n"
        "data: {\"choices\": [{\"delta\": {\"content\": \"b\"}, \"finish_reason\": \"stop\"}]}\n\n"
        "data: {\"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 2,\n"
        "data: \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\ndata: [DONE]\n\n");
  write(root / "fuzz_completion_stream", "error.sse",
        "\x01"
        "data: {\"error\": {\"message\": \"busy\"}}\n\n");
  write(root / "fuzz_safetensors", "index.json",
        R"({"metadata":{},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
}
