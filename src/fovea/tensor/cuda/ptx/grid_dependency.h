// Launches that overlap: a kernel started by launch_overlapping() may begin before the one in front
// of it in its stream has ended.
#pragma once

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// Waits until the grids in front are done and their writes can be seen. Nothing that they write
/// may be read, and nothing that they read be written, before.
FOVEA_DEVICE void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets the grid behind begin when all CTAs have come here or ended. It still waits as above.
FOVEA_DEVICE void let_next_grid_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace fovea::ptx
