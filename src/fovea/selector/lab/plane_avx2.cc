#include "fovea/selector/lab/plane_kernel.h"

namespace fovea::lab {

const PlaneOps kAvx2PlaneOps = kOps;

}  // namespace fovea::lab
