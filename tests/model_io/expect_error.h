// Every refusal is checked for its code and for what its message names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fovea/base/error.h"

namespace fovea {

/// `action` must throw Error{code} with a one-line message that contains `part`.
template <typename Action>
void expect_error(ErrorCode code, const std::string& part, Action action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one that says: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
    EXPECT_LT(std::string(error.what()).size(), 500u);
  }
}

}  // namespace fovea
