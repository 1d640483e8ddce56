// Test support: prints our ids of lines, for scripts/check_tokenizer.py to hold against an oracle.
//   tokenize_lines DIRECTORY_WITH_TOKENIZER_JSON | GGUF_FIELDS.json  < lines > ids
// Lines come as a 4-byte little-endian size and the bytes (any); ids go out likewise, as a 4-byte
// count and 4-byte ids. Control tokens in the text are read as letters and no bos is added.
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/tokenizer/tokenizer.h"
#include "fovea/tokenizer/tokenizer_json.h"

namespace {

using nlohmann::json;

std::vector<std::string_view> views_of(const std::vector<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

// The script writes what it read from a GGUF file as JSON: this program needs no GGUF reader then.
fovea::Tokenizer load(const std::string& path) {
  if (!path.ends_with(".json")) return fovea::Tokenizer(fovea::read_tokenizer_json(path));
  std::ifstream file(path);
  const json fields = json::parse(file);
  const auto model = fields.at("model").get<std::string>();
  const auto pre = fields.at("pre").get<std::string>();
  const auto tokens = fields.at("tokens").get<std::vector<std::string>>();
  const auto scores = fields.at("scores").get<std::vector<float>>();
  const auto token_type = fields.at("token_type").get<std::vector<int32_t>>();
  const auto merges = fields.at("merges").get<std::vector<std::string>>();
  const auto token_views = views_of(tokens);
  const auto merge_views = views_of(merges);
  fovea::GgufTokenizerFields gguf;
  gguf.model = model;
  gguf.pre = pre;
  gguf.tokens = token_views;
  gguf.scores = scores;
  gguf.token_type = token_type;
  gguf.merges = merge_views;
  if (fields.contains("add_space_prefix")) {
    gguf.add_space_prefix = fields["add_space_prefix"].get<bool>();
  }
  const auto id = [&fields](const char* key) -> std::optional<int64_t> {
    if (!fields.contains(key)) return std::nullopt;
    return fields[key].get<int64_t>();
  };
  gguf.bos_token_id = id("bos_token_id");
  gguf.unknown_token_id = id("unknown_token_id");
  return fovea::Tokenizer(fovea::tokenizer_data_from_gguf(gguf));
}

bool read_u32(std::istream& in, uint32_t& value) {
  return static_cast<bool>(in.read(reinterpret_cast<char*>(&value), sizeof(value)));
}

void write_u32(uint32_t value) {
  std::cout.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines DIRECTORY | GGUF_FIELDS.json < lines > ids\n";
    return 2;
  }
  std::ios::sync_with_stdio(false);
  const fovea::Tokenizer tokenizer = load(argv[1]);
  uint32_t size = 0;
  std::string line;
  while (read_u32(std::cin, size)) {
    line.resize(size);
    std::cin.read(line.data(), size);
    const std::vector<int32_t> ids = tokenizer.encode(line, {.add_bos = false});
    write_u32(static_cast<uint32_t>(ids.size()));
    for (const int32_t id : ids) write_u32(static_cast<uint32_t>(id));
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "tokenize_lines: " << error.what() << "\n";
  return 1;
}
