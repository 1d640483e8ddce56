#include "apps/cli/table.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

TEST(Table, AlignsFiguresRightAndTextLeft) {
  Table table({"attention", "ttft"});
  table.add_row({"dense", "21.3 s"});
  table.add_row({"rescue", "1.20 s"});
  table.add_row({"all", "-"});
  EXPECT_EQ(table.to_string(),
            "attention    ttft\n"
            "---------  ------\n"
            "dense      21.3 s\n"
            "rescue     1.20 s\n"
            "all             -\n");
}

TEST(Table, CountsCodePointsNotBytes) {
  Table table({"name", "x"});
  table.add_row({"\u00e9\u00e9\u00e9\u00e9\u00e9", "1"});
  EXPECT_EQ(table.to_string(), "name   x\n-----  -\n\u00e9\u00e9\u00e9\u00e9\u00e9  1\n");
}

TEST(Table, RefusesARowOfAnotherLength) {
  Table table({"a", "b"});
  EXPECT_THROW(table.add_row({"1"}), Error);
}

TEST(Format, KeepsThreeDigitsAndFindsTheUnit) {
  EXPECT_EQ(format_seconds(21.345), "21.3 s");
  EXPECT_EQ(format_seconds(0.9999), "1.00 s");
  EXPECT_EQ(format_seconds(0.0421), "42.1 ms");
  EXPECT_EQ(format_seconds(15e-6), "15.0 us");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(13.9e6), "13.9 MB");
  EXPECT_EQ(format_bytes(999.9e3), "1.00 MB");
  EXPECT_EQ(format_count(134515008), "135 M");
  EXPECT_EQ(format_count(6953472), "6.95 M");
  EXPECT_EQ(format_percent(0.0534), "5.34 %");
  EXPECT_EQ(format_percent(1), "100 %");
}

}  // namespace
}  // namespace fovea::cli
