// Text that comes in (a prompt) and text that goes out (a report): checked before long work begins.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "fovea/base/error.h"

namespace fovea::cli {

/// The whole of a file, or of standard input when `path` is "-".
/// Throws kInvalidFile when it cannot be read or is larger than 256 MiB, Interrupted at Ctrl-C.
std::string read_text(const std::string& path);

/// What `read` returns; an Error that it throws and that does not name `path` gets it in front.
template <typename Read>
auto naming_file(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (path == "-" || message.find(path) != std::string::npos) throw;
    throw Error(error.code(), path + ": " + message);
  }
}

/// `text` as one line that a terminal can show: line feeds become spaces, other control bytes and
/// what is not UTF-8 become \xNN, spaces at the end go.
std::string printable(std::string_view text);

/// Throws kInvalidArgument, naming `what` and the first bad byte's offset, unless `text` is UTF-8
/// (surrogates, overlong forms and code points past U+10FFFF are not).
void check_utf8(std::string_view text, std::string_view what);

/// read_text() of a file that must hold text, without the mark of UTF-8 that some editors put in
/// front. Throws kInvalidArgument as well when it is empty, not UTF-8 or holds a NUL, as UTF-16
/// does.
std::string read_utf8_text(const std::string& path);

/// `json` as text, `indent` spaces a level (-1: one line). Bytes of names that are not UTF-8, which
/// JSON cannot hold, become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = 2);

/// Throws kInvalidFile when what was last written to standard output did not arrive.
void check_standard_output();

/// Writes to standard error. One that is closed or full is no reason to fail.
void print_aside(std::string_view text);

/// A file for a report. It is opened when made, so that a path that cannot be written is an error
/// before the work and not after it. Until write(), an existing file keeps its content, and a file
/// made for the purpose goes away again.
class OutputFile {
 public:
  /// Throws kInvalidFile when `path` cannot be written, kInvalidArgument for "-": standard output
  /// has the text or the tables already.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Replaces the file's content. Throws kInvalidFile.
  void write(std::string_view text);

 private:
  std::string path_;
  bool created_ = false;  // by us, and not yet written
};

}  // namespace fovea::cli
