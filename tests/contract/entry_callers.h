// Callers of every role, with every state of a credential, for the tests of access control.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/auth/principals.h"
#include "common/auth/security.h"
#include "tests/pki.h"

namespace atl::entry {

// Written out here, not taken from the code under test.
inline const std::vector<std::string> kRoles = {"admin",  "submitter", "sampler", "island",
                                                "expert", "router",    "reader"};

enum class State { kNone, kWrong, kExpired, kRevoked, kRight };
enum class Kind { kToken, kJwt };

struct Credential {
  std::string role;
  State state = State::kNone;
  Kind kind = Kind::kToken;
  std::string bearer;
  std::string name;  // for messages: "reader, expired JWT"
};

// A temporary folder with a principals file, a deny list and the key of an issuer of JWTs.
class Callers {
 public:
  Callers();
  ~Callers();
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  // Returns one credential of state kNone, and for each role every other state, as token and as JWT.
  const std::vector<Credential>& credentials() const { return credentials_; }
  const std::filesystem::path& folder() const { return folder_; }
  // Returns options with the principals, in plain text.
  rpc::SecurityOptions security() const;

 private:
  const std::filesystem::path folder_;
  std::vector<Credential> credentials_;
};

// Returns the reason for which a credential is rejected in any call; "" for the right one.
std::string RefusalOf(const Credential& credential);

}  // namespace atl::entry
