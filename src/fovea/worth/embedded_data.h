// The facts that ship with the kit, as JSON text: compiled in from data/*.json.
#pragma once

#include <string_view>

namespace fovea::worth {

/// Name -> config.json members of an architecture.
std::string_view embedded_models();
/// Name -> rates of a device.
std::string_view embedded_devices();

}  // namespace fovea::worth
