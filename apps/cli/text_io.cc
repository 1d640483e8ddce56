#include "apps/cli/text_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

std::string read_all(int descriptor, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count == 0) return text;
    if (count < 0 && errno == EINTR)
      fail(ErrorCode::kInvalidFile, "interrupted while reading {}", path);
    if (count < 0) fail(ErrorCode::kInvalidFile, "cannot read {}: {}", path, std::strerror(errno));
    text.append(buffer, static_cast<size_t>(count));
  }
}

// Length of the UTF-8 sequence that starts at text[0], or 0 when it is malformed.
size_t utf8_sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4 || !continues(1)) return 0;
  if (first < 0xe0) return 2;
  if (!continues(2)) return 0;
  if (first < 0xf0) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = first == 0xf0 && byte(1) < 0x90;
  const bool too_big = first == 0xf4 && byte(1) >= 0x90;
  return overlong || too_big || !continues(3) ? 0 : 4;
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

void check_utf8(std::string_view text, std::string_view what) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence_length(text.substr(at));
    check_argument(length > 0, "{} is not UTF-8: byte 0x{:02x} at offset {}", what,
                   static_cast<unsigned char>(text[at]), at);
    at += length;
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (path_ == "-") return;
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
  const bool to_stdout = path_ == "-";
  std::FILE* file = to_stdout ? stdout : std::fopen(path_.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) good = (to_stdout ? std::fflush(file) : std::fclose(file)) == 0 && good;
  if (!good) fail(ErrorCode::kInvalidFile, "cannot write {}: {}", path_, std::strerror(errno));
  created_ = false;
}

}  // namespace fovea::cli
