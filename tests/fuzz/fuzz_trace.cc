// Any bytes as a trace file, plain or gzip: read, analysed, printed as JSON and cut. Files live in
// memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "fovea/base/error.h"
#include "fovea/trace/trace_report.h"
#include "fovea/trace/trace_writer.h"

namespace {

class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz_trace", 0)) {
    if (descriptor_ < 0) __builtin_trap();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void fill(const uint8_t* data, size_t size) const {
    if (write(descriptor_, data, size) != static_cast<ssize_t>(size)) __builtin_trap();
  }

 private:
  int descriptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  static const trace::FamilyTable families;
  const MemoryFile in;
  const MemoryFile out;
  in.fill(data, size);
  try {
    const trace::TraceReport report = trace::analyse_trace(in.path(), families);
    if (trace::trace_report_json(report).empty()) __builtin_trap();
    trace::write_cut(in.path(), out.path(), families, {});
    trace::analyse_trace(out.path(), families);  // what we write, we read
  } catch (const Error&) {
  }
  return 0;
}
