// JSON of an untrusted file: bounded nesting, no duplicate keys, typed lookups that name what is
// wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fovea {

/// Parses `text`, which must be one object; `name` is the file as messages show it.
/// Throws kInvalidFile on broken JSON, a duplicate key, more than `max_depth` levels or millions of
/// values.
nlohmann::json parse_json_object(std::string_view text, const std::string& name, int max_depth);

/// Lookups in an object: nothing when `key` is absent or null, kInvalidFile when it has another
/// type.
class JsonObject {
 public:
  /// `name` is shown in messages; both must outlive this object. Throws when `json` is no object.
  JsonObject(const nlohmann::json& object, const std::string& name);

  const nlohmann::json* find(const char* key) const;
  std::optional<int64_t> find_int(const char* key) const;
  std::optional<double> find_float(const char* key) const;
  std::optional<bool> find_bool(const char* key) const;
  std::optional<std::string> find_string(const char* key) const;
  int64_t get_int(const char* key) const;
  const std::string& name() const { return name_; }

 private:
  const nlohmann::json& json_;
  const std::string& name_;
};

}  // namespace fovea
