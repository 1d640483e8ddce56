#include "fovea/trace/cuda/cupti_trace.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/trace/trace_writer.h"

namespace fovea::trace {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;  // CUPTI's advice: 1 to 10 MB
constexpr size_t kBufferAlignment = 64;

/// The functions of CUPTI that we call, looked up in the library at run time.
struct Cupti {
  Cupti();
  void check(CUptiResult result, const char* what) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    get_result_string(result, &text);
    fail(ErrorCode::kUnsupported,
         "CUPTI cannot record, is there a GPU with its driver? {} failed with {}", what,
         text != nullptr ? text : "an unknown error");
  }

  decltype(&cuptiGetResultString) get_result_string;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) get_next_record;
  decltype(&cuptiActivityGetNumDroppedRecords) get_num_dropped;
  decltype(&cuptiGetTimestamp) get_timestamp;
  decltype(&cuptiGetCallbackName) get_callback_name;
  decltype(&cuptiSetThreadIdType) set_thread_id_type;
};

Cupti::Cupti() {
  // The version whose headers this was built with: records keep their layout within one.
  const std::string name = fmt::format("libcupti.so.{}", CUPTI_API_VERSION / 10000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(ErrorCode::kUnsupported,
         "CUPTI is not here: {} (name its folder in LD_LIBRARY_PATH; the CUDA toolkit has it)",
         dlerror());
  }
  const auto find = [&](const char* symbol, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) fail(ErrorCode::kUnsupported, "{} has no {}", name, symbol);
  };
  find("cuptiGetResultString", get_result_string);
  find("cuptiActivityRegisterCallbacks", register_callbacks);
  find("cuptiActivityEnable", enable);
  find("cuptiActivityDisable", disable);
  find("cuptiActivityFlushAll", flush_all);
  find("cuptiActivityGetNextRecord", get_next_record);
  find("cuptiActivityGetNumDroppedRecords", get_num_dropped);
  find("cuptiGetTimestamp", get_timestamp);
  find("cuptiGetCallbackName", get_callback_name);
  find("cuptiSetThreadIdType", set_thread_id_type);
}

const Cupti& cupti() {
  static const Cupti functions;
  return functions;
}

/// One event before it is written; times in CUPTI's nanoseconds.
struct Event {
  std::string name;
  const char* category = "";
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  int64_t pid = 0;  // of the process, or the device's number
  int64_t tid = 0;  // thread, or stream
  int64_t correlation = -1;
  std::vector<std::pair<std::string, std::string>> args{};
};

/// What CUPTI's threads hand over: its callbacks carry no pointer of ours.
struct Recording {
  std::mutex mutex;
  bool is_on = false;
  std::vector<Event> events;
  size_t num_dropped = 0;
};

Recording& recording() {
  static Recording one;
  return one;
}

std::string demangled(const char* name) {
  if (name == nullptr) return "(a kernel without name)";
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return result;
}

/// Kernels, copies and sets share these members, though not where they lie.
template <typename Record>
Event device_event(const Record& record, std::string name, const char* category) {
  Event event{std::move(name), category, record.start, record.end};
  event.pid = record.deviceId;
  event.tid = record.streamId;
  event.correlation = record.correlationId;
  return event;
}

void add_call(const CUpti_ActivityAPI& call, CUpti_CallbackDomain domain, const char* category,
              std::vector<Event>* events) {
  const char* name = nullptr;
  if (cupti().get_callback_name(domain, call.cbid, &name) != CUPTI_SUCCESS) name = "unknown call";
  Event event{name, category, call.start, call.end};
  event.pid = call.processId;
  event.tid = call.threadId;
  event.correlation = call.correlationId;
  events->push_back(std::move(event));
}

void add_record(const CUpti_Activity& record, std::vector<Event>* events) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      Event event = device_event(kernel, demangled(kernel.name), "kernel");
      event.args = {
          {"grid", fmt::format("{} {} {}", kernel.gridX, kernel.gridY, kernel.gridZ)},
          {"block", fmt::format("{} {} {}", kernel.blockX, kernel.blockY, kernel.blockZ)}};
      events->push_back(std::move(event));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      events->push_back(device_event(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record),
                                     "Memcpy", "gpu_memcpy"));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      events->push_back(device_event(reinterpret_cast<const CUpti_ActivityMemset4&>(record),
                                     "Memset", "gpu_memset"));
      break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
      add_call(reinterpret_cast<const CUpti_ActivityAPI&>(record), CUPTI_CB_DOMAIN_RUNTIME_API,
               "cuda_runtime", events);
      break;
    case CUPTI_ACTIVITY_KIND_DRIVER:
      add_call(reinterpret_cast<const CUpti_ActivityAPI&>(record), CUPTI_CB_DOMAIN_DRIVER_API,
               "cuda_driver", events);
      break;
    default:
      break;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                          size_t valid_bytes) {
  Recording& to = recording();
  const std::lock_guard lock(to.mutex);
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 &&
         cupti().get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (to.is_on) add_record(*record, &to.events);
  }
  size_t num_dropped = 0;
  if (cupti().get_num_dropped(context, stream, &num_dropped) == CUPTI_SUCCESS) {
    to.num_dropped += num_dropped;
  }
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

uint64_t timestamp_ns() {
  uint64_t now = 0;
  cupti().check(cupti().get_timestamp(&now), "reading its clock");
  return now;
}

void stop_recording() {
  for (const CUpti_ActivityKind kind : kKinds) cupti().disable(kind);
  cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(recording().mutex);
  recording().is_on = false;
}

}  // namespace

struct CuptiTrace::Impl {
  explicit Impl(const std::string& path) : writer(path) {}

  TraceWriter writer;
  uint64_t start_ns = 0;
  std::vector<Event> steps;
  bool in_step = false;
};

CuptiTrace::CuptiTrace(const std::string& path) {
  const Cupti& library = cupti();
  {
    const std::lock_guard lock(recording().mutex);
    check_argument(!recording().is_on, "another recording is in progress");
    recording().events.clear();
    recording().num_dropped = 0;
    recording().is_on = true;
  }
  try {
    library.check(library.set_thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM),
                  "choosing thread ids");
    library.check(library.register_callbacks(give_buffer, take_buffer), "registering buffers");
    for (const CUpti_ActivityKind kind : kKinds) {
      library.check(library.enable(kind), "enabling the recording");
    }
    impl_ = std::make_unique<Impl>(path);
    impl_->start_ns = timestamp_ns();
  } catch (...) {
    stop_recording();
    throw;
  }
}

CuptiTrace::~CuptiTrace() {
  if (impl_ != nullptr) stop_recording();
}

void CuptiTrace::begin_step(std::string_view label) {
  end_step();
  Event step{std::string(label), "user_annotation", timestamp_ns(), 0};
  step.pid = getpid();
  step.tid = gettid();
  impl_->steps.push_back(std::move(step));
  impl_->in_step = true;
}

void CuptiTrace::end_step() {
  if (impl_->in_step) impl_->steps.back().end_ns = timestamp_ns();
  impl_->in_step = false;
}

void CuptiTrace::finish() {
  end_step();
  stop_recording();
  const std::unique_ptr<Impl> impl = std::move(impl_);
  const auto write = [&](const Event& event) {
    if (event.end_ns < impl->start_ns) return;  // of before the recording
    const auto us = [&](uint64_t ns) {
      return static_cast<double>(static_cast<int64_t>(ns - impl->start_ns)) / 1e3;
    };
    impl->writer.write({.name = event.name,
                        .category = event.category,
                        .ts_us = us(event.start_ns),
                        .dur_us = us(event.end_ns) - us(event.start_ns),
                        .pid = event.pid,
                        .tid = event.tid,
                        .correlation = event.correlation,
                        .args = event.args});
  };
  for (const Event& step : impl->steps) write(step);
  for (const Event& event : recording().events) write(event);
  recording().events.clear();
  impl->writer.finish();
  if (recording().num_dropped > 0) {
    fail(ErrorCode::kDevice, "CUPTI lost {} records: the trace is not complete",
         recording().num_dropped);
  }
}

}  // namespace fovea::trace
