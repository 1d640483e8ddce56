// Any bytes as a server's streamed answer, in pieces of any size, and as an error's body.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "fovea/base/error.h"
#include "fovea/worth/completion_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  if (size == 0) return 0;
  const size_t piece = 1 + data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (worth::server_error_text(bytes).size() > 203) __builtin_trap();
  try {
    worth::CompletionStream stream(4);
    double now_s = 0;
    for (size_t at = 0; at < bytes.size(); at += piece)
      stream.feed(bytes.substr(at, piece), ++now_s);
    stream.finish();
    if (stream.arrivals_s().size() > 2 * 4 + 64) __builtin_trap();
    if (!std::is_sorted(stream.arrivals_s().begin(), stream.arrivals_s().end())) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
