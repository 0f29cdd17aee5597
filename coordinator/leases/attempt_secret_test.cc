#include "coordinator/leases/attempt_secret.h"

#include "gtest/gtest.h"

namespace atl::leases {
namespace {

TEST(AttemptSecretTest, TheHashIsSha256) {
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(SecretHash("abc"),
            std::string("\xba\x78\x16\xbf\x8f\x01\xcf\xea\x41\x41\x40\xde\x5d\xae\x22\x23\xb0\x03\x61\xa3\x96\x17\x7a"
                        "\x9c\xb4\x10\xff\x61\xf2\x00\x15\xad",
                        32));
}

TEST(AttemptSecretTest, OnlyTheSecretItselfPasses) {
  const std::string secret("s\0cret", 6);
  const std::string hash = SecretHash(secret);
  struct Case {
    const char* what;
    std::string hash;
    std::string secret;
    bool passes;
  };
  const Case cases[] = {
      {"the secret", hash, secret, true},
      {"another", hash, "guess", false},
      {"its start", hash, secret.substr(0, 1), false},
      {"its hash", hash, hash, false},
      {"nothing", hash, "", false},
      {"a hash that was cut", hash.substr(0, 31), secret, false},
      {"no hash", "", secret, false},
      {"nothing for no hash", "", "", false},
      {"the secret in place of its hash", secret, secret, false},
  };
  for (const Case& c : cases) EXPECT_EQ(IsHashOf(c.hash, c.secret), c.passes) << c.what;
}

}  // namespace
}  // namespace atl::leases
