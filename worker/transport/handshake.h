// How two ranks prove to each other that they belong to the same attempt. Addresses are sealed: rank, incarnation and
// attempt stand before them and an HMAC-SHA256 under the attempt secret behind them, so that a library never parses
// bytes of somebody else. Over the connection each then sends a hello (who it is, what it knows, a nonce) and the HMAC
// of both hellos, so that a recorded conversation proves nothing. The secret never travels.
//
// Pure: bytes in, bytes or a verdict out.
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

// Sent as it lies in memory: magic, big-endian numbers, digest of the lanes, nonce.
inline constexpr size_t kHelloBytes = 104;
inline constexpr size_t kProofBytes = 32;
using Hello = std::array<std::byte, kHelloBytes>;
using Proof = std::array<std::byte, kProofBytes>;

// SHA-256 of the lanes: equal on ranks that know the same lanes.
using Digest = std::array<std::byte, 32>;
Digest DigestOf(const LaneTable& lanes);

// The hello of `rank`, with a fresh nonce.
Hello MakeHello(int32_t rank, int32_t rank_count, const AttemptIdentity& identity, const LaneTable& lanes);

// What the sender of `mine` sends to the sender of `theirs`.
Proof MakeProof(const std::string& secret, const Hello& mine, const Hello& theirs);

// Whether the peer that sent `hello` and `proof` in answer to `mine` is rank `peer` of the same attempt, with the same
// lanes. ABORTED, PERMISSION_DENIED and FAILED_PRECONDITION as Transport::Connect says; INTERNAL for a hello that is
// not one.
absl::Status Judge(const Hello& mine, const AttemptIdentity& identity, int32_t peer, const Hello& hello,
                   const Proof& proof);

// What Transport::Address gives: `address` (a library's own bytes) of `rank`.
std::string SealAddress(const AttemptIdentity& identity, int32_t rank, std::string_view address);

// The address that rank `peer` sealed, as seen by `rank`. INVALID_ARGUMENT (TRANSPORT_ADDRESS_INVALID) for bytes that
// are no address of that rank, ABORTED and PERMISSION_DENIED as Transport::Connect says.
absl::StatusOr<std::string> OpenAddress(const AttemptIdentity& identity, int32_t rank, int32_t peer,
                                        std::string_view sealed);

// 31 bits that the ranks of one attempt share and others do not; marks the attempt's messages, so that a stray one
// cannot be taken for them.
uint32_t AttemptMark(const AttemptIdentity& identity);

}  // namespace atl::transport
