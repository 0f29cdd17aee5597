// The secret of an attempt, which its island shows with every call. Whoever grants keeps the secret in memory; what is
// written down is its hash, from which nobody makes the secret again. Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace atl::leases {

// SHA-256 of the secret: 32 bytes. Secrets are random and long, so the hash needs neither salt nor time.
std::string SecretHash(std::string_view secret);

// Whether `hash` is of `secret`. Takes the same time wherever the first difference lies.
bool IsHashOf(std::string_view hash, std::string_view secret);

}  // namespace atl::leases
