// Files that are odd but valid load; the last test cuts a file at every byte. Hostile files have
// gguf_hostile_test.cc.
#include "fovea/model_io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/model_io/expect_error.h"
#include "tests/model_io/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace fovea {
namespace {

using testing::ElementsAre;

TEST(Gguf, ReadsMetadataOfEveryKind) {
  GgufBuilder file;
  file.add_number<uint8_t>("u8", 0, 200);
  file.add_number<int8_t>("i8", 1, -3);
  file.add_number<uint16_t>("u16", 2, 60000);
  file.add_number<int16_t>("i16", 3, -300);
  file.add_number<uint32_t>("u32", 4, 4000000000u);
  file.add_number<int32_t>("i32", 5, -70000);
  file.add_number<float>("f32", 6, 0.5f);
  file.add_number<uint8_t>("bool", 7, 1);
  file.add_string("text", "fovea");
  file.add_number<uint64_t>("u64", 10, uint64_t{1} << 63);
  file.add_number<int64_t>("i64", 11, -5);
  file.add_number<double>("f64", 12, 0.25);
  file.add_strings("strings", {"a", "", "ccc"});
  const float floats[] = {1.0f, -2.0f};
  file.add_array("floats", GgufBuilder::kFloat32, 2,
                 {reinterpret_cast<const char*>(floats), sizeof(floats)});
  file.add_array("ints", 1, 3, "\x01\xff\x7f");
  file.add_array("bools", GgufBuilder::kBool, 2, std::string_view("\0\1", 2));
  const std::string bytes = file.build();
  const Gguf gguf = Gguf::parse(as_bytes(bytes), "all.gguf");
  EXPECT_EQ(gguf.version(), 3);
  EXPECT_EQ(gguf.metadata().size(), 16u);
  EXPECT_EQ(gguf.find_int("u8"), 200);
  EXPECT_EQ(gguf.find_int("i8"), -3);
  EXPECT_EQ(gguf.find_int("u16"), 60000);
  EXPECT_EQ(gguf.find_int("i16"), -300);
  EXPECT_EQ(gguf.find_int("u32"), 4000000000);
  EXPECT_EQ(gguf.find_int("i32"), -70000);
  EXPECT_EQ(gguf.find_int("i64"), -5);
  EXPECT_EQ(gguf.find_float("f32"), 0.5);
  EXPECT_EQ(gguf.find_float("f64"), 0.25);
  EXPECT_EQ(gguf.find_float("u8"), 200.0);
  EXPECT_EQ(gguf.find_bool("bool"), true);
  EXPECT_EQ(gguf.find_string("text"), "fovea");
  EXPECT_THAT(*gguf.find_strings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*gguf.find_floats("floats"), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(*gguf.find_ints("ints"), ElementsAre(1, -1, 127));
  EXPECT_THAT(*gguf.find_bools("bools"), ElementsAre(false, true));
  EXPECT_FALSE(gguf.find_int("absent").has_value());
  EXPECT_FALSE(gguf.find_strings("absent").has_value());
  expect_error(ErrorCode::kInvalidFile, "'absent' is missing", [&] { gguf.get_int("absent"); });
  expect_error(ErrorCode::kInvalidFile, "'text' must be an integer, is string",
               [&] { gguf.find_int("text"); });
  expect_error(ErrorCode::kInvalidFile, "'u64' must be below 2^63, is 9223372036854775808",
               [&] { gguf.find_int("u64"); });
  expect_error(ErrorCode::kInvalidFile, "'u8' must be a string, is integer",
               [&] { gguf.find_string("u8"); });
  expect_error(ErrorCode::kInvalidFile,
               "'floats' must be an array of strings, is an array of float32",
               [&] { gguf.find_strings("floats"); });
  expect_error(ErrorCode::kInvalidFile, "'i8' must be an array of float32, is integer",
               [&] { gguf.find_floats("i8"); });
}

TEST(Gguf, ReversesShapesAndFindsBytes) {
  GgufBuilder file;
  file.add_f32("matrix", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add_f32("vector", {4}, {7, 8, 9, 10});
  const std::string bytes = file.build();
  const Gguf gguf = Gguf::parse(as_bytes(bytes), "two.gguf");
  const FileTensor* matrix = gguf.find_tensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_THAT(matrix->shape, ElementsAre(3, 2));
  EXPECT_EQ(matrix->type, WeightType::kF32);
  ASSERT_EQ(matrix->bytes.size(), 24u);
  float last = 0.0f;
  std::memcpy(&last, gguf.find_tensor("vector")->bytes.data() + 12, 4);
  EXPECT_EQ(last, 10.0f);
  EXPECT_EQ(gguf.find_tensor("absent"), nullptr);
}

TEST(Gguf, LoadsVersion2) {
  GgufBuilder file;
  file.version = 2;
  file.add_f32("x", {2}, {1, 2});
  const std::string bytes = file.build();
  EXPECT_EQ(Gguf::parse(as_bytes(bytes), "v2.gguf").version(), 2);
}

TEST(Gguf, LoadsALastTensorWithoutPadding) {
  GgufBuilder file;
  file.pad_last = false;
  file.add_f32("x", {3}, {1, 2, 3});
  file.add_f32("y", {1}, {4});
  const std::string bytes = file.build();
  ASSERT_NE(bytes.size() % 32, 0u);
  EXPECT_EQ(Gguf::parse(as_bytes(bytes), "unpadded.gguf").find_tensor("y")->bytes.size(), 4u);
}

TEST(Gguf, LoadsUnalignedOffsetsAndGaps) {
  GgufBuilder file;
  file.add_tensor_info("x", {3}, GgufBuilder::kTypeF32, 0);
  file.add_tensor_info("y", {1}, GgufBuilder::kTypeF32, 13);  // a gap of one byte, and unaligned
  file.add_data(17);
  const std::string bytes = file.build();
  const Gguf gguf = Gguf::parse(as_bytes(bytes), "unaligned.gguf");
  EXPECT_EQ(gguf.find_tensor("y")->bytes.data() - gguf.find_tensor("x")->bytes.data(), 13);
}

TEST(Gguf, LoadsAnotherAlignmentAndNoTensorsAtAll) {
  GgufBuilder file;
  file.alignment = 4096;
  file.add_int("general.alignment", 4096);
  file.add_f32("x", {1}, {42});
  const std::string bytes = file.build();
  float value = 0.0f;
  std::memcpy(&value, Gguf::parse(as_bytes(bytes), "aligned.gguf").find_tensor("x")->bytes.data(),
              4);
  EXPECT_EQ(value, 42.0f);
  GgufBuilder empty;
  empty.pad_last = false;
  const std::string empty_bytes = empty.build().substr(0, 24);
  EXPECT_TRUE(Gguf::parse(as_bytes(empty_bytes), "empty.gguf").tensors().empty());
}

TEST(Gguf, LoadsABigVocabulary) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 300'000; ++i) tokens.push_back("token" + std::to_string(i));
  GgufBuilder file;
  file.add_strings("tokenizer.ggml.tokens", tokens);
  const std::string bytes = file.build();
  const Gguf gguf = Gguf::parse(as_bytes(bytes), "vocabulary.gguf");
  const auto found = gguf.find_strings("tokenizer.ggml.tokens");
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->size(), 300'000u);
  EXPECT_EQ(found->back(), "token299999");
  // Views, not copies.
  EXPECT_GE(static_cast<const void*>(found->back().data()), static_cast<const void*>(bytes.data()));
  EXPECT_LT(static_cast<const void*>(found->back().data()),
            static_cast<const void*>(bytes.data() + bytes.size()));
}

TEST(Gguf, ViewsSurviveMovesOfAnOpenedFile) {
  GgufBuilder file;
  file.add_string("general.name", "moved");
  file.add_f32("x", {1}, {5});
  const test::TempDir temp;
  const std::string path = temp.file("moved.gguf");
  std::ofstream(path, std::ios::binary) << file.build();
  Gguf first = Gguf::open(path);
  const Gguf second = std::move(first);
  EXPECT_EQ(second.get_string("general.name"), "moved");
  float value = 0.0f;
  std::memcpy(&value, second.find_tensor("x")->bytes.data(), 4);
  EXPECT_EQ(value, 5.0f);
}

TEST(Gguf, ACutAnywhereIsAnError) {
  GgufBuilder file;
  file.pad_last = false;
  file.add_strings("tokenizer.ggml.tokens", {"a", "bc"});
  file.add_int("general.alignment", 32);
  file.add_f32("x", {4}, {1, 2, 3, 4});
  const std::string bytes = file.build();
  ASSERT_EQ(Gguf::parse(as_bytes(bytes), "whole.gguf").tensors().size(), 1u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly that size, so that a sanitizer sees a read past it.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(Gguf::parse(as_bytes({cut.data(), cut.size()}), "cut.gguf"), Error) << size;
  }
}

}  // namespace
}  // namespace fovea
