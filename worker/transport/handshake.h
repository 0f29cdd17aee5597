// The proof by which two ranks show each other that they belong to the same attempt. Addresses are sealed: rank,
// incarnation and attempt precede them, and an HMAC-SHA256 under the attempt secret follows, so that a library never
// parses foreign bytes. Over the connection each rank then sends a hello (its rank, its view of the attempt, a nonce)
// and the HMAC of both hellos, so that a recorded conversation proves nothing. The secret is never sent.
//
// Pure: takes bytes, returns bytes or a verdict.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Sent in its memory layout: magic, big-endian numbers, digest of the lanes, nonce.
inline constexpr size_t kHelloBytes = 104;
inline constexpr size_t kProofBytes = 32;
using Hello = std::array<std::byte, kHelloBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// SHA-256 of the lanes: equal on ranks with the same lanes.
using Digest = std::array<std::byte, 32>;
Digest DigestOf(const LaneTable& lanes);

// Returns the hello of `rank`, with a fresh nonce.
Hello MakeHello(int32_t rank, int32_t rank_count, const AttemptIdentity& identity, const LaneTable& lanes);

// Returns the proof that the sender of `mine` sends to the sender of `theirs`.
Proof MakeProof(const std::string& secret, const Hello& mine, const Hello& theirs);

// Returns OK if the peer that sent `hello` and `proof` in answer to `mine` is rank `peer` of the same attempt, with the
// same lanes. Otherwise returns ABORTED, PERMISSION_DENIED or FAILED_PRECONDITION as documented for Transport::Connect,
// or INTERNAL for a malformed hello.
absl::Status Judge(const Hello& mine, const AttemptIdentity& identity, int32_t peer, const Hello& hello,
                   const Proof& proof);

// Returns the sealed form, for Transport::Address, of `address` (a library's own bytes) of `rank`.
std::string SealAddress(const AttemptIdentity& identity, int32_t rank, std::string_view address);

// Returns the address that rank `peer` sealed; `rank` opens it. INVALID_ARGUMENT (TRANSPORT_ADDRESS_INVALID) for bytes
// that are not an address of that rank, ABORTED and PERMISSION_DENIED as documented for Transport::Connect.
absl::StatusOr<std::string> OpenAddress(const AttemptIdentity& identity, int32_t rank, int32_t peer,
                                        std::string_view sealed);

// Returns 31 bits that the ranks of one attempt share. They mark the attempt's messages, so that a stray message is not
// taken for one of them.
uint32_t AttemptMark(const AttemptIdentity& identity);

}  // namespace atl::transport
