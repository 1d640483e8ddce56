// A kernel's name without its wrapping: what the family table matches.
#pragma once

#include <string>
#include <string_view>

namespace fovea::trace {

/// Name of the function itself: no return type, namespaces, template arguments or parameters.
/// Demangles as far as the name goes. When the function is a generic wrapper (`device_kernel`,
/// `Kernel2`, `kentry` ...) whose first template argument is the kernel, as in CUTLASS,
/// FlashAttention-3 and Composable Kernel, that argument is taken. "void flash::flash_fwd_kernel<T,
/// 1>(P)" and "cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>" give "flash_fwd_kernel" and
/// "FlashAttnFwdSm90".
std::string kernel_base_name(std::string_view name);

/// Whether `text` matches `pattern`, in which '*' stands for any characters, upper and lower case
/// being equal.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace fovea::trace
