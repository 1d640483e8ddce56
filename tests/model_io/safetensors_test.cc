#include "fovea/model_io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/model_io/expect_error.h"
#include "tests/model_io/gguf_builder.h"
#include "tests/model_io/safetensors_builder.h"
#include "tests/support/temp_dir.h"

namespace fovea {
namespace {

using testing::ElementsAre;

void expect_refused(const std::string& header, size_t data_bytes, const std::string& part,
                    ErrorCode code = ErrorCode::kInvalidFile) {
  const std::string bytes = safetensors_file(header, std::string(data_bytes, '\0'));
  expect_error(code, part, [&] { Safetensors::parse(as_bytes(bytes), "hostile.safetensors"); });
}

TEST(Safetensors, ReadsEveryDtype) {
  const std::vector<std::pair<const char*, size_t>> dtypes = {
      {"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
      {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};
  SafetensorsBuilder file;
  for (const auto& [dtype, bytes] : dtypes)
    file.add(dtype, dtype, {2, 3}, std::string(6 * bytes, 'x'));
  file.add("scalar", "F32", {}, "abcd");
  file.add("nothing", "F32", {0, 5}, "");
  const std::string bytes = file.build();
  const Safetensors tensors = Safetensors::parse(as_bytes(bytes), "all.safetensors");
  EXPECT_EQ(tensors.tensors().size(), dtypes.size() + 2);
  for (const auto& [dtype, size] : dtypes) {
    const FileTensor* tensor = tensors.find_tensor(dtype);
    ASSERT_NE(tensor, nullptr) << dtype;
    EXPECT_EQ(weight_type_name(tensor->type), dtype);
    EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
    EXPECT_EQ(tensor->bytes.size(), 6 * size);
  }
  EXPECT_EQ(static_cast<char>(tensors.find_tensor("scalar")->bytes[3]), 'd');
  EXPECT_EQ(tensors.find_tensor("absent"), nullptr);
}

TEST(Safetensors, TakesAHeaderInAnyOrderWithMetadataAndSpaces) {
  const std::string bytes =
      safetensors_file(R"({"__metadata__":{"format":"pt"},)"
                       R"("b":{"data_offsets":[4,8],"shape":[1],"dtype":"F32"},)"
                       R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}     )",
                       "01234567");
  const Safetensors tensors = Safetensors::parse(as_bytes(bytes), "order.safetensors");
  EXPECT_EQ(static_cast<char>(tensors.find_tensor("b")->bytes[0]), '4');
  EXPECT_EQ(static_cast<char>(tensors.find_tensor("a")->bytes[0]), '0');
}

TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  expect_error(ErrorCode::kInvalidFile, "is no safetensors file: 7 bytes",
               [] { Safetensors::parse(as_bytes("1234567"), "short.safetensors"); });
  for (const uint64_t size : {uint64_t{3}, uint64_t{100'000'001}, ~uint64_t{0}, ~uint64_t{7}}) {
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += "{}";
    expect_error(ErrorCode::kInvalidFile, "header of " + std::to_string(size) + " bytes",
                 [&] { Safetensors::parse(as_bytes(bytes), "header.safetensors"); });
  }
}

TEST(Safetensors, RefusesBrokenJson) {
  expect_refused("", 0, "broken JSON at byte 1");
  expect_refused("{\"a\":", 0, "broken JSON");
  expect_refused("{} {}", 0, "broken JSON at byte 4");
  expect_refused("[]", 0, "must be an object, is array");
  expect_refused("{\"a\":1e999}", 0, "a number is out of range");
  expect_refused("{\"a\":\"\xff\"}", 0, "broken JSON");
  expect_refused(std::string(1'000'000, '['), 0, "nested deeper than 3 levels");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_refused(objects, 0, "nested deeper than 3 levels");
}

TEST(Safetensors, RefusesMillionsOfValues) {
  std::string numbers = "{\"a\":[0";
  for (int i = 0; i < 5'000'000; ++i) numbers += ",0";
  expect_refused(numbers + "]}", 0, "JSON of more than 4194304 values");
}

TEST(Safetensors, RefusesDuplicateNames) {
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 2, "duplicate key 'a'");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}})", 1,
                 "duplicate key 'shape'");
}

TEST(Safetensors, RefusesTensorsThatAreNone) {
  expect_refused(R"({"a":1})", 0, "expected an object, found number");
  expect_refused(R"({"a":{}})", 0, "'a' has dtype ''", ErrorCode::kUnsupported);
  expect_refused(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1,
                 "'a' has dtype 'F4', which is not supported", ErrorCode::kUnsupported);
  expect_refused(R"({"a":{"dtype":5,"shape":[2],"data_offsets":[0,1]}})", 1,
                 "'dtype' must be a string");
  expect_refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "'a' needs an array 'shape'");
  expect_refused(R"({"a":{"dtype":"U8","shape":3,"data_offsets":[0,1]}})", 1,
                 "'a' needs an array 'shape'");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "'a' needs an array 'data_offsets'");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "has 1 data_offsets");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
                 "has 9 dimensions");
}

TEST(Safetensors, RefusesNumbersOutOfRange) {
  for (const char* dim :
       {"-1", "1.5", "\"1\"", "null", "18446744073709551615", "1e30", "99999999999999999999999"}) {
    expect_refused(
        fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}})", dim), 1,
        "dimension that is no integer");
    expect_refused(
        fmt::format(R"({{"a":{{"dtype":"U8","shape":[1],"data_offsets":[{},1]}}}})", dim), 1,
        "data offset that is no integer");
  }
  expect_refused(R"({"a":{"dtype":"F32","shape":[4398046511105,4194304],"data_offsets":[0,4]}})", 4,
                 "has more than 2^63 bytes");
}

TEST(Safetensors, RefusesRangesThatDoNotFitShapeOrFile) {
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                 "takes 8 bytes, its offsets are [0, 4]");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                 "its offsets are [4, 0]");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3,
                 "'a' ends at 4, past the data section of 3 bytes");
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})",
      4, "past the data section");
  expect_refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                 7, "'b' begins at 3, the one before it ends at 4");
  expect_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                 6, "'b' begins at 4, the one before it ends at 2");
  expect_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3,
                 "data section of 3 bytes, tensors cover 2");
}

class ShardedFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  void write_tensor(const std::string& name, const std::string& tensor) {
    SafetensorsBuilder file;
    file.add_f32(tensor, {1}, {1.0f});
    write(name, file.build());
  }

  const test::TempDir temp_;
  const std::string& folder_ = temp_.path();
};

TEST_F(ShardedFolder, OpensShardsAndSingleFiles) {
  write_tensor("one.safetensors", "a");
  write_tensor("two.safetensors", "b");
  write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const Safetensors both = Safetensors::open_folder(folder_);
  EXPECT_NE(both.find_tensor("a"), nullptr);
  EXPECT_NE(both.find_tensor("b"), nullptr);
  std::filesystem::remove(folder_ + "/model.safetensors.index.json");
  write_tensor("model.safetensors", "c");
  EXPECT_NE(Safetensors::open_folder(folder_).find_tensor("c"), nullptr);
}

TEST_F(ShardedFolder, RefusesIndexesThatDoNotFit) {
  write_tensor("one.safetensors", "a");
  write_tensor("two.safetensors", "a");
  const auto refuse = [&](const std::string& index, const std::string& part) {
    write("model.safetensors.index.json", index);
    expect_error(ErrorCode::kInvalidFile, part, [&] { Safetensors::open_folder(folder_); });
  };
  refuse(R"({"weight_map":{"x":"one.safetensors"}})", "tensor 'x' is in none of the shards");
  refuse(R"({"weight_map":{"a":"none.safetensors"}})", "none.safetensors': No such file");
  refuse(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})",
         "tensor 'a' is in another shard too");
  refuse(R"({"weight_map":[]})", "'weight_map' is missing");
  refuse(R"({"weight_map":{"a":7}})", "the shard of 'a' must be a string");
  refuse("{", "broken JSON");
}

TEST_F(ShardedFolder, RefusesShardsOutsideTheFolder) {
  for (const char* shard :
       {"../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "..", "",
        ".hidden.safetensors", "one.bin", "one\\\\two.safetensors", "one\\u0000.safetensors"}) {
    write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", shard));
    expect_error(ErrorCode::kInvalidFile, "must be the name of a .safetensors file",
                 [&] { Safetensors::open_folder(folder_); });
  }
}

TEST(Safetensors, ACutAnywhereIsAnError) {
  SafetensorsBuilder file;
  file.add_f32("a", {2}, {1, 2});
  const std::string bytes = file.build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(Safetensors::parse(as_bytes({cut.data(), cut.size()}), "cut.safetensors"), Error)
        << size;
  }
}

}  // namespace
}  // namespace fovea
