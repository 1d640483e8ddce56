#include "fovea/worth/sweep_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(SweepTable, ColumnsAndUnits) {
  const SweepTable table = read_sweep_table(
      "# a comment\nn, FLASH ttft s, FLEX_TTFT_ms, FLASH itl ms, itl_us\n"
      "257, .116, 119, 33.76, 500\n\n1025, .280, , 33.68, 600\n");
  ASSERT_EQ(table.prefill.size(), 2u);
  ASSERT_EQ(table.decode.size(), 2u);
  EXPECT_EQ(table.prefill[0].backend, "FLASH");
  EXPECT_THAT(table.prefill[0].tokens, ElementsAre(257, 1025));
  EXPECT_THAT(table.prefill[0].values, ElementsAre(.116, .280));
  EXPECT_EQ(table.prefill[1].backend, "FLEX");
  EXPECT_THAT(table.prefill[1].values, ElementsAre(DoubleEq(.119)));
  EXPECT_EQ(table.decode[0].backend, "FLASH");
  EXPECT_EQ(table.decode[1].backend, "sweep");
  EXPECT_THAT(table.decode[1].values, ElementsAre(DoubleEq(.5), DoubleEq(.6)));
}

TEST(SweepTable, SemicolonsAndTabs) {
  EXPECT_EQ(read_sweep_table("n;A_ttft_s\n1;2\n").prefill[0].values[0], 2);
  EXPECT_EQ(read_sweep_table("n\tA_ttft_s\r\n1\t2\r\n").prefill[0].values[0], 2);
}

TEST(SweepTable, WhatIsWrittenIsRead) {
  const SweepTable table{{{"dense", {256, 1024}, {.1, .25}}, {"witness:2", {1024}, {.125}}},
                         {{"a,b\n\"c", {300.5}, {33.76}}}};
  const std::string csv = write_sweep_table(table);
  EXPECT_EQ(csv,
            "n,dense_ttft_s,witness:2_ttft_s,a_b__c_itl_ms\n256,0.1,,\n300.5,,,33.76\n"
            "1024,0.25,0.125,\n");
  const SweepTable again = read_sweep_table(csv);
  ASSERT_EQ(again.prefill.size(), 2u);
  EXPECT_EQ(again.prefill[1].backend, "witness:2");
  EXPECT_EQ(again.prefill[0].values, table.prefill[0].values);
  EXPECT_EQ(again.decode[0].tokens, table.decode[0].tokens);
}

TEST(SweepTable, MistakesNameLineAndColumn) {
  const auto message = [](const char* text) -> std::string {
    try {
      read_sweep_table(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_THAT(message("n\n1\n"), HasSubstr("header"));
  EXPECT_THAT(message("n,speed\n"), HasSubstr("'speed'"));
  EXPECT_THAT(message("n,A_ttft_s\n1,fast\n"), HasSubstr("line 2: 'fast' in column 'A_ttft_s'"));
  EXPECT_THAT(message("n,A_ttft_s\n1,2,3\n"), HasSubstr("line 2 has 3 cells"));
  EXPECT_THAT(message("n,A_ttft_s\n1,-2\n"), HasSubstr("above 0"));
  EXPECT_THAT(message("n,A_ttft_s\n1,nan\n"), HasSubstr("above 0"));
  EXPECT_THAT(message("n,A_ttft_s\n1,1e300\n"), HasSubstr("below 1e+12"));
}

}  // namespace
}  // namespace fovea::worth
