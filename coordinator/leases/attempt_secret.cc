#include "coordinator/leases/attempt_secret.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace atl::leases {

std::string SecretHash(std::string_view secret) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

bool IsHashOf(std::string_view hash, std::string_view secret) {
  const std::string expected = SecretHash(secret);
  return hash.size() == expected.size() && CRYPTO_memcmp(hash.data(), expected.data(), hash.size()) == 0;
}

}  // namespace atl::leases
