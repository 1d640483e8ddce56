// Selection on the CPU: one backend per instruction set, all of them with the same plan.
#pragma once

#include <span>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Named "cpu_amx_bf16", "cpu_avx512_bf16", "cpu_avx512", "cpu_avx2" and "cpu_portable", fastest
/// first. All but `all` and `streaming`, which look at no key.
std::span<const SelectorBackend* const> cpu_selectors();

}  // namespace fovea
