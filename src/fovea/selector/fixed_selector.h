// The methods that look at no key: `all` and `streaming`.
#pragma once

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Named "fixed": lists that follow from positions alone. It also serves calls of other methods in
/// which every query block is dense, so that a prompt below min_sparse_len pays for no scores.
const SelectorBackend& fixed_selector();

}  // namespace fovea
