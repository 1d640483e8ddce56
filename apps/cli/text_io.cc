#include "apps/cli/text_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/cli/interrupt.h"
#include "fovea/base/error.h"
#include "fovea/tokenizer/utf8.h"

namespace fovea::cli {
namespace {

// A context of a million tokens is a few megabytes; what is larger is a mistake or never ends.
constexpr size_t kLargestText = size_t{256} << 20;

std::string read_all(int descriptor, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count == 0) return text;
    if (interrupted()) throw Interrupted(fmt::format("was reading {}", path));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorCode::kInvalidFile, "cannot read {}: {}", path, std::strerror(errno));
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kLargestText)
      fail(ErrorCode::kInvalidFile, "{} is larger than {} MiB", path, kLargestText >> 20);
  }
}

}  // namespace

std::string read_text(const std::string& path) {
  if (path == "-") return read_all(STDIN_FILENO, "standard input");
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    fail(ErrorCode::kInvalidFile, "cannot open {}: {}", path, std::strerror(errno));
  struct Close {
    int descriptor;
    ~Close() { close(descriptor); }
  } close_at_end{descriptor};
  return read_all(descriptor, path);
}

std::string printable(std::string_view text) {
  std::string line;
  for (size_t at = 0; at < text.size();) {
    const Utf8Sequence sequence = first_utf8_sequence(text.substr(at));
    const auto size = static_cast<size_t>(sequence.size);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == '\n') {
      line += ' ';
    } else if (sequence.kind != Utf8Sequence::kCharacter || byte < 0x20 || byte == 0x7f) {
      for (const char c : text.substr(at, size))
        line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line.append(text, at, size);
    }
    at += size;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

void check_utf8(std::string_view text, std::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Sequence sequence = first_utf8_sequence(text.substr(at));
    check_argument(sequence.kind == Utf8Sequence::kCharacter,
                   "{} is not UTF-8: byte 0x{:02x} at offset {}", what,
                   static_cast<unsigned char>(text[at]), at);
    at += static_cast<size_t>(sequence.size);
  }
}

std::string read_utf8_text(const std::string& path) {
  std::string text = read_text(path);
  const std::string name = path == "-" ? "standard input" : path;
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  check_argument(!text.empty(), "{} holds no text", name);
  check_argument(!text.starts_with("\xff\xfe") && !text.starts_with("\xfe\xff"),
                 "{} is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 converts it", name);
  check_utf8(text, name);
  const size_t nul = text.find('\0');
  check_argument(nul == std::string::npos,
                 "{} is no text: NUL at offset {}; if it is UTF-16, iconv -f UTF-16LE -t UTF-8 "
                 "converts it",
                 name, nul);
  return text;
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

void check_standard_output() {
  const int reason = errno;
  if (std::ferror(stdout) == 0) return;
  fail(ErrorCode::kInvalidFile, "cannot write standard output: {}", std::strerror(reason));
}

void print_aside(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  check_argument(
      path_ != "-",
      "- is no name for a file to write: standard output has the text (--json prints there)");
  created_ = access(path_.c_str(), F_OK) != 0;
  const int descriptor = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0)
    fail(ErrorCode::kInvalidFile, "cannot write {}: {}", path_, std::strerror(errno));
  close(descriptor);
}

OutputFile::~OutputFile() {
  if (created_) unlink(path_.c_str());
}

void OutputFile::write(std::string_view text) {
  std::FILE* file = std::fopen(path_.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) good = std::fclose(file) == 0 && good;
  if (!good) fail(ErrorCode::kInvalidFile, "cannot write {}: {}", path_, std::strerror(errno));
  created_ = false;
}

}  // namespace fovea::cli
