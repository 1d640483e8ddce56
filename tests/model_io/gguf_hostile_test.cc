// Files made to break a loader. Each kind once opened a hole in another one (CVE-2024-21802,
// CVE-2025-53630, CVE-2026-27940, CVE-2026-33298 and their relatives); here each is one clear
// error.
#include <gtest/gtest.h>

#include <limits>

#include "fovea/model_io/gguf.h"
#include "tests/model_io/expect_error.h"
#include "tests/model_io/gguf_builder.h"

namespace fovea {
namespace {

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

void expect_refused(const GgufBuilder& file, const std::string& part,
                    ErrorCode code = ErrorCode::kInvalidFile) {
  const std::string bytes = file.build();
  expect_error(code, part, [&] { Gguf::parse(as_bytes(bytes), "hostile.gguf"); });
}

TEST(GgufHostile, WrongMagicAndVersions) {
  expect_error(ErrorCode::kInvalidFile, "is not a GGUF file",
               [] { Gguf::parse(as_bytes("GGML....................."), "hostile.gguf"); });
  expect_error(ErrorCode::kInvalidFile, "is not a GGUF file",
               [] { Gguf::parse({}, "hostile.gguf"); });
  for (const uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    GgufBuilder file;
    file.version = version;
    expect_refused(file, "version " + std::to_string(version), ErrorCode::kUnsupported);
  }
}

TEST(GgufHostile, AbsurdCounts) {
  for (const int64_t count : {int64_t{1} << 16, int64_t{1} << 40, int64_t{-1}}) {
    GgufBuilder tensors;
    tensors.extra_tensor_count = count;
    expect_refused(tensors, "tensor count counts");
    GgufBuilder entries;
    entries.extra_entry_count = count;
    expect_refused(entries, "metadata count counts");
  }
}

TEST(GgufHostile, DimensionsWhoseProductWraps) {
  for (const auto& dims : std::vector<std::vector<uint64_t>>{
           {uint64_t{1} << 32, uint64_t{1} << 32},
           {(uint64_t{1} << 42) + 1, uint64_t{1} << 22},
           {uint64_t{1} << 62, 4},
           {4, (uint64_t{1} << 30) - 1, (uint64_t{1} << 30) + 1, 4},
           {uint64_t{1} << 61, 1}}) {  // 2^61 elements fit, their bytes do not
    GgufBuilder file;
    file.add_tensor_info("wide", dims, GgufBuilder::kTypeF32, 0);
    file.add_data(64);
    const bool elements_fit = dims[0] == uint64_t{1} << 61;
    expect_refused(file, elements_fit ? "has more than 2^63 bytes" : "'wide' of shape");
  }
}

TEST(GgufHostile, ASizeThatWrapsToZeroWhenPadded) {
  GgufBuilder file;  // 2^64 - 16 bytes
  file.add_tensor_info("pad", {4, (uint64_t{1} << 30) - 1, (uint64_t{1} << 30) + 1},
                       GgufBuilder::kTypeF32, 0);
  file.add_data(64);
  expect_refused(file, "has more than 2^63 bytes");
}

TEST(GgufHostile, DimensionsOutOfRange) {
  for (const uint64_t dim : {uint64_t{0}, kHuge, uint64_t{1} << 63}) {
    GgufBuilder file;
    file.add_tensor_info("x", {dim}, GgufBuilder::kTypeF32, 0);
    file.add_data(64);
    expect_refused(file, "'x' has a dimension of " + std::to_string(dim));
  }
  GgufBuilder file;
  file.add_tensor_info("x", {1, 1, 1, 1, 1}, GgufBuilder::kTypeF32, 0);
  file.add_data(64);
  expect_refused(file, "'x' has 5 dimensions");
}

TEST(GgufHostile, TensorLargerThanTheFile) {
  GgufBuilder file;
  file.add_tensor_info("x", {(uint64_t{1} << 42) + 1}, GgufBuilder::kTypeF32, 0);
  file.add_data(64);
  expect_refused(file, "'x' ends past the file: offset 0, 17592186044420 bytes");
}

TEST(GgufHostile, OffsetsPastTheEnd) {
  for (const uint64_t offset : {uint64_t{61}, uint64_t{1} << 40, kHuge, kHuge - 3}) {
    GgufBuilder file;
    file.add_tensor_info("x", {1}, GgufBuilder::kTypeF32, offset);
    file.add_data(64);
    expect_refused(file, "'x' ends past the file: offset " + std::to_string(offset));
  }
}

TEST(GgufHostile, OverlappingAndUnorderedOffsets) {
  GgufBuilder overlapping;
  overlapping.add_tensor_info("x", {8}, GgufBuilder::kTypeF32, 0);
  overlapping.add_tensor_info("y", {8}, GgufBuilder::kTypeF32, 28);
  overlapping.add_data(128);
  expect_refused(overlapping, "'y' begins at offset 28, inside or before");
  GgufBuilder unordered;
  unordered.add_tensor_info("x", {8}, GgufBuilder::kTypeF32, 32);
  unordered.add_tensor_info("y", {8}, GgufBuilder::kTypeF32, 0);
  unordered.add_data(128);
  expect_refused(unordered, "'y' begins at offset 0, inside or before");
}

TEST(GgufHostile, StringAndArrayLengthsPastTheFile) {
  for (const uint64_t length : {uint64_t{1000}, uint64_t{1} << 40, kHuge}) {
    std::string size;
    GgufBuilder::put(size, length);
    GgufBuilder text;
    text.add_raw("text", GgufBuilder::kString, size + "abc");
    expect_refused(text, "text counts " + std::to_string(length));
    for (const uint32_t type : {GgufBuilder::kString, GgufBuilder::kUint8, GgufBuilder::kUint64}) {
      GgufBuilder array;
      array.add_array("array", type, length, "0123456789abcdef");
      expect_refused(array, "array counts " + std::to_string(length));
    }
  }
  GgufBuilder wrapping;  // count x 8 bytes is 0 in 64 bits
  wrapping.add_array("array", GgufBuilder::kUint64, uint64_t{1} << 61, "01234567");
  expect_refused(wrapping, "array counts");
  GgufBuilder inside;  // an element that passes the end
  std::string element;
  GgufBuilder::put(element, kHuge);
  inside.add_array("array", GgufBuilder::kString, 1, element);
  expect_refused(inside, "array counts");
}

TEST(GgufHostile, LongKeysAndTensorNames) {
  GgufBuilder key;
  key.add_int(std::string(70'000, 'k'), 1);
  expect_refused(key, "metadata key counts 70000");
  GgufBuilder name;
  name.add_tensor_info(std::string(70'000, 'n'), {1}, GgufBuilder::kTypeF32, 0);
  name.add_data(64);
  expect_refused(name, "tensor name counts 70000");
}

TEST(GgufHostile, NestedArrays) {
  std::string nest;
  for (int depth = 0; depth < 10'000; ++depth) {
    GgufBuilder::put(nest, GgufBuilder::kArray);
    GgufBuilder::put<uint64_t>(nest, 1);
  }
  GgufBuilder file;
  file.add_raw("nest", GgufBuilder::kArray, nest);
  expect_refused(file, "'nest' is an array of arrays");
}

TEST(GgufHostile, Alignments) {
  for (const uint32_t alignment : {0u, 3u, 33u, 1u << 31}) {
    GgufBuilder file;
    file.add_int("general.alignment", alignment);
    expect_refused(file, "must be a power of two");
  }
  GgufBuilder text;
  text.add_string("general.alignment", "32");
  expect_refused(text, "'general.alignment' must be an integer, is string");
  GgufBuilder negative;
  negative.add_number<int32_t>("general.alignment", GgufBuilder::kInt32, -32);
  expect_refused(negative, "is -32");
  GgufBuilder wide;
  wide.add_number<uint64_t>("general.alignment", GgufBuilder::kUint64, kHuge);
  expect_refused(wide, "below 2^63");
}

TEST(GgufHostile, UnknownValueTypes) {
  for (const uint32_t type : {13u, 255u, 0xffffffffu}) {
    GgufBuilder value;
    value.add_int("before", 1);
    value.add_raw("x", type, "01234567");
    expect_refused(value, "'x' has unknown type " + std::to_string(type));
    GgufBuilder array;
    array.add_array("x", type, 1, "01234567");
    expect_refused(array, "'x' has unknown type " + std::to_string(type));
  }
  GgufBuilder flag;
  flag.add_number<uint8_t>("flag", GgufBuilder::kBool, 2);
  expect_refused(flag, "'flag' holds a bool of value 2");
  GgufBuilder flags;
  flags.add_array("flags", GgufBuilder::kBool, 2, "\x01\xff");
  expect_refused(flags, "'flags' holds a bool of value 255");
}

TEST(GgufHostile, UnknownTensorTypesAreNamed) {
  // 4 and 5 were withdrawn; 10 and 11 exist (Q2_K, Q3_K) but not here; the last is -1.
  for (const uint32_t type : {4u, 5u, 10u, 11u, 1000u, 0xffffffffu}) {
    GgufBuilder file;
    file.add_tensor_info("blk.0.weight", {256}, type, 0);
    file.add_data(1024);
    expect_refused(file, "tensor 'blk.0.weight' has type number " + std::to_string(type),
                   ErrorCode::kUnsupported);
  }
}

TEST(GgufHostile, RowsThatDoNotFillPacks) {
  GgufBuilder file;
  file.add_tensor_info("x", {33, 32}, GgufBuilder::kTypeQ8_0, 0);
  file.add_data(4096);
  expect_refused(file, "'x' has rows of 33, Q8_0 needs a multiple of 32");
}

TEST(GgufHostile, DuplicateKeysAndTensors) {
  GgufBuilder keys;
  keys.add_int("general.alignment", 32);
  keys.add_int("general.alignment", 64);
  expect_refused(keys, "duplicate metadata key 'general.alignment'");
  GgufBuilder tensors;
  tensors.add_f32("x", {1}, {1});
  tensors.add_f32("x", {1}, {2});
  expect_refused(tensors, "duplicate tensor name 'x'");
}

TEST(GgufHostile, NamesInMessagesAreShortAndPrintable) {
  GgufBuilder file;
  file.add_tensor_info("\n\x1b[31m" + std::string(1000, 'x'), {1}, 77, 0);
  expect_refused(file, "tensor '??[31mxxx", ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
