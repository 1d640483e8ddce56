// Ctrl-C: long work looks at a flag between its steps, ends, and says how far it came.
#pragma once

#include <stdexcept>
#include <string>

namespace fovea::cli {

constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells expect

/// Ends a command early; what() says what had been done.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// From now on the first Ctrl-C (or SIGTERM) sets the flag; a second one ends the process at once.
void install_interrupt_handler();
/// Whether Ctrl-C was pressed.
bool interrupted();

}  // namespace fovea::cli
