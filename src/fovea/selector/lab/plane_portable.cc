#include "fovea/selector/lab/plane_kernel.h"

namespace fovea::lab {

const PlaneOps kPortablePlaneOps = kOps;

}  // namespace fovea::lab
