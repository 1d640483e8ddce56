#include "apps/cli/conditions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace fovea::cli {
namespace {

using testing::HasSubstr;

TEST(Conditions, WhatIsMissingIsSaid) {
  Conditions conditions;
  conditions.model = "models/needle_7m";
  conditions.flags = {{"--threads", "2"}};
  EXPECT_THAT(to_line(conditions), HasSubstr("conditions: models/needle_7m (weights missing,"));
  EXPECT_THAT(to_line(conditions), HasSubstr("flags --threads 2;"));
  EXPECT_THAT(to_line(conditions),
              HasSubstr("latency target missing, fraction that met it missing"));
  const nlohmann::json json = to_json(conditions);
  EXPECT_EQ(json.at("model"), "models/needle_7m");
  EXPECT_TRUE(json.at("latency_target").is_null());
}

TEST(GivenOptions, LeaveOutWhatDoesNotChangeAFigure) {
  CLI::App app;
  std::string prompt, lengths;
  bool json = false, raw = false;
  int threads = 0, seed = 0;
  app.add_option("-p,--prompt", prompt);
  app.add_option("--threads", threads);
  app.add_option("--seed", seed);
  app.add_flag("--json", json);
  app.add_flag("--raw", raw);
  app.parse("--prompt secret --threads 4 --json --raw");
  EXPECT_EQ(given_options(app), (nlohmann::json{{"--threads", "4"}, {"--raw", "true"}}));
}

TEST(Machine, IsNamed) {
  const nlohmann::json json = machine_json({.num_threads = 3});
  EXPECT_EQ(json.at("num_threads"), 3);
  EXPECT_GT(json.at("memory_bytes"), 0);
  EXPECT_FALSE(json.at("processor").get<std::string>().empty());
  EXPECT_THAT(hardware_text({.num_threads = 1}), HasSubstr("1 thread of "));
}

}  // namespace
}  // namespace fovea::cli
