#include "fovea/base/error.h"

namespace fovea {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInvalidFile:
      return "invalid_file";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kDevice:
      return "device";
  }
  return "unknown";
}

}  // namespace fovea
