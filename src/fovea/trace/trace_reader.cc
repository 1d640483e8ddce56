#include "fovea/trace/trace_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/trace/byte_source.h"
#include "fovea/trace/event_splitter.h"

namespace fovea::trace {
namespace {

namespace ondemand = simdjson::ondemand;
static_assert(EventSplitter::kPadding >= simdjson::SIMDJSON_PADDING);

// Beyond these a time is no measurement: eleven days in one kernel, three thousand years since
// 1970.
constexpr double kLongestUs = 1e12;
constexpr double kLatestUs = 1e17;

bool equals_ignoring_case(std::string_view a, std::string_view lower) {
  if (a.size() != lower.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] + 32) : a[i];
    if (c != lower[i]) return false;
  }
  return true;
}

// Categories of Kineto since 2020, older files capitalising them, other back ends prefixing theirs;
// and those of Nsight Systems' reports made Chrome traces ("cuda" are kernels there, "nvtx-kernel"
// ranges as the device saw them).
EventKind kind_of(std::string_view category) {
  const auto is = [&](std::string_view name) { return equals_ignoring_case(category, name); };
  if (is("python_function")) return EventKind::kPythonFunction;
  if (is("cpu_op") || is("operator")) return EventKind::kCpuOp;
  if (is("kernel") || is("concurrent_kernel") || is("cuda")) return EventKind::kKernel;
  if (is("gpu_memcpy") || is("gpu_memset") || is("memcpy") || is("memset"))
    return EventKind::kMemory;
  if (is("gpu_user_annotation") || is("nvtx-kernel")) return EventKind::kGpuAnnotation;
  if (is("user_annotation") || is("nvtx")) return EventKind::kAnnotation;
  if (category.ends_with("_runtime") || category.ends_with("_driver") || is("runtime") ||
      is("cuda_api")) {
    return EventKind::kLaunch;
  }
  return EventKind::kOther;
}

bool wants_args(EventKind kind) {
  return kind == EventKind::kKernel || kind == EventKind::kMemory || kind == EventKind::kLaunch ||
         kind == EventKind::kCpuOp;
}

int64_t hash_to_negative(std::string_view text) {
  const uint64_t hash = std::hash<std::string_view>()(text);
  return -static_cast<int64_t>(hash >> 2) - 1;
}

// A process or thread: a number, or a name ("Spans").
int64_t read_track(ondemand::value value) {
  int64_t number = 0;
  if (value.get_int64().get(number) == simdjson::SUCCESS) return number;
  std::string_view text;
  if (value.get_string().get(text) == simdjson::SUCCESS) return hash_to_negative(text);
  return 0;
}

std::optional<double> read_time(ondemand::value value) {
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS || !std::isfinite(number)) return {};
  return number;
}

int64_t read_id(ondemand::value value) {
  int64_t number = 0;
  return value.get_int64().get(number) == simdjson::SUCCESS && number >= 0 ? number : -1;
}

simdjson::error_code read_args(ondemand::value value, TraceEvent* event) {
  ondemand::object args;
  if (const auto error = value.get_object().get(args)) return error;
  for (auto item : args) {
    ondemand::field field;
    if (const auto error = std::move(item).get(field)) return error;
    const ondemand::raw_json_string key = field.key();
    if (key == "correlation" || key == "correlationId" || key == "correlation_id") {
      event->correlation = read_id(field.value());
    } else if (key == "External id") {
      event->external_id = read_id(field.value());
    }
  }
  return simdjson::SUCCESS;
}

/// Files of several ranks made one keep each rank's correlations and external ids, which then mean
/// several things; the ranks are told apart by processes named "[TP0] 12". Ids of each rank but the
/// first are moved to numbers of their own.
class RankIds {
 public:
  /// What to add to the ids of an event of this process.
  int64_t offset_of(std::string_view process) {
    if (!process.starts_with('[')) return 0;
    const std::string rank(process.substr(0, process.find(']')));
    const auto [entry, is_new] = numbers_.try_emplace(rank, static_cast<int64_t>(numbers_.size()));
    return std::min(entry->second, kMostRanks - 1) * kIdsPerRank;
  }
  static int64_t moved(int64_t id, int64_t offset) {
    return id >= 0 && id < kIdsPerRank ? id + offset : id;
  }

 private:
  static constexpr int64_t kIdsPerRank = int64_t{1} << 25;  // ids are below 2^32
  static constexpr int64_t kMostRanks = 100;
  std::map<std::string, int64_t> numbers_;
};

class Reader {
 public:
  Reader(const std::string& path, const std::function<void(const TraceEvent&)>& sink)
      : source_(path), splitter_(&source_), sink_(sink) {
    summary_.path = path;
  }

  ReadSummary run() {
    for (std::string_view text = splitter_.next_event(); !text.empty();
         text = splitter_.next_event()) {
      ++summary_.num_events;
      simdjson::error_code error = read_event(text);
      if (error == simdjson::UTF8_ERROR) {
        ++summary_.num_invalid_utf8;
        std::string ascii(text);
        for (char& c : ascii) {
          if (static_cast<unsigned char>(c) >= 0x80) c = '?';
        }
        ascii.reserve(ascii.size() + EventSplitter::kPadding);
        error = read_event(ascii);
      }
      if (error != simdjson::SUCCESS) ++summary_.num_malformed;
    }
    finish();
    return summary_;
  }

 private:
  simdjson::error_code read_event(std::string_view text);
  void finish();

  ByteSource source_;
  EventSplitter splitter_;
  const std::function<void(const TraceEvent&)>& sink_;
  ondemand::parser parser_;
  ReadSummary summary_;
  RankIds rank_ids_;
};

simdjson::error_code Reader::read_event(std::string_view text) {
  ondemand::document document;
  // The buffer goes on behind the event, so what follows is readable padding.
  const simdjson::padded_string_view padded(text.data(), text.size(),
                                            text.size() + EventSplitter::kPadding);
  if (const auto error = parser_.iterate(padded).get(document)) return error;
  ondemand::object object;
  if (const auto error = document.get_object().get(object)) return error;

  TraceEvent event;
  std::string_view phase;
  bool has_name = false;
  bool has_category = false;
  std::optional<double> ts;
  std::optional<double> dur;
  bool has_dur = false;
  int64_t rank_offset = 0;
  for (auto item : object) {
    ondemand::field field;
    if (const auto error = std::move(item).get(field)) return error;
    const ondemand::raw_json_string key = field.key();
    if (key == "ph") {
      if (const auto error = field.value().get_string().get(phase)) return error;
      if (phase != "X") return simdjson::SUCCESS;
    } else if (key == "cat") {
      if (const auto error = field.value().get_string().get(event.category)) return error;
      event.kind = kind_of(event.category);
      has_category = true;
    } else if (key == "name") {
      if (const auto error = field.value().get_string().get(event.name)) return error;
      has_name = true;
    } else if (key == "ts") {
      ts = read_time(field.value());
    } else if (key == "dur") {
      dur = read_time(field.value());
      has_dur = true;
    } else if (key == "pid") {
      std::string_view process;
      ondemand::value value = field.value();
      if (value.get_string().get(process) == simdjson::SUCCESS) {
        event.pid = hash_to_negative(process);
        rank_offset = rank_ids_.offset_of(process);
      } else {
        event.pid = read_track(value);
      }
    } else if (key == "tid") {
      event.tid = read_track(field.value());
    } else if (key == "args" && (!has_category || wants_args(event.kind))) {
      if (const auto error = read_args(field.value(), &event)) return error;
    }
  }
  if (phase != "X") return simdjson::SUCCESS;
  if (!has_name) return simdjson::NO_SUCH_FIELD;
  if (!ts || (has_dur && !dur) || std::fabs(*ts) > kLatestUs || dur.value_or(0) < 0 ||
      dur.value_or(0) > kLongestUs) {
    ++summary_.num_not_a_number;
    return simdjson::SUCCESS;
  }
  event.ts_us = *ts;
  event.dur_us = dur.value_or(0);
  event.correlation = RankIds::moved(event.correlation, rank_offset);
  event.external_id = RankIds::moved(event.external_id, rank_offset);
  sink_(event);
  return simdjson::SUCCESS;
}

// The header: small members beside the events.
void Reader::finish() {
  const SplitCounts& counts = splitter_.counts();
  summary_.compressed = source_.compressed();
  summary_.file_bytes = source_.file_bytes();
  summary_.json_bytes = source_.bytes();
  summary_.num_malformed += counts.num_not_objects;
  summary_.num_control_characters = counts.num_control_characters;
  summary_.truncated = counts.truncated || source_.truncated();
  const auto flag = [&](std::string_view key) {
    const std::string_view text = splitter_.member(key);
    return !text.empty() && text != "0" && text != "false" && text != "null";
  };
  summary_.with_stack = flag("with_stack");
  summary_.profile_memory = flag("profile_memory");

  simdjson::dom::parser parser;
  simdjson::dom::element element;
  const std::string devices(splitter_.member("deviceProperties"));
  if (parser.parse(devices).get(element) == simdjson::SUCCESS && element.is_array()) {
    for (const simdjson::dom::element device : element.get_array()) {
      std::string_view name;
      if (device["name"].get(name) != simdjson::SUCCESS || name.empty()) continue;
      if (summary_.devices.find(name) != std::string::npos) continue;
      if (!summary_.devices.empty()) summary_.devices += ", ";
      summary_.devices += name;
    }
  }
  const std::string distributed(splitter_.member("distributedInfo"));
  if (parser.parse(distributed).get(element) == simdjson::SUCCESS) {
    int64_t rank = -1;
    if (element["rank"].get(rank) == simdjson::SUCCESS) summary_.rank = rank;
  }
}

}  // namespace

ReadSummary read_trace(const std::string& path,
                       const std::function<void(const TraceEvent&)>& sink) {
  return Reader(path, sink).run();
}

}  // namespace fovea::trace
