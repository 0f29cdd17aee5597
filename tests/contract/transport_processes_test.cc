// Ranks as forked processes: UCX over shared memory and over TCP alone. A binary of its own, because a process that has
// used UCX must not be forked.
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
    ::testing::Values(TransportUnderTest{"Ucx", [] { return MakeProcessIsland(Ucx(UcxOptions().transports)); }},
                      TransportUnderTest{"UcxTcp", [] { return MakeProcessIsland(Ucx("tcp,self")); }});

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract, kTransports, NameOf);
INSTANTIATE_TEST_SUITE_P(Processes, TransportProcessContract, kTransports, NameOf);

}  // namespace
}  // namespace atl::transport
