#include "worker/transport/handshake.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::transport {
namespace {

const AttemptIdentity kIdentity = {.incarnation = 7, .attempt = 3, .secret = "s3cret"};

LaneTable Lanes(std::vector<Lane> lanes) {
  return *LaneTable::Create(lanes, 2);
}

// Rank 1 as rank 0 sees it.
absl::Status JudgeRankOne(const AttemptIdentity& theirs, const LaneTable& their_lanes) {
  const Hello zero = MakeHello(0, 2, kIdentity, Lanes({}));
  const Hello one = MakeHello(1, 2, theirs, their_lanes);
  return Judge(zero, kIdentity, 1, one, MakeProof(theirs.secret, one, zero));
}

TEST(HandshakeTest, PeerOfTheSameAttemptIsAccepted) {
  EXPECT_TRUE(JudgeRankOne(kIdentity, Lanes({})).ok());
}

TEST(HandshakeTest, OtherAttemptIsStale) {
  AttemptIdentity other = kIdentity;
  other.attempt = 2;
  const absl::Status status = JudgeRankOne(other, Lanes({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(status), "STALE_ATTEMPT");
  EXPECT_NE(status.message().find("attempt 3; found incarnation 7, attempt 2"), absl::string_view::npos) << status;
}

TEST(HandshakeTest, OtherIncarnationIsStale) {
  AttemptIdentity other = kIdentity;
  other.incarnation = -1;
  EXPECT_EQ(ErrorReason(JudgeRankOne(other, Lanes({}))), "STALE_ATTEMPT");
}

TEST(HandshakeTest, OtherSecretIsRefusedWithoutNamingIt) {
  AttemptIdentity other = kIdentity;
  other.secret = "guess";
  const absl::Status status = JudgeRankOne(other, Lanes({}));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrorReason(status), "ATTEMPT_SECRET_MISMATCH");
  EXPECT_EQ(status.message().find("s3cret"), absl::string_view::npos);
}

TEST(HandshakeTest, OtherLanesAreRefused) {
  EXPECT_EQ(ErrorReason(JudgeRankOne(kIdentity, Lanes({{0, 1, 1, LaneKind::kForward}}))), "TRANSPORT_LANES_DIFFER");
}

TEST(HandshakeTest, ReflectedProofIsRefused) {
  const Hello zero = MakeHello(0, 2, kIdentity, Lanes({}));
  const Hello one = MakeHello(1, 2, kIdentity, Lanes({}));
  EXPECT_EQ(ErrorReason(Judge(zero, kIdentity, 1, one, MakeProof(kIdentity.secret, zero, one))),
            "ATTEMPT_SECRET_MISMATCH");
}

TEST(HandshakeTest, ReplayedProofIsRefused) {
  const Hello earlier = MakeHello(0, 2, kIdentity, Lanes({}));
  const Hello now = MakeHello(0, 2, kIdentity, Lanes({}));
  const Hello one = MakeHello(1, 2, kIdentity, Lanes({}));
  EXPECT_EQ(ErrorReason(Judge(now, kIdentity, 1, one, MakeProof(kIdentity.secret, one, earlier))),
            "ATTEMPT_SECRET_MISMATCH");
}

TEST(HandshakeTest, HelloOfAnotherRankIsRefused) {
  const Hello zero = MakeHello(0, 2, kIdentity, Lanes({}));
  EXPECT_EQ(ErrorReason(Judge(zero, kIdentity, 1, zero, MakeProof(kIdentity.secret, zero, zero))),
            "TRANSPORT_HANDSHAKE");
}

TEST(SealedAddressTest, PeerOfTheSameAttemptOpensIt) {
  const std::string address("raw\0bytes", 9);
  const auto opened = OpenAddress(kIdentity, 0, 1, SealAddress(kIdentity, 1, address));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(*opened, address);
}

TEST(SealedAddressTest, OtherIdentityIsRefused) {
  AttemptIdentity other = kIdentity;
  other.secret = "guess";
  EXPECT_EQ(ErrorReason(OpenAddress(kIdentity, 0, 1, SealAddress(other, 1, "a")).status()), "ATTEMPT_SECRET_MISMATCH");
  other = kIdentity;
  other.attempt = 4;
  EXPECT_EQ(ErrorReason(OpenAddress(kIdentity, 0, 1, SealAddress(other, 1, "a")).status()), "STALE_ATTEMPT");
  EXPECT_EQ(ErrorReason(OpenAddress(kIdentity, 0, 1, SealAddress(kIdentity, 0, "a")).status()),
            "TRANSPORT_ADDRESS_INVALID");
}

TEST(SealedAddressTest, EveryChangedOrMissingByteIsRefused) {
  const std::string sealed = SealAddress(kIdentity, 1, "address");
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(OpenAddress(kIdentity, 0, 1, changed).ok()) << "byte " << i;
    EXPECT_FALSE(OpenAddress(kIdentity, 0, 1, sealed.substr(0, i)).ok()) << "cut to " << i;
  }
}

TEST(HandshakeTest, MarkDependsOnTheWholeIdentity) {
  AttemptIdentity other = kIdentity;
  other.secret = "";
  EXPECT_EQ(AttemptMark(kIdentity), AttemptMark(kIdentity));
  EXPECT_NE(AttemptMark(kIdentity), AttemptMark(other));
  other = kIdentity;
  other.attempt = 4;
  EXPECT_NE(AttemptMark(kIdentity), AttemptMark(other));
}

}  // namespace
}  // namespace atl::transport
