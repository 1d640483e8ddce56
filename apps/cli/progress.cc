#include "apps/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "apps/cli/text_io.h"

namespace fovea::cli {

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

void ProgressBar::update(const std::string& label, int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (drawn_ && done < total && now - last_draw_ < std::chrono::milliseconds(100))) {
    return;
  }
  constexpr int64_t kWidth = 24;
  const int64_t filled = total > 0 ? std::clamp<int64_t>(kWidth * done / total, 0, kWidth) : 0;
  print_aside(fmt::format("\r\x1b[K[{:#<{}}{:.<{}}] {}", "", filled, "", kWidth - filled, label));
  last_draw_ = now;
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) print_aside("\r\x1b[K");
  drawn_ = false;
}

}  // namespace fovea::cli
