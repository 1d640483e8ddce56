// A read-only file as memory. Large model files are read this way: no copy, pages come on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fovea {

/// Owns the mapping; moves, does not copy. An empty file maps to an empty span.
class MappedFile {
 public:
  /// Maps `path`. Throws kInvalidFile when it cannot be opened or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fovea
