// Small traces made on the spot: a host thread that launches kernels on a device's streams.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace fovea::trace {

/// A file that goes away with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content, const std::string& suffix = ".json") {
    static int number = 0;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = fmt::format("{}fovea_{}_{}_{}{}", testing::TempDir(), test->test_suite_name(),
                        test->name(), number++, suffix);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string gzip(const std::string& content) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Writes events as Kineto does. Times in microseconds.
class TraceBuilder {
 public:
  static constexpr int kHost = 100;

  /// A step's annotation on the host.
  TraceBuilder& annotation(const std::string& name, double ts, double dur) {
    return event(name, "user_annotation", kHost, kHost, ts, dur, "");
  }
  /// A host call with this correlation.
  TraceBuilder& launch(int correlation, double ts, double dur = 5,
                       const std::string& call = "cudaLaunchKernel") {
    return event(call, "cuda_runtime", kHost, kHost, ts, dur,
                 fmt::format(R"("cbid": 211, "correlation": {})", correlation));
  }
  /// A kernel; without a correlation when it is negative.
  TraceBuilder& kernel(const std::string& name, int correlation, double ts, double dur,
                       int stream = 7, const std::string& category = "kernel") {
    std::string args = fmt::format(R"("device": 0, "stream": {})", stream);
    if (correlation >= 0) args += fmt::format(R"(, "correlation": {})", correlation);
    return event(name, category, 0, stream, ts, dur, args);
  }
  /// A kernel and its launch, `delay` before.
  TraceBuilder& launched(const std::string& name, int correlation, double ts, double dur,
                         double delay = 10, int stream = 7) {
    return launch(correlation, ts - delay).kernel(name, correlation, ts, dur, stream);
  }
  TraceBuilder& event(const std::string& name, const std::string& category, int pid, int tid,
                      double ts, double dur, const std::string& args) {
    return raw(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
        category, name, pid, tid, ts, dur, args));
  }
  TraceBuilder& raw(const std::string& text) {
    if (!events_.empty()) events_ += ",\n";
    events_ += text;
    return *this;
  }
  /// Header members, such as R"("with_stack": 1)".
  TraceBuilder& header(const std::string& members) {
    header_ += members + ", ";
    return *this;
  }

  std::string json() const { return "{" + header_ + "\"traceEvents\": [\n" + events_ + "\n]}"; }

 private:
  std::string header_;
  std::string events_;
};

}  // namespace fovea::trace
