// A file as a stream of bytes, decompressed when it is gzip, in bounded memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace fovea::trace {

/// Reads `path`, plain or gzip (told by content, not by name; members one after another are one
/// stream).
class ByteSource {
 public:
  /// Throws kInvalidFile when the file cannot be opened.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Writes up to `capacity` bytes to `out` and returns how many; 0 at the end. Throws kInvalidFile
  /// when the compressed data is corrupt, or grows as only a zip bomb does.
  size_t read(char* out, size_t capacity);

  bool compressed() const { return inflater_ != nullptr; }
  int64_t file_bytes() const { return file_bytes_; }  // taken from the file so far
  int64_t bytes() const { return bytes_; }            // handed out so far
  /// The gzip stream ended in the middle; only the part before was handed out.
  bool truncated() const { return truncated_; }

 private:
  struct Inflater;
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  size_t read_file(char* out, size_t capacity);
  size_t read_inflated(char* out, size_t capacity);

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::unique_ptr<Inflater> inflater_;
  int64_t file_bytes_ = 0;
  int64_t bytes_ = 0;
  bool truncated_ = false;
};

}  // namespace fovea::trace
