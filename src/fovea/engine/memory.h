// How much memory this process can still take.
#pragma once

#include <cstdint>
#include <string>

#include "fovea/base/context.h"

namespace fovea {

/// Bytes that can be allocated without swapping: what the system calls available, or what the
/// process's control group leaves, whichever is less. int64's maximum when the system does not say.
int64_t available_memory_bytes();

/// The same of any device: what a GPU says is free.
int64_t free_memory_bytes(Device device);

/// "1.5 GiB", "300 MiB", "12 KiB".
std::string memory_text(int64_t bytes);

/// Throws kOutOfMemory "<what> needs X of memory, the machine (or GPU N) has Y free; try <advice>"
/// unless `bytes` fit into the device's memory.
void check_memory(int64_t bytes, const std::string& what, const std::string& advice,
                  Device device = {});

}  // namespace fovea
