// Ctrl-C: long work looks at a flag between its steps, ends, and says how far it came.
#pragma once

#include <atomic>
#include <stdexcept>

namespace fovea::cli {

/// Ends a command early; what() says what had been done.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// From now on the first Ctrl-C (or SIGTERM) raises the flag; a second one ends the process at
/// once.
void install_interrupt_handler();

/// The flag, in the form that the engine's cancel options take.
const std::atomic<bool>& interrupt_flag();

/// Whether Ctrl-C was pressed.
inline bool interrupted() { return interrupt_flag().load(); }

}  // namespace fovea::cli
