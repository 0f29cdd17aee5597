#include "common/storage/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "common/base/handles.h"

namespace atl::storage {
namespace {

constexpr size_t kDigestBytes = 32;

// OpenSSL fails here only without memory or without SHA-256: nothing sensible is left to do.
void Require(int ok) {
  if (ok != 1) std::abort();
}

}  // namespace

struct Sha256Hasher::State {
  Handle<EVP_MD_CTX, EVP_MD_CTX_free> context{EVP_MD_CTX_new()};
};

Sha256Hasher::Sha256Hasher() : state_(std::make_unique<State>()) {
  Require(state_->context != nullptr);
  Require(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}
Sha256Hasher::~Sha256Hasher() = default;
Sha256Hasher::Sha256Hasher(Sha256Hasher&&) noexcept = default;
Sha256Hasher& Sha256Hasher::operator=(Sha256Hasher&&) noexcept = default;

void Sha256Hasher::Update(std::string_view bytes) {
  Require(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256Hasher::FinishHex() {
  std::string digest(kDigestBytes, '\0');
  Require(EVP_DigestFinal_ex(state_->context.get(), reinterpret_cast<uint8_t*>(digest.data()), nullptr));
  return absl::BytesToHexString(digest);
}

std::string Sha256(std::string_view bytes) {
  Sha256Hasher hasher;
  hasher.Update(bytes);
  return hasher.FinishHex();
}

uint64_t Sha256Prefix64(std::string_view bytes) {
  return std::stoull(Sha256(bytes).substr(0, 16), nullptr, 16);
}

}  // namespace atl::storage
