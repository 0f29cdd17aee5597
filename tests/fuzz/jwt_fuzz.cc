// JSON Web Tokens and the keys that verify them. Tokens come as header, claims and signature on three lines, so that
// changes reach what lies below the encoding; the bytes as they are stand for a whole token, too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/auth/jwt.h"
#include "tests/fuzz/short_error.h"

namespace {

using atl::rpc::JwtIssuer;

// Public keys whose private keys were not kept.
constexpr char kEcKey[] =
    "-----BEGIN PUBLIC KEY-----\n"
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEY7C4U8RnQ/HPWjAO5woh+hdfV5IJ\n"
    "by0aKR/ONzM8vua7FADG2F12ipldVQwJqfD/2PgY4LPwLsWVowi4vx0Izg==\n"
    "-----END PUBLIC KEY-----\n";
constexpr char kRsaKey[] =
    "-----BEGIN PUBLIC KEY-----\n"
    "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtjuJ/lm4YXHrMekoQAbM\n"
    "AA5NBrb3BC0/5nXNl9F5TCo9ZMITox9/g20q6Mj1lrSzl/kmETC6B2On1VvJWcnU\n"
    "wlgNIZPkdfK2GUl09zHnPDga6uZSOWXWAFlIX6ZdgMO2566ziJZiA3/Z4G8Tdgcn\n"
    "iQP6oDzfOew1OzdfWXYlXoI+thlA7MW7f+S2Yj/oOH7nEm/ig5zuPQKgXe0xvgvg\n"
    "Zj3N/pjB+NSwjXsqhL8LsRXe7vW3/90zXMSFNCZZRRvTYF6BvDMGMbXvMv4G+Z86\n"
    "keYjmI29hmeIRG/Lp6u3O2qa6w4thIw7Ie4PUHo2wYOnLdV6Dx1AreVANVdlfRt/\n"
    "YwIDAQAB\n"
    "-----END PUBLIC KEY-----\n";

const std::vector<JwtIssuer>& Issuers() {
  static const std::vector<JwtIssuer> kIssuers = [] {
    JwtIssuer issuer{.issuer = "i", .audience = "a"};
    issuer.keys = atl::rpc::ParseJwtKeys(std::string(kEcKey) + kRsaKey, "keys").value();
    issuer.roles = atl::rpc::RoleSet::All();
    issuer.islands = {"*"};
    return std::vector<JwtIssuer>{issuer};
  }();
  return kIssuers;
}

std::string Encoded(std::string_view bytes) {
  std::string text = absl::WebSafeBase64Escape(absl::string_view(bytes.data(), bytes.size()));
  text.erase(text.find_last_not_of('=') + 1);
  return text;
}

void Verify(std::string_view token) {
  const auto claims = atl::rpc::VerifyJwt(token, Issuers(), absl::FromUnixSeconds(1'700'000'060));
  // No input can be signed with these keys.
  if (claims.ok()) std::abort();
  atl::RequireShortError(claims.status());
  // The deny list knows a token by this part, which no change of the signature may change.
  if (atl::rpc::LooksLikeJwt(token) && token.substr(0, token.find_last_of('.')) != atl::rpc::SignedPart(token)) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Verify(text);
  const size_t first = text.find('\n');
  const size_t second = first == std::string_view::npos ? first : text.find('\n', first + 1);
  if (second != std::string_view::npos) {
    Verify(Encoded(text.substr(0, first)) + "." + Encoded(text.substr(first + 1, second - first - 1)) + "." +
           Encoded(text.substr(second + 1)));
  }
  const auto keys = atl::rpc::ParseJwtKeys(text, "fuzz");
  if (!keys.ok()) atl::RequireShortError(keys.status());
  return 0;
}
