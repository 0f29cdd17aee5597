#include "common/base/address.h"

#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(AddressTest, OnlyThisMachinesOwnAddressesAreLoopback) {
  for (const char* address : {"127.0.0.1:0", "127.3.2.1:80", "localhost:7000", "[::1]:7000"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:80", "[::]:80", "10.0.0.1:80", "127.example.org:80", "localhost.example.org:80",
                              ":80", "[::ffff:10.0.0.1]:80", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(AddressTest, PortsToListenAtFitTheirNumber) {
  for (const char* address : {"127.0.0.1:0", "[::]:65535", "localhost:7000", ":80"}) {
    EXPECT_TRUE(HasListenPort(address)) << address;
  }
  for (const char* address : {"", "here", "8080", "a:", "a:65536", "a:84236", "a:99999999999999999999", "a:-1", "a:+1",
                              "a:1s", "a: 1", "[::1]"}) {
    EXPECT_FALSE(HasListenPort(address)) << address;
  }
}

TEST(AddressTest, AListIsOneOfAddresses) {
  EXPECT_EQ(SplitAddresses("a:1"), std::vector<std::string>{"a:1"});
  EXPECT_EQ(SplitAddresses("a:1,[::1]:2"), (std::vector<std::string>{"a:1", "[::1]:2"}));
  for (const char* list : {"a:1", "a:1,b:2", "[::1]:2,b:2,c:3", "dns:///a:1"}) EXPECT_TRUE(IsAddressList(list)) << list;
  for (const char* list : {"", "a:1,", ",a:1", "a:1,b", "a:1, b:2", "dns:///a", "dns:///a:1,b:2"})
    EXPECT_FALSE(IsAddressList(list)) << list;
}

}  // namespace
}  // namespace atl
