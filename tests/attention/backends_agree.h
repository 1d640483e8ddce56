// Every backend that takes a call, against the reference.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/reference/reference_attention.h"
#include "tests/cases/attention_cases.h"
#include "tests/cases/tolerances.h"

namespace fovea {

/// Expects outputs and lse within the tolerances of the type of q, and nothing written beside them.
inline void expect_backends_agree(cases::AttentionData& data, const std::string& name) {
  const DType dtype = data.params().q.dtype;
  ASSERT_NO_THROW(check_attention_params(data.params(), {}));
  reference_attention_backend().run(data.params(), {});
  const std::vector<float> out = data.out(), lse = data.lse();
  for (const AttentionBackend* backend : attention_backends()) {
    if (!backend->why_unsupported(data.params(), {}).empty()) continue;
    SCOPED_TRACE(fmt::format("{}, {}, {}", name, dtype_name(dtype), backend->name()));
    data.poison();
    backend->run(data.params(), {});
    EXPECT_EQ(cases::difference(data.out(), out, cases::output_tolerance(dtype)), "");
    EXPECT_EQ(cases::difference(data.lse(), lse, {1.0, cases::kLseTolerance}), "");
    EXPECT_TRUE(data.is_untouched());
  }
}

}  // namespace fovea
