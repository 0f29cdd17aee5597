#include "common/storage/safetensors.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::storage {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& header, const std::string& data = "", uint64_t extra_length = 0) {
  const uint64_t length = header.size() + extra_length;
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

TEST(SafetensorsTest, RoundTripKeepsNamesShapesBytesAndMetadata) {
  const std::string eight(8, 'a');
  const std::string twelve(12, 'b');
  const auto file = SerializeSafetensors({{"bool", "BOOL", {8}, eight},
                                          {"w", "F32", {3, 1}, twelve},
                                          {"b", "F32", {2}, eight},
                                          {"scalar", "I64", {}, eight},
                                          {"none", "BF16", {0, 5}, ""}},
                                         {{"kind", "test"}});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto parsed = ParseSafetensors(*file, "x.safetensors");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  // By descending dtype size, then name: as the reference writer lays them out.
  std::vector<std::string> names;
  for (const TensorView& tensor : parsed->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("scalar", "b", "w", "none", "bool"));
  EXPECT_EQ(parsed->metadata, (std::map<std::string, std::string>{{"kind", "test"}}));
  const TensorView w = parsed->Find("w").value();
  EXPECT_EQ(w.dtype, "F32");
  EXPECT_EQ(w.shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(w.bytes, twelve);
  const auto missing = parsed->Find("x");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("scalar, b, w"));
}

TEST(SafetensorsTest, HeaderIsPaddedToEightBytes) {
  const std::string file = SerializeSafetensors({{"x", "U8", {1}, "z"}}, {}).value();
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(file.substr(8, 2), "{\"");
  EXPECT_EQ(file.size(), 8 + length + 1);
}

TEST(SafetensorsTest, WriterRefusesWhatDoesNotFit) {
  EXPECT_EQ(SerializeSafetensors({{"x", "F32", {2}, "1234"}}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeSafetensors({{"x", "F8_E4M3", {1}, "1"}}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeSafetensors({{"x", "U8", {1}, "1"}, {"x", "U8", {1}, "2"}}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeSafetensors({{"__metadata__", "U8", {1}, "1"}}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeSafetensors({{"x", "U8", {-1}, ""}}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, LyingFilesAreRefusedWithTheFileAndWhatIsWrong) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string u8 = tensor("U8", "[4]", "[0,4]");
  struct Case {
    const char* name;
    std::string file;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"empty", "", "at least 8 bytes"},
      {"seven bytes", "1234567", "at least 8 bytes"},
      {"header longer than the file", File(u8, "1234", 100), "header length"},
      {"header length near 2^64", std::string(8, '\xff') + "{}", "header length"},
      {"header of nothing", File(""), "start with '{'"},
      {"header that is a list", File("[]"), "start with '{'"},
      {"header with leading space", File(" {}"), "start with '{'"},
      {"no JSON", File("{\"x\":"), "no JSON"},
      {"JSON and more", File("{}}"), "no JSON"},
      {"not UTF-8", File("{\"\xff\xfe\":1}"), "no JSON"},
      {"repeated tensor", File(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{}})"), "repeated"},
      {"tensor that is a number", File(R"({"x":3})"), "expected an object"},
      {"no dtype", File(R"({"x":{"shape":[],"data_offsets":[0,0]}})"), "dtype"},
      {"no shape", File(R"({"x":{"dtype":"U8","data_offsets":[0,0]}})"), "shape"},
      {"no offsets", File(R"({"x":{"dtype":"U8","shape":[0]}})"), "data_offsets"},
      {"negative size", File(tensor("U8", "[-4]", "[0,4]"), "1234"), "shape"},
      {"fractional size", File(tensor("U8", "[4.5]", "[0,4]"), "1234"), "shape"},
      {"size beyond 2^63", File(tensor("U8", "[18446744073709551615]", "[0,4]"), "1234"), "shape"},
      {"product overflows", File(tensor("F32", "[4294967296,4294967296,4]", "[0,4]"), "1234"), "expected fewer"},
      {"shape too small", File(tensor("U8", "[3]", "[0,4]"), "1234"), "expected 3 bytes"},
      {"dtype too large", File(tensor("F32", "[4]", "[0,4]"), "1234"), "expected 16 bytes"},
      {"offsets reversed", File(tensor("U8", "[4]", "[4,0]"), "1234"), "data_offsets"},
      {"three offsets", File(tensor("U8", "[4]", "[0,4,8]"), "1234"), "data_offsets"},
      {"negative offset", File(tensor("U8", "[4]", "[-4,0]"), "1234"), "data_offsets"},
      {"hole at the start", File(tensor("U8", "[4]", "[1,5]"), "12345"), "from offset 0"},
      {"beyond the end", File(u8, "123"), "at most 3"},
      {"data after the last tensor", File(u8, "12345"), "expected 4 bytes of data"},
      {"overlap",
       File(
           R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
           "123456"),
       "from offset 4"},
      {"hole between",
       File(
           R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
           "12345"),
       "from offset 2"},
      {"metadata that is a list", File(R"({"__metadata__":[]})"), "__metadata__"},
      {"metadata with a number", File(R"({"__metadata__":{"a":1}})"), "__metadata__.a"},
  };
  for (const Case& c : cases) {
    const auto parsed = ParseSafetensors(c.file, "lying.safetensors");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << c.name << ": " << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.says)) << c.name;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("lying.safetensors")) << c.name;
  }
  const auto unknown = ParseSafetensors(File(tensor("F4", "[8]", "[0,4]"), "1234"), "f4");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("'F4'"));
}

TEST(SafetensorsTest, EmptyFileOfNoTensorsIsValid) {
  EXPECT_TRUE(ParseSafetensors(File("{}"), "x").ok());
  EXPECT_TRUE(ParseSafetensors(File("{}      "), "x").ok());
  EXPECT_TRUE(ParseSafetensors(SerializeSafetensors({}, {}).value(), "x").ok());
}

}  // namespace
}  // namespace atl::storage
