// JSON Web Tokens: RS256 and ES256, valid for an hour at most. Pure.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/roles.h"

namespace atl::rpc {

inline constexpr size_t kMaxJwtBytes = 8 * 1024;
inline constexpr absl::Duration kMaxJwtLifetime = absl::Hours(1);
// Largest difference between the clocks of issuer and server.
inline constexpr absl::Duration kJwtLeeway = absl::Seconds(30);

// A public key that verifies tokens of one algorithm.
struct JwtKey {
  std::string id;         // "kid"; empty: none, it may verify any token
  std::string algorithm;  // "RS256" or "ES256"
  std::shared_ptr<EVP_PKEY> key;
};

// Reads keys from PEM ("BEGIN PUBLIC KEY", one or more) or from a JSON Web Key Set. RSA keys have at least 2048 bits,
// EC keys are on P-256. INVALID_ARGUMENT, reason INVALID_JWT_KEYS.
absl::StatusOr<std::vector<JwtKey>> ParseJwtKeys(std::string_view text, std::string_view file_name);

// An issuer whose tokens are accepted, and the most that they may grant.
struct JwtIssuer {
  std::string issuer;    // "iss"
  std::string audience;  // has to be in "aud"
  std::vector<JwtKey> keys;
  RoleSet roles;
  std::vector<std::string> islands;         // patterns; a token may name only islands that one of them covers
  std::vector<std::string> models = {"*"};  // likewise
};

struct JwtClaims {
  std::string subject;               // "sub"
  size_t issuer = 0;                 // which of the issuers
  std::string id;                    // "jti"; empty: none
  RoleSet roles;                     // claim "roles", cut to the issuer's
  std::vector<std::string> islands;  // claim "islands"; the issuer's where there is none
  std::vector<std::string> models;   // claim "models", likewise
  absl::Time expires;
};

// Returns whether a bearer token has the form of a JWT: three parts between two dots.
bool LooksLikeJwt(std::string_view token);

// Returns the part of a token that its issuer signed: header and claims. The holder of a token can rewrite its
// signature in several ways, but not this part.
std::string_view SignedPart(std::string_view token);

// UNAUTHENTICATED with reason TOKEN_EXPIRED or TOKEN_INVALID. The header's algorithm is checked first, so that neither
// "none" nor HS256 over a public key is accepted.
absl::StatusOr<JwtClaims> VerifyJwt(std::string_view token, std::span<const JwtIssuer> issuers, absl::Time now);

}  // namespace atl::rpc
