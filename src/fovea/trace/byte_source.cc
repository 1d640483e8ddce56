#include "fovea/trace/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "fovea/base/error.h"

namespace fovea::trace {
namespace {

constexpr size_t kCompressedChunk = 1 << 18;
// Traces compress 10 to 60 times. Deflate can do at most 1,032; a file that comes near is not a
// trace.
constexpr int64_t kBombCheckBytes = 256LL << 20;
constexpr int64_t kBombRatio = 400;

}  // namespace

struct ByteSource::Inflater {
  z_stream stream{};
  std::vector<char> input = std::vector<char>(kCompressedChunk);
  bool between_members = false;

  Inflater() {
    // 15 + 16: the largest window, gzip framing only.
    if (inflateInit2(&stream, 15 + 16) != Z_OK) {
      fail(ErrorCode::kOutOfMemory, "zlib could not allocate its window");
    }
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ByteSource::ByteSource(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "rb")) {
  if (!file_) {
    fail(ErrorCode::kInvalidFile, "cannot open '{}': {}", path, std::strerror(errno));
  }
  unsigned char magic[2] = {};
  const size_t got = std::fread(magic, 1, sizeof(magic), file_.get());
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0) {
    fail(ErrorCode::kInvalidFile, "'{}' is not a regular file", path);
  }
  if (got == sizeof(magic) && magic[0] == 0x1f && magic[1] == 0x8b) {
    inflater_ = std::make_unique<Inflater>();
  }
}

ByteSource::~ByteSource() = default;

size_t ByteSource::read_file(char* out, size_t capacity) {
  const size_t got = std::fread(out, 1, capacity, file_.get());
  if (got < capacity && std::ferror(file_.get()) != 0) {
    fail(ErrorCode::kInvalidFile, "cannot read '{}': {}", path_, std::strerror(errno));
  }
  file_bytes_ += static_cast<int64_t>(got);
  return got;
}

size_t ByteSource::read_inflated(char* out, size_t capacity) {
  z_stream& stream = inflater_->stream;
  const size_t limit = std::min<size_t>(capacity, std::numeric_limits<uInt>::max());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(limit);
  while (stream.avail_out > 0 && !truncated_) {
    if (stream.avail_in == 0) {
      const size_t got = read_file(inflater_->input.data(), inflater_->input.size());
      if (got == 0) {
        truncated_ = !inflater_->between_members;
        break;
      }
      stream.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
      stream.avail_in = static_cast<uInt>(got);
    }
    if (inflater_->between_members) {
      if (*stream.next_in == 0) {  // padding after the last member
        ++stream.next_in;
        --stream.avail_in;
        continue;
      }
      inflateReset(&stream);
      inflater_->between_members = false;
    }
    const int status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      inflater_->between_members = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail(ErrorCode::kInvalidFile, "'{}' is not valid gzip after {} bytes: {}", path_,
           bytes_ + static_cast<int64_t>(limit - stream.avail_out),
           stream.msg != nullptr ? stream.msg : "data error");
    }
  }
  return limit - stream.avail_out;
}

size_t ByteSource::read(char* out, size_t capacity) {
  const size_t got = inflater_ ? read_inflated(out, capacity) : read_file(out, capacity);
  bytes_ += static_cast<int64_t>(got);
  if (inflater_ && bytes_ > kBombCheckBytes && bytes_ / kBombRatio > file_bytes_) {
    fail(ErrorCode::kInvalidFile,
         "'{}' unpacks to more than {} times its size, as a zip bomb does; unpack it yourself if "
         "it is a trace",
         path_, kBombRatio);
  }
  return got;
}

}  // namespace fovea::trace
