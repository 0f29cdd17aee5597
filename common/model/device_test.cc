#include "common/model/device.h"

#include "common/base/errors.h"
#include "common/model/fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::model {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(OpenDevicesTest, TheProcessorIsOneDevice) {
  const auto devices = OpenDevices("cpu");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 1u);
  EXPECT_EQ(devices->front().torch_name, "cpu");
}

TEST(OpenDevicesTest, PartsOfTheProcessorAreDevicesOfOneArithmetic) {
  const auto devices = OpenDevices("cpu:0,cpu:3");
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ(devices->front().label, "cpu:0");
  EXPECT_EQ(devices->back().label, "cpu:3");
  for (const DeviceInfo& device : *devices) EXPECT_EQ(device.torch_name, "cpu");
  EXPECT_EQ(NumericsFingerprint(devices->front(), 1, 2), NumericsFingerprint(devices->back(), 1, 2));
}

TEST(OpenDevicesTest, WhatIsNoDeviceIsNamed) {
  for (const std::string wrong : {"tpu", "", "cpu:", "cpu:x", "cuda:-1", "cuda:1x", "cpu:99999999999"}) {
    const absl::Status status = OpenDevices(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(ErrorReason(status), "DEVICE_UNKNOWN") << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("found '" + wrong + "'"));
  }
}

TEST(OpenDevicesTest, ListsThatContradictThemselvesAreRefused) {
  for (const std::string wrong : {"cpu:0,cpu:0", "cuda:1,cuda:1", "cpu,cpu:1", "cuda,cuda:0", "cpu:0,cuda:0"}) {
    EXPECT_EQ(ErrorReason(OpenDevices(wrong).status()), "DEVICES_CONFLICT") << wrong;
  }
}

TEST(OpenDevicesTest, CudaGivesDevicesOrSaysWhatIsMissing) {
  const auto devices = OpenDevices("cuda");
  if (devices.ok()) {
    ASSERT_FALSE(devices->empty());
    EXPECT_EQ(devices->front().torch_name, "cuda:0");
    EXPECT_GT(devices->front().memory_bytes, 0);
    const absl::Status beyond = OpenDevices("cuda:" + std::to_string(devices->size())).status();
    EXPECT_EQ(ErrorReason(beyond), "DEVICE_UNAVAILABLE") << beyond;
  } else {
    EXPECT_EQ(ErrorReason(devices.status()), "DEVICE_UNAVAILABLE") << devices.status();
  }
}

TEST(NumericsFingerprintTest, IsOneForOneMachineAndTellsHardwareThreadsAndShapeApart) {
  const DeviceInfo device{.torch_name = "cpu", .name = "A/B processor"};
  const std::string fingerprint = NumericsFingerprint(device, 1, 2);
  EXPECT_EQ(fingerprint, NumericsFingerprint(device, 1, 2));
  EXPECT_THAT(fingerprint, StartsWith("atoll-"));
  EXPECT_THAT(fingerprint, HasSubstr("/A B processor/t1/r2"));
  EXPECT_NE(fingerprint, NumericsFingerprint({.torch_name = "cpu", .name = "C"}, 1, 2));
  EXPECT_NE(fingerprint, NumericsFingerprint(device, 2, 2));
  EXPECT_NE(fingerprint, NumericsFingerprint(device, 1, 4));
}

}  // namespace
}  // namespace atl::model
