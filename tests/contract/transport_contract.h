// The contract of worker/transport/transport.h as one suite of tests; every implementation instantiates it.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/contract/transport_island.h"

namespace atl::transport {

struct TransportUnderTest {
  std::string name;
  std::function<std::unique_ptr<Island>()> make;
};

inline void PrintTo(const TransportUnderTest& transport, std::ostream* out) {
  *out << transport.name;
}

class TransportContract : public ::testing::TestWithParam<TransportUnderTest> {
 protected:
  void SetUp() override { island_ = GetParam().make(); }
  std::unique_ptr<Island> island_;
};

// Cases in which a rank is killed, and cases that count the resources left in the process.
class TransportProcessContract : public TransportContract {};
class TransportThreadContract : public TransportContract {};

inline std::string NameOf(const ::testing::TestParamInfo<TransportUnderTest>& info) {
  return info.param.name;
}

}  // namespace atl::transport
