#include "fovea/base/json_file.h"

#include <limits>
#include <set>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"

namespace fovea {

using nlohmann::json;

// A parsed value takes far more memory than its text: this bounds what a hostile file can ask for,
// with room for ten times the tensors of the largest published models.
constexpr int64_t kMaxValues = 1 << 22;

json parse_json_object(std::string_view text, const std::string& name, int max_depth) {
  std::vector<std::set<std::string>> keys;  // of each open object
  int64_t num_events = 0;
  const auto check = [&](int depth, json::parse_event_t event, const json& parsed) {
    if (++num_events > kMaxValues) {
      fail(ErrorCode::kInvalidFile, "'{}': JSON of more than {} values", name, kMaxValues);
    }
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= max_depth) {
        fail(ErrorCode::kInvalidFile, "'{}': JSON nested deeper than {} levels", name, max_depth);
      }
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        fail(ErrorCode::kInvalidFile, "'{}': duplicate key '{}'", name, shown(key));
      }
    }
    return true;
  };
  json result;
  try {
    result = json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail(ErrorCode::kInvalidFile, "'{}': broken JSON at byte {}", name, error.byte);
  } catch (const json::exception&) {  // a number past double's range
    fail(ErrorCode::kInvalidFile, "'{}': broken JSON: a number is out of range", name);
  }
  if (!result.is_object()) {
    fail(ErrorCode::kInvalidFile, "'{}': JSON must be an object, is {}", name, result.type_name());
  }
  return result;
}

JsonObject::JsonObject(const json& object, const std::string& name) : json_(object), name_(name) {
  if (!object.is_object()) {
    fail(ErrorCode::kInvalidFile, "'{}': expected an object, found {}", name, object.type_name());
  }
}

const json* JsonObject::find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

namespace {

[[noreturn]] void fail_type(const std::string& name, const char* key, const char* expected,
                            const json& found) {
  fail(ErrorCode::kInvalidFile, "'{}': '{}' must be {}, is {}", name, key, expected,
       found.type_name());
}

}  // namespace

std::optional<int64_t> JsonObject::find_int(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) fail_type(name_, key, "an integer", *value);
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail_type(name_, key, "below 2^63", *value);
  }
  return value->get<int64_t>();
}

std::optional<double> JsonObject::find_float(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail_type(name_, key, "a number", *value);
  return value->get<double>();
}

std::optional<bool> JsonObject::find_bool(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_type(name_, key, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> JsonObject::find_string(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_type(name_, key, "a string", *value);
  return value->get<std::string>();
}

int64_t JsonObject::get_int(const char* key) const {
  const auto value = find_int(key);
  if (!value) fail(ErrorCode::kInvalidFile, "'{}': '{}' is missing", name_, key);
  return *value;
}

}  // namespace fovea
