#include "worker/trainer/memory_meter.h"

#include <ATen/ATen.h>

#include "gtest/gtest.h"

namespace atl::trainer {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

at::Tensor Megabytes(int64_t count) {
  return at::empty({count * kMegabyte}, at::kByte);
}

TEST(MemoryMeterTest, FreesLowerTheLiveBytesAndNotThePeak) {
  MemoryMeter meter;
  at::Tensor kept = Megabytes(2);
  {
    const at::Tensor gone = Megabytes(3);
    EXPECT_EQ(meter.live_bytes(), 5 * kMegabyte);
  }
  EXPECT_EQ(meter.live_bytes(), 2 * kMegabyte);
  EXPECT_EQ(meter.peak_bytes(), 5 * kMegabyte);
  meter.ResetPeak();
  EXPECT_EQ(meter.peak_bytes(), 2 * kMegabyte);
  kept.reset();
  EXPECT_EQ(meter.live_bytes(), 0);
}

TEST(MemoryMeterTest, WhatWasAllocatedBeforeIsNotCounted) {
  at::Tensor before = Megabytes(4);
  MemoryMeter meter;
  before.reset();
  EXPECT_EQ(meter.live_bytes(), 0);
  const at::Tensor view = Megabytes(1);
  const at::Tensor same = view.slice(0, 0, 10);
  EXPECT_EQ(meter.live_bytes(), kMegabyte);
}

TEST(MemoryMeterTest, TheGraphOfABackwardIsFreedByIt) {
  MemoryMeter meter;
  at::Tensor x = at::ones({kMegabyte / 4}).requires_grad_(true);
  at::Tensor sum = (x * x).exp().sum();
  const int64_t with_graph = meter.live_bytes();
  EXPECT_GE(with_graph, 2 * kMegabyte);
  sum.backward();
  sum.reset();
  EXPECT_LT(meter.live_bytes(), with_graph + kMegabyte);
  x.reset();
  EXPECT_EQ(meter.live_bytes(), 0);
}

}  // namespace
}  // namespace atl::trainer
