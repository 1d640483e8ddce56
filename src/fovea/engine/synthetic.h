// Models of a published shape with random weights: what a length costs depends on shapes alone, and
// nothing has to be downloaded to measure it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/engine/weights.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer_data.h"

namespace fovea {

/// Names that synthetic_config() knows, for example "Qwen2.5-7B".
std::vector<std::string> synthetic_names();

/// The shape of a published model. Throws kInvalidArgument listing the names there are.
ModelConfig synthetic_config(std::string_view name);

/// Weights of that shape on the context's device, uniform with the variance 1 / in_features that
/// keeps activations in range; norms are 1; types as of load_weights(). The same seed gives the
/// same weights on any device. `progress` as of load_weights(). Throws kOutOfMemory as Tensor does.
Weights make_synthetic_weights(const ModelConfig& config, DType dtype, DType layer_dtype,
                               const Context& context, uint64_t seed,
                               const std::function<void(double)>& progress);

/// A tokenizer whose tokens are the 256 bytes.
TokenizerData byte_tokenizer_data();

}  // namespace fovea
