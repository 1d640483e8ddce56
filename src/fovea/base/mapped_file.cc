#include "fovea/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fovea/base/error.h"

namespace fovea {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ErrorCode::kInvalidFile, "cannot open '{}': {}", path, strerror(errno));
  struct stat status = {};
  const bool is_regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  void* data = nullptr;
  int map_error = 0;
  if (is_regular && status.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    map_error = errno;
  }
  close(file);
  if (!is_regular) fail(ErrorCode::kInvalidFile, "'{}' is not a regular file", path);
  if (data == MAP_FAILED) {
    fail(ErrorCode::kInvalidFile, "cannot map '{}' ({} bytes): {}", path, status.st_size,
         strerror(map_error));
  }
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace fovea
