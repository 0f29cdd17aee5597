#include "worker/transport/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"

namespace atl::transport {
namespace {

constexpr std::string_view kMagic = "atoll-transport1";  // ends in the version of handshake and tags
constexpr std::string_view kProofPurpose = "atoll transport proof";
constexpr std::string_view kAddressMagic = "atoll-address-1:";
constexpr std::string_view kAddressPurpose = "atoll transport address";
constexpr std::string_view kMarkPurpose = "atoll transport mark";

constexpr size_t kMagicBytes = kMagic.size();
constexpr size_t kRankAt = kMagicBytes;
constexpr size_t kRankCountAt = kRankAt + 4;
constexpr size_t kIncarnationAt = kRankCountAt + 4;
constexpr size_t kAttemptAt = kIncarnationAt + 8;
constexpr size_t kLanesAt = kAttemptAt + 8;
constexpr size_t kNonceAt = kLanesAt + SHA256_DIGEST_LENGTH;
static_assert(kMagicBytes == 16 && kNonceAt + 32 == kHelloBytes);

void PutNumber(std::span<std::byte> out, uint64_t value) {
  for (size_t i = out.size(); i-- > 0; value >>= 8) out[i] = static_cast<std::byte>(value & 0xff);
}

uint64_t GetNumber(std::span<const std::byte> in) {
  uint64_t value = 0;
  for (const std::byte b : in) value = value << 8 | static_cast<uint64_t>(b);
  return value;
}

unsigned char* Raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

Proof Hmac(const std::string& secret, std::span<const std::byte> message) {
  Proof proof;
  unsigned int size = 0;
  // OpenSSL refuses a null key; an empty secret has no bytes to point at.
  const char* key = secret.empty() ? "" : secret.data();
  if (HMAC(EVP_sha256(), key, static_cast<int>(secret.size()), Raw(message.data()), message.size(), Raw(proof.data()),
           &size) == nullptr ||
      size != kProofBytes) {
    std::abort();  // no memory for a hash, or an OpenSSL without SHA-256
  }
  return proof;
}

void Append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

constexpr size_t kSealNumberBytes = 4 + 8 + 8;  // rank, incarnation, attempt

Proof SealOf(const std::string& secret, std::string_view text) {
  std::vector<std::byte> message;
  Append(message, Bytes(kAddressPurpose));
  Append(message, Bytes(text));
  return Hmac(secret, message);
}

}  // namespace

Digest DigestOf(const LaneTable& lanes) {
  const std::string text = lanes.Text();
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), Raw(digest.data()));
  return digest;
}

Hello MakeHello(int32_t rank, int32_t rank_count, const AttemptIdentity& identity, const LaneTable& lanes) {
  Hello hello;
  const std::span<std::byte> out(hello);
  std::memcpy(hello.data(), kMagic.data(), kMagicBytes);
  PutNumber(out.subspan(kRankAt, 4), static_cast<uint32_t>(rank));
  PutNumber(out.subspan(kRankCountAt, 4), static_cast<uint32_t>(rank_count));
  PutNumber(out.subspan(kIncarnationAt, 8), static_cast<uint64_t>(identity.incarnation));
  PutNumber(out.subspan(kAttemptAt, 8), static_cast<uint64_t>(identity.attempt));
  const Digest digest = DigestOf(lanes);
  std::memcpy(hello.data() + kLanesAt, digest.data(), digest.size());
  if (RAND_bytes(Raw(hello.data() + kNonceAt), kHelloBytes - kNonceAt) != 1) std::abort();  // no entropy: trust nobody
  return hello;
}

Proof MakeProof(const std::string& secret, const Hello& mine, const Hello& theirs) {
  std::vector<std::byte> message;
  Append(message, Bytes(kProofPurpose));
  Append(message, mine);
  Append(message, theirs);
  return Hmac(secret, message);
}

absl::Status Judge(const Hello& mine, const AttemptIdentity& identity, int32_t peer, const Hello& hello,
                   const Proof& proof) {
  const std::span<const std::byte> own(mine);
  const std::span<const std::byte> in(hello);
  const auto rank = static_cast<int32_t>(GetNumber(own.subspan(kRankAt, 4)));
  const auto found_rank = static_cast<int32_t>(GetNumber(in.subspan(kRankAt, 4)));
  if (std::memcmp(hello.data(), kMagic.data(), kMagicBytes) != 0 || found_rank != peer) {
    return MakeError(absl::StatusCode::kInternal, "TRANSPORT_HANDSHAKE",
                     fmt::format("rank {}: expected the hello of rank {}, found another message", rank, peer));
  }
  const AttemptIdentity found = {.incarnation = static_cast<int64_t>(GetNumber(in.subspan(kIncarnationAt, 8))),
                                 .attempt = static_cast<int64_t>(GetNumber(in.subspan(kAttemptAt, 8))),
                                 .secret = {}};
  ATOLL_RETURN_IF_ERROR(CheckAttempt(rank, peer, identity, found));
  const Proof expected = MakeProof(identity.secret, hello, mine);
  if (CRYPTO_memcmp(expected.data(), proof.data(), kProofBytes) != 0) return SecretMismatch(rank, peer);
  // Both must be equal for the lane numbers to agree.
  if (std::memcmp(mine.data() + kRankCountAt, hello.data() + kRankCountAt, 4) != 0 ||
      std::memcmp(mine.data() + kLanesAt, hello.data() + kLanesAt, SHA256_DIGEST_LENGTH) != 0) {
    return LanesDiffer(rank, peer);
  }
  return absl::OkStatus();
}

std::string SealAddress(const AttemptIdentity& identity, int32_t rank, std::string_view address) {
  std::array<std::byte, kSealNumberBytes> numbers;
  PutNumber(std::span(numbers).subspan(0, 4), static_cast<uint32_t>(rank));
  PutNumber(std::span(numbers).subspan(4, 8), static_cast<uint64_t>(identity.incarnation));
  PutNumber(std::span(numbers).subspan(12, 8), static_cast<uint64_t>(identity.attempt));
  std::string sealed(kAddressMagic);
  sealed.append(reinterpret_cast<const char*>(numbers.data()), numbers.size());
  sealed.append(address);
  const Proof seal = SealOf(identity.secret, sealed);
  sealed.append(reinterpret_cast<const char*>(seal.data()), seal.size());
  return sealed;
}

absl::StatusOr<std::string> OpenAddress(const AttemptIdentity& identity, int32_t rank, int32_t peer,
                                        std::string_view sealed) {
  constexpr size_t kHeadBytes = kAddressMagic.size() + kSealNumberBytes;
  if (sealed.size() < kHeadBytes + kProofBytes || !sealed.starts_with(kAddressMagic)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_ADDRESS_INVALID",
                     fmt::format("rank {}: expected a transport address of rank {}, found {} other bytes", rank, peer,
                                 sealed.size()));
  }
  const std::span<const std::byte> numbers = Bytes(sealed).subspan(kAddressMagic.size(), kSealNumberBytes);
  const auto found_rank = static_cast<int32_t>(GetNumber(numbers.subspan(0, 4)));
  if (found_rank != peer) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "TRANSPORT_ADDRESS_INVALID",
        fmt::format("rank {}: expected the address of rank {}, found that of rank {}", rank, peer, found_rank));
  }
  const AttemptIdentity found = {.incarnation = static_cast<int64_t>(GetNumber(numbers.subspan(4, 8))),
                                 .attempt = static_cast<int64_t>(GetNumber(numbers.subspan(12, 8))),
                                 .secret = {}};
  ATOLL_RETURN_IF_ERROR(CheckAttempt(rank, peer, identity, found));
  const Proof expected = SealOf(identity.secret, sealed.substr(0, sealed.size() - kProofBytes));
  if (CRYPTO_memcmp(expected.data(), sealed.data() + sealed.size() - kProofBytes, kProofBytes) != 0) {
    return SecretMismatch(rank, peer);
  }
  return std::string(sealed.substr(kHeadBytes, sealed.size() - kHeadBytes - kProofBytes));
}

uint32_t AttemptMark(const AttemptIdentity& identity) {
  std::array<std::byte, 16> numbers;
  PutNumber(std::span(numbers).subspan(0, 8), static_cast<uint64_t>(identity.incarnation));
  PutNumber(std::span(numbers).subspan(8, 8), static_cast<uint64_t>(identity.attempt));
  std::vector<std::byte> message;
  Append(message, Bytes(kMarkPurpose));
  Append(message, numbers);
  const Proof mark = Hmac(identity.secret, message);
  return static_cast<uint32_t>(GetNumber(std::span(mark).subspan(0, 4))) >> 1;
}

}  // namespace atl::transport
