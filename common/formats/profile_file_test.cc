#include "common/formats/profile_file.h"

#include <string>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::storage {
namespace {

using ::testing::HasSubstr;

planner::Profile SomeProfile() {
  planner::Profile profile{.key = "dit-2", .parameter_bytes = {100, 2.5e9}};
  profile.layers[8] = {{.forward_seconds = 0.1,
                        .input_gradient_seconds = 0.11,
                        .weight_gradient_seconds = 1.0 / 3,
                        .backward_seconds = 0.2,
                        .kept_bytes = 1e6,
                        .weight_gradient_bytes = 9e5,
                        .forward_transient_bytes = 5,
                        .backward_transient_bytes = 6,
                        .output_bytes = 7},
                       {.forward_seconds = 0.4}};
  profile.layers[16] = {{.forward_seconds = 0.2}, {.forward_seconds = 0.8}};
  profile.frozen = {{.name = "encoder", .layers = {{.seconds = {{4, 0.5}, {8, 0.9}}, .input_bytes = 3}}},
                    {.name = "control", .reads = {0}, .layers = {{.seconds = {{4, 0.1}}}}}};
  profile.optimizer_seconds_per_byte = 1e-9;
  profile.transfer_latency_seconds = 4e-5;
  profile.transfer_bytes_per_second = 5.3e9;
  profile.rank_slowdown = {0.98, 1.02};
  return profile;
}

// As a person would leave it who edits the file.
std::string Unsealed(std::string text) {
  return text.erase(text.rfind(",\n  \"sha256\"")) + "\n}\n";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ProfileFileTest, ReadsBackWhatItWrote) {
  const auto read = ParseProfile(ToJson(SomeProfile()), "p.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SomeProfile());
}

TEST(ProfileFileTest, RefusesWhatNoMeasurementSays) {
  const std::string text = Unsealed(ToJson(SomeProfile()));
  struct Case {
    std::string from, to, message;
  };
  for (const Case& bad : std::vector<Case>{
           {"\"forward_seconds\": 0.1", "\"forward_seconds\": -0.1", "layer 0, micro-batches of 8"},
           {"\"kept_bytes\": 1000000.0", "\"kept_bytes\": 8", "weight_gradient_bytes of at most kept_bytes"},
           {"\"kept_bytes\": 1000000.0", "\"kept_bytes\": null", "micro_batches[0].layers[0].kept_bytes"},
           {"\"samples\": 16", "\"samples\": 8", "micro_batches[1].samples: expected each size once"},
           {"\"samples\": 16", "\"samples\": 0", "micro_batches[1].samples: expected an integer from 1"},
           {"    100.0,\n", "", "parameter_bytes of 2 layers"},
           {"        0\n", "        1\n", "frozen component 1 (control)"},
           {"        0\n", "        9999999999\n", "frozen component 1 (control)"},
           {"0.98", "0", "slowdown above 0"},
       }) {
    const auto read = ParseProfile(Replaced(text, bad.from, bad.to), "p.json");
    EXPECT_EQ(ErrorReason(read.status()), "FILE_MALFORMED") << bad.to;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(bad.message));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("p.json"));
  }
  EXPECT_EQ(ErrorReason(ParseProfile(Replaced(text, "\"format\": 1", "\"format\": 2"), "p.json").status()),
            "FORMAT_UNSUPPORTED");
  EXPECT_EQ(ErrorReason(ParseProfile("[]", "p.json").status()), "FILE_MALFORMED");
}

TEST(ProfileFileTest, AProfileWithoutMeasurementsIsNone) {
  const auto read = ParseProfile(ToJson(planner::Profile{.key = "k"}), "p.json");
  EXPECT_EQ(ErrorReason(read.status()), "FILE_MALFORMED");
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("at least one layer"));
}

}  // namespace
}  // namespace atl::storage
