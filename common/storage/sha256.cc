#include "common/storage/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdlib>

namespace atl::storage {
namespace {

constexpr size_t kDigestBytes = 32;

// OpenSSL fails here only without memory or without SHA-256: nothing sensible is left to do.
void Require(int ok) {
  if (ok != 1) std::abort();
}

}  // namespace

struct Sha256Hasher::State {
  State() : context(EVP_MD_CTX_new()) {
    Require(context != nullptr);
    Require(EVP_DigestInit_ex(context, EVP_sha256(), nullptr));
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::array<uint8_t, kDigestBytes> Finish() {
    std::array<uint8_t, kDigestBytes> digest{};
    unsigned int size = 0;
    Require(EVP_DigestFinal_ex(context, digest.data(), &size));
    return digest;
  }

  EVP_MD_CTX* context;
};

Sha256Hasher::Sha256Hasher() : state_(std::make_unique<State>()) {}
Sha256Hasher::~Sha256Hasher() = default;
Sha256Hasher::Sha256Hasher(Sha256Hasher&&) noexcept = default;
Sha256Hasher& Sha256Hasher::operator=(Sha256Hasher&&) noexcept = default;

void Sha256Hasher::Update(std::string_view bytes) {
  Require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

std::string Sha256Hasher::FinishHex() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * kDigestBytes);
  for (const uint8_t byte : state_->Finish()) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
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
