// Ranks as threads of one process: loopback, and UCX with one instance per thread over each of its transports.
#include "gtest/gtest.h"
#include "tests/contract/transport_contract.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace atl::transport {
namespace {

TransportFactory Ucx(std::string transports) {
  return [transports](int32_t rank, int32_t rank_count, const AttemptIdentity& identity) -> std::unique_ptr<Transport> {
    auto transport = MakeUcxTransport({.transports = transports}, rank, rank_count, identity);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? *std::move(transport) : nullptr;
  };
}

const auto kTransports =
    ::testing::Values(TransportUnderTest{"Loopback", [] { return MakeLoopbackIsland(); }},
                      TransportUnderTest{"Ucx", [] { return MakeThreadIsland(Ucx(UcxOptions().transports)); }},
                      TransportUnderTest{"UcxTcp", [] { return MakeThreadIsland(Ucx("tcp,self")); }});

INSTANTIATE_TEST_SUITE_P(Threads, TransportContract, kTransports, NameOf);
INSTANTIATE_TEST_SUITE_P(Threads, TransportThreadContract, kTransports, NameOf);

}  // namespace
}  // namespace atl::transport
