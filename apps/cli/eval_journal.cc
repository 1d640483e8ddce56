#include "apps/cli/eval_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/cli/conditions.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

constexpr uint64_t kHashBasis = 0xcbf29ce484222325u;

// FNV-1a.
uint64_t hash_bytes(uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  return hash;
}

nlohmann::json to_json(const PromptRecord& record) {
  nlohmann::json json = {
      {"scores", record.scores}, {"density", record.density}, {"prefill_ms", record.prefill_ms}};
  if (record.attention_ms) json["attention_ms"] = *record.attention_ms;
  if (!record.nll_difference.empty()) json["nll_difference"] = record.nll_difference;
  if (!record.best_tokens.empty()) {
    json["best_tokens"] = record.best_tokens;
    json["logprobs"] = record.logprobs;
  }
  return json;
}

PromptRecord record_from(const nlohmann::json& json) {
  PromptRecord record;
  record.scores = json.at("scores").get<std::vector<double>>();
  record.density = json.at("density").get<double>();
  record.prefill_ms = json.at("prefill_ms").get<double>();
  if (json.contains("attention_ms")) record.attention_ms = json.at("attention_ms").get<double>();
  if (json.contains("nll_difference")) {
    record.nll_difference = json.at("nll_difference").get<std::vector<double>>();
  }
  if (json.contains("best_tokens")) {
    record.best_tokens = json.at("best_tokens").get<std::vector<int32_t>>();
    record.logprobs = json.at("logprobs").get<std::vector<float>>();
  }
  return record;
}

[[noreturn]] void fail_to_write(const std::string& path) {
  fail(ErrorCode::kInvalidFile, "cannot write {}: {}", path, std::strerror(errno));
}

uint64_t hash_file(uint64_t hash, const std::filesystem::path& path) {
  constexpr int64_t kPiece = 64 << 10;
  constexpr int64_t kMostPieces = 256;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(file.tellg());
  if (!file) fail(ErrorCode::kInvalidFile, "cannot read {}", path.string());
  hash = hash_bytes(hash, fmt::format("{} {}\n", path.filename().string(), size));
  const int64_t num_pieces = std::clamp<int64_t>(size / kPiece, 1, kMostPieces);
  std::string piece;
  for (int64_t i = 0; i < num_pieces; ++i) {
    const int64_t begin = size / num_pieces * i;
    piece.resize(static_cast<size_t>(std::min(kPiece, size - begin)));
    file.seekg(begin);
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (!file) fail(ErrorCode::kInvalidFile, "cannot read {}", path.string());
    hash = hash_bytes(hash, piece);
  }
  return hash;
}

}  // namespace

EvalJournal::EvalJournal(const std::string& path, const nlohmann::json& settings) : path_(path) {
  check_argument(path != "-", "- is no name for a journal: it is a file to come back to");
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_to_write(path);
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor_);
    fail(ErrorCode::kInvalidFile, "{} is in use by another run", path);
  }
  try {
    take_over(read_text(path), settings);
    if (size_ == 0) {
      write_line(json_text({{"fovea_eval", settings}, {"version", version_text()}}, -1));
    }
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

EvalJournal::~EvalJournal() {
  if (descriptor_ >= 0) close(descriptor_);
}

void EvalJournal::take_over(const std::string& text, const nlohmann::json& settings) {
  int64_t num_lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      notes_.push_back(fmt::format("{}: the last line was cut off and is dropped", path_));
      break;
    }
    ++num_lines;
    try {
      const nlohmann::json line = nlohmann::json::parse(text.substr(begin, end - begin));
      if (num_lines == 1) {
        check_settings(line, settings);
      } else {
        records_[{line.at("key"), line.at("prompt")}] = record_from(line);
        ++num_taken_over_;
      }
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::kInvalidFile, "{}: line {} is not one of fovea eval's", path_, num_lines);
    }
    begin = end + 1;
    size_ = static_cast<int64_t>(begin);
  }
  if (static_cast<size_t>(size_) < text.size() && ftruncate(descriptor_, size_) != 0) {
    fail_to_write(path_);
  }
}

void EvalJournal::check_settings(const nlohmann::json& header, const nlohmann::json& settings) {
  const nlohmann::json& begun = header.at("fovea_eval");
  for (const auto& [name, value] : settings.items()) {
    check_argument(begun.contains(name) && begun.at(name) == value,
                   "{} is another evaluation's: {} was {} there and is {} here", path_, name,
                   json_text(begun.value(name, nlohmann::json()), -1), json_text(value, -1));
  }
  if (header.at("version") != version_text()) {
    notes_.push_back(
        fmt::format("{} was begun by fovea {}", path_, header.at("version").get<std::string>()));
  }
}

void EvalJournal::write_line(const std::string& line) {
  const std::string bytes = line + "\n";
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // Should this fail as well, the next run drops the torn line.
      [[maybe_unused]] const int ignored = ftruncate(descriptor_, size_);
      errno = reason;
      fail_to_write(path_);
    }
    done += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(bytes.size());
}

const PromptRecord* EvalJournal::find(const std::string& key, int64_t prompt) const {
  const auto found = records_.find({key, prompt});
  return found == records_.end() ? nullptr : &found->second;
}

void EvalJournal::append(const std::string& key, int64_t prompt, const nlohmann::json& labels,
                         PromptRecord record) {
  if (descriptor_ >= 0) {
    nlohmann::json line = labels;
    line.update(to_json(record));
    line["key"] = key;
    line["prompt"] = prompt;
    write_line(json_text(line, -1));
  }
  records_[{key, prompt}] = std::move(record);
}

std::string text_hash(std::string_view text) {
  return fmt::format("{:016x}", hash_bytes(kHashBasis, text));
}

std::string content_hash(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::exists(path)) return text_hash(path);  // a synthetic model's name
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(path);
  }
  uint64_t hash = kHashBasis;
  for (const fs::path& file : files) hash = hash_file(hash, file);
  return fmt::format("{:016x}", hash);
}

}  // namespace fovea::cli
