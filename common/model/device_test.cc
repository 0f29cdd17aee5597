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

TEST(OpenDevicesTest, AnUnknownKindIsNamed) {
  const absl::Status status = OpenDevices("tpu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), "DEVICE_UNKNOWN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("found 'tpu'"));
}

TEST(OpenDevicesTest, CudaGivesDevicesOrSaysWhatIsMissing) {
  const auto devices = OpenDevices("cuda");
  if (devices.ok()) {
    ASSERT_FALSE(devices->empty());
    EXPECT_EQ(devices->front().torch_name, "cuda:0");
    EXPECT_GT(devices->front().memory_bytes, 0);
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
