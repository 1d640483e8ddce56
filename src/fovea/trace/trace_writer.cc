#include "fovea/trace/trace_writer.h"

#include <zlib.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/trace/trace_reader.h"

namespace fovea::trace {
namespace {

using Json = nlohmann::ordered_json;

// Names come from untrusted files.
std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Perfetto shows nanoseconds; more digits only make the file larger.
double rounded(double us) { return std::nearbyint(us * 1e3) / 1e3; }

constexpr size_t kMostCachedNames = 65'536;

// Family of each name, found once.
class FamilyCache {
 public:
  explicit FamilyCache(const FamilyTable& families) : families_(families) {}

  const std::string& family_of(std::string_view name) {
    const std::string key(name);
    const auto found = cache_.find(key);
    if (found != cache_.end()) return found->second;
    if (cache_.size() >= kMostCachedNames) cache_.clear();
    return cache_.emplace(key, families_.family_of(name)).first->second;
  }

 private:
  const FamilyTable& families_;
  std::unordered_map<std::string, std::string> cache_;
};

}  // namespace

// zlib writes plain files too ("T"), so both kinds go the same way.
struct TraceWriter::File {
  explicit File(const std::string& path)
      : file(gzopen(path.c_str(), path.ends_with(".gz") ? "wb" : "wbT")) {}
  ~File() {
    if (file != nullptr) gzclose(file);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  gzFile file;
};

TraceWriter::TraceWriter(const std::string& path) : path_(path) {
  errno = 0;
  file_ = std::make_unique<File>(path);
  if (file_->file == nullptr) {
    fail(ErrorCode::kInvalidFile, "cannot write '{}': {}", path,
         std::strerror(errno != 0 ? errno : ENOMEM));
  }
  put("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
}

TraceWriter::~TraceWriter() {
  if (file_ != nullptr) put("\n]}\n");
}

void TraceWriter::put(std::string_view text) {
  errno = 0;
  const int written = gzwrite(file_->file, text.data(), static_cast<unsigned>(text.size()));
  if (written != static_cast<int>(text.size()) && error_ == 0) error_ = errno != 0 ? errno : EIO;
}

void TraceWriter::write_line(const std::string& json) {
  put(num_events_ > 0 ? ",\n" : "\n");
  put(json);
  ++num_events_;
}

void TraceWriter::write(const WrittenEvent& event) {
  Json json = {{"ph", "X"},
               {"cat", event.category},
               {"name", event.name},
               {"pid", event.pid},
               {"tid", event.tid},
               {"ts", rounded(event.ts_us)},
               {"dur", rounded(event.dur_us)},
               {"args", Json::object()}};
  if (event.correlation >= 0) json["args"]["correlation"] = event.correlation;
  for (const auto& [key, value] : event.args) json["args"][key] = value;
  write_line(to_line(json));
}

void TraceWriter::write_flow(int64_t id, bool is_end, double ts_us, int64_t pid, int64_t tid) {
  Json json = {{"ph", is_end ? "f" : "s"}, {"id", id},        {"pid", pid},      {"tid", tid},
               {"ts", rounded(ts_us)},     {"cat", "launch"}, {"name", "launch"}};
  if (is_end) json["bp"] = "e";
  write_line(to_line(json));
}

void TraceWriter::name(std::string_view what, int64_t pid, int64_t tid, std::string_view name) {
  write_line(to_line(
      {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}}));
}

void TraceWriter::name_process(int64_t pid, std::string_view process) {
  name("process_name", pid, 0, process);
}

void TraceWriter::name_thread(int64_t pid, int64_t tid, std::string_view thread) {
  name("thread_name", pid, tid, thread);
}

void TraceWriter::finish() {
  put("\n]}\n");
  errno = 0;
  const bool closed = gzclose(std::exchange(file_->file, nullptr)) == Z_OK;
  file_.reset();
  if (!closed && error_ == 0) error_ = errno != 0 ? errno : EIO;
  if (error_ != 0) {
    fail(ErrorCode::kInvalidFile, "cannot write '{}': {}", path_, std::strerror(error_));
  }
}

CutSummary write_cut(const std::string& in_path, const std::string& out_path,
                     const FamilyTable& families, const CutOptions& options) {
  check_argument(options.from_us < options.to_us, "the cut's window is empty: {} to {} us",
                 options.from_us, options.to_us);
  std::error_code not_there;  // then they are not the same file
  check_argument(in_path != out_path && !std::filesystem::equivalent(in_path, out_path, not_there),
                 "the cut would overwrite '{}'", in_path);
  TraceWriter writer(out_path);
  FamilyCache cache(families);
  CutSummary summary;
  read_trace(in_path, [&](const TraceEvent& event) {
    const bool wanted = event.kind == EventKind::kKernel || event.kind == EventKind::kMemory ||
                        event.kind == EventKind::kLaunch || event.kind == EventKind::kAnnotation ||
                        event.kind == EventKind::kGpuAnnotation;
    const bool inside =
        event.ts_us <= options.to_us && event.ts_us + event.dur_us >= options.from_us;
    if (!wanted || !inside) return;
    if (writer.num_events() >= options.most_events) {
      ++summary.num_left_out;
      return;
    }
    WrittenEvent out{.name = event.name,
                     .category = event.category,
                     .ts_us = event.ts_us,
                     .dur_us = event.dur_us,
                     .pid = event.pid,
                     .tid = event.tid,
                     .correlation = event.correlation};
    if (event.kind == EventKind::kKernel) {
      out.args.emplace_back("family", cache.family_of(event.name));
    }
    writer.write(out);
    ++summary.num_written;
    const bool is_device = event.kind == EventKind::kKernel || event.kind == EventKind::kMemory;
    if (event.correlation >= 0 && (is_device || event.kind == EventKind::kLaunch)) {
      writer.write_flow(event.correlation, is_device, event.ts_us, event.pid, event.tid);
    }
  });
  writer.finish();
  return summary;
}

}  // namespace fovea::trace
