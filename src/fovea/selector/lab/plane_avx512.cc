#include "fovea/selector/lab/plane_kernel.h"

namespace fovea::lab {

const PlaneOps kAvx512PlaneOps = kOps;

}  // namespace fovea::lab
