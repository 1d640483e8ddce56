// Writes GGUF files in memory, valid ones and broken ones: nothing is checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea {

class GgufBuilder {
 public:
  // Numbers of the format.
  static constexpr uint32_t kUint8 = 0, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
                            kString = 8, kArray = 9, kUint64 = 10;
  static constexpr uint32_t kTypeF32 = 0, kTypeF16 = 1, kTypeQ8_0 = 8;

  uint32_t version = 3;
  int64_t extra_tensor_count = 0;  // added to the true counts
  int64_t extra_entry_count = 0;
  uint64_t alignment = 32;  // of the data section as written; say it in the metadata too
  bool pad_last = true;     // pad after the last tensor

  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void put_string(std::string& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out += text;
  }

  /// An entry with any payload.
  void add_raw(std::string_view key, uint32_t type, std::string_view payload) {
    put_string(entries_, key);
    put(entries_, type);
    entries_ += payload;
    ++num_entries_;
  }
  template <typename T>
  void add_number(std::string_view key, uint32_t type, T value) {
    std::string payload;
    put(payload, value);
    add_raw(key, type, payload);
  }
  void add_int(std::string_view key, uint32_t value) { add_number(key, kUint32, value); }
  void add_float(std::string_view key, float value) { add_number(key, kFloat32, value); }
  void add_string(std::string_view key, std::string_view text) {
    std::string payload;
    put_string(payload, text);
    add_raw(key, kString, payload);
  }
  void add_strings(std::string_view key, const std::vector<std::string>& texts) {
    std::string payload;
    put(payload, kString);
    put<uint64_t>(payload, texts.size());
    for (const std::string& text : texts) put_string(payload, text);
    add_raw(key, kArray, payload);
  }
  /// An array whose count need not fit its elements.
  void add_array(std::string_view key, uint32_t element_type, uint64_t count,
                 std::string_view elements) {
    std::string payload;
    put(payload, element_type);
    put(payload, count);
    add_raw(key, kArray, payload + std::string(elements));
  }

  /// A tensor info that need not fit its data; `dims` fastest first, as in the file.
  void add_tensor_info(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                       uint64_t offset) {
    put_string(infos_, name);
    put(infos_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) put(infos_, dim);
    put(infos_, type);
    put(infos_, offset);
    ++num_tensors_;
  }
  /// A tensor with its data behind those before it.
  void add_tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                  std::string_view bytes) {
    pad(data_);
    add_tensor_info(name, dims, type, data_.size());
    data_ += bytes;
  }
  void add_f32(std::string_view name, const std::vector<uint64_t>& dims,
               const std::vector<float>& values) {
    add_tensor(name, dims, kTypeF32,
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  /// Bytes of the data section without an info.
  void add_data(size_t bytes) { data_.append(bytes, '\0'); }

  std::string build() const {
    std::string out = "GGUF";
    put(out, version);
    put(out, num_tensors_ + extra_tensor_count);
    put(out, num_entries_ + extra_entry_count);
    out += entries_ + infos_;
    pad(out);
    out += data_;
    if (pad_last) pad(out);
    return out;
  }

 private:
  void pad(std::string& out) const {
    out.resize((out.size() + alignment - 1) / alignment * alignment);
  }

  std::string entries_;
  std::string infos_;
  std::string data_;
  int64_t num_entries_ = 0;
  int64_t num_tensors_ = 0;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace fovea
