// Writes safetensors files in memory: the header is any text, the data any bytes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Length, header, data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  out += header;
  out += data;
  return out;
}

/// Collects valid tensors.
class SafetensorsBuilder {
 public:
  void add(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape,
           std::string_view bytes) {
    header_ += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                           header_.empty() ? "" : ",", name, dtype, fmt::join(shape, ","),
                           data_.size(), data_.size() + bytes.size());
    data_ += bytes;
  }
  void add_f32(std::string_view name, const std::vector<int64_t>& shape,
               const std::vector<float>& values) {
    add(name, "F32", shape,
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  std::string build() const { return safetensors_file("{" + header_ + "}", data_); }

 private:
  std::string header_;
  std::string data_;
};

}  // namespace fovea
