// The NCCL transport over the devices of this machine, one rank each; skips where there is none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace atl::transport {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(NcclDeviceTest, RanksSendInARingAndSum) {
  const int devices = *RealNcclApi()->DeviceCount();
  std::vector<std::unique_ptr<Transport>> ranks;
  std::vector<std::string> addresses;
  std::vector<Lane> lanes;
  for (int rank = 0; rank < devices; ++rank) {
    auto made = MakeNcclTransport({.device = rank, .api = RealNcclApi()}, rank, devices, {.attempt = 1, .secret = "s"});
    ASSERT_TRUE(made.ok()) << made.status();
    ranks.push_back(*std::move(made));
    addresses.push_back(ranks.back()->Address());
    if (devices > 1) lanes.push_back({rank, (rank + 1) % devices, 0, LaneKind::kForward});
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < devices; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status connected = ranks[rank]->Connect(addresses, lanes, kPatience);
      ASSERT_TRUE(connected.ok()) << connected;
      double value = rank + 1;
      ASSERT_TRUE(ranks[rank]->AllReduceSum({&value, 1}, kPatience).ok());
      EXPECT_EQ(value, devices * (devices + 1) / 2);
      if (devices == 1) return;
      constexpr size_t kBytes = 1 << 20;
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, 2 * kBytes), cudaSuccess);
      auto* out = static_cast<std::byte*>(memory);
      ASSERT_EQ(cudaMemset(out, rank + 1, kBytes), cudaSuccess);
      auto receive = *ranks[rank]->Receive(lanes[(rank + devices - 1) % devices], {out + kBytes, kBytes});
      auto send = *ranks[rank]->Send(lanes[rank], {out, kBytes});
      EXPECT_TRUE(receive->Wait(kPatience).ok());
      EXPECT_TRUE(send->Wait(kPatience).ok());
      std::vector<unsigned char> host(kBytes);
      ASSERT_EQ(cudaMemcpy(host.data(), out + kBytes, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_EQ(host, std::vector<unsigned char>(kBytes, (rank + devices - 1) % devices + 1));
      cudaFree(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace atl::transport

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto devices = atl::transport::RealNcclApi()->DeviceCount();
  if (!devices.ok()) {
    std::printf("SKIPPED: %s\n", std::string(devices.status().message()).c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
