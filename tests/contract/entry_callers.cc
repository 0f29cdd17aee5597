#include "tests/contract/entry_callers.h"

#include <unistd.h>

#include <fstream>

#include "absl/time/clock.h"
#include "fmt/format.h"

namespace atl::entry {
namespace {

constexpr std::string_view kIssuer = "https://issuer.example.org";
constexpr std::string_view kAudience = "atoll";

std::string Jwt(const testing::SigningKey& key, const std::string& role, const std::string& id, absl::Time issued) {
  return testing::SignJwt(
      key, R"({"alg":"ES256","typ":"JWT"})",
      fmt::format(R"({{"iss":"{}","aud":"{}","sub":"{}","jti":"{}","roles":["{}"],"iat":{},"exp":{}}})", kIssuer,
                  kAudience, role, id, role, absl::ToUnixSeconds(issued), absl::ToUnixSeconds(issued) + 1800));
}

}  // namespace

Callers::Callers() : folder_(std::filesystem::temp_directory_path() / fmt::format("entry.{}", getpid())) {
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  const testing::SigningKey key = testing::MakeEcSigningKey();
  const testing::SigningKey other_key = testing::MakeEcSigningKey();
  std::ofstream(folder_ / "issuer.pem") << key.public_pem;
  std::ofstream principals(folder_ / "principals.yaml");
  std::ofstream denied(folder_ / "denied");
  principals << "jwt:\n- issuer: " << kIssuer << "\n  audience: " << kAudience
             << "\n  keys: issuer.pem\n  subject_prefix: \"jwt:\"\n  islands: [a]\n  roles: ["
             << fmt::format("{}", fmt::join(kRoles, ", ")) << "]\nprincipals:\n";
  const absl::Time now = absl::Now();
  credentials_.push_back({.state = State::kNone, .name = "no credential"});
  for (const std::string& role : kRoles) {
    const auto add = [&](State state, Kind kind, const std::string& bearer, const char* name) {
      credentials_.push_back(
          {.role = role, .state = state, .kind = kind, .bearer = bearer, .name = fmt::format("{}, {}", role, name)});
    };
    const auto token = [&](State state, const char* name, const char* more) {
      const rpc::NewToken made = rpc::MakeToken();
      add(state, Kind::kToken, made.token, name);
      if (state == State::kWrong) return;
      principals << fmt::format("- {{subject: {}-{}, roles: [{}], islands: [a], token_sha256: {}{}}}\n", role,
                                static_cast<int>(state), role, made.sha256, more);
      if (state == State::kRevoked) denied << "token " << made.sha256 << "\n";
    };
    token(State::kWrong, "wrong token", "");
    token(State::kExpired, "expired token", ", expires: 2023-01-01T00:00:00Z");
    token(State::kRevoked, "revoked token", "");
    token(State::kRight, "right token", "");
    add(State::kWrong, Kind::kJwt, Jwt(other_key, role, role + "-wrong", now), "JWT of another issuer's key");
    add(State::kExpired, Kind::kJwt, Jwt(key, role, role + "-expired", now - absl::Hours(1)), "expired JWT");
    add(State::kRevoked, Kind::kJwt, Jwt(key, role, role + "-revoked", now), "revoked JWT");
    denied << "jti " << role << "-revoked\n";
    add(State::kRight, Kind::kJwt, Jwt(key, role, role + "-right", now), "right JWT");
  }
}

Callers::~Callers() {
  std::filesystem::remove_all(folder_);
}

rpc::SecurityOptions Callers::security() const {
  rpc::SecurityOptions options;
  options.principals = folder_ / "principals.yaml";
  options.deny_list = folder_ / "denied";
  return options;
}

std::string RefusalOf(const Credential& credential) {
  switch (credential.state) {
    case State::kNone:
      return "CREDENTIAL_REQUIRED";
    case State::kWrong:
      return credential.kind == Kind::kToken ? "TOKEN_UNKNOWN" : "TOKEN_INVALID";
    case State::kExpired:
      return "TOKEN_EXPIRED";
    case State::kRevoked:
      return "TOKEN_REVOKED";
    case State::kRight:
      return "";
  }
  return "";
}

}  // namespace atl::entry
