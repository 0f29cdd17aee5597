#include "worker/attempt/granted_keys.h"

namespace atl::worker {

std::optional<storage::GrantedKeys> KeysOf(const spec::StorageGrant& grant) {
  if (grant.access_key.empty()) return std::nullopt;
  return storage::GrantedKeys{.access_key = grant.access_key,
                              .secret_key = grant.secret_key,
                              .session_token = grant.session_token,
                              .expires = grant.expires};
}

}  // namespace atl::worker
