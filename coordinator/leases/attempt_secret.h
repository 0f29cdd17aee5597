// The secret of an attempt, which its island sends with every call. The granting process keeps the secret in memory and
// stores only its hash, from which the secret cannot be computed. Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace atl::leases {

// SHA-256 of the secret: 32 bytes. Secrets are random and long, so the hash needs neither salt nor time.
std::string SecretHash(std::string_view secret);

// Whether `hash` is the hash of `secret`. Compares in constant time.
bool IsHashOf(std::string_view hash, std::string_view secret);

}  // namespace atl::leases
