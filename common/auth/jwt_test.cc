#include "common/auth/jwt.h"

#include <string>
#include <vector>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/pki.h"

namespace atl::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::JoinJwt;
using testing::SignJwt;

constexpr int64_t kIssuedAt = 1'700'000'000;
const absl::Time kNow = absl::FromUnixSeconds(kIssuedAt + 60);

// Made by another library (PyJWT 2.6), so that both sides of the format are not ours.
constexpr char kOtherEcKey[] =
    "-----BEGIN PUBLIC KEY-----\n"
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEY7C4U8RnQ/HPWjAO5woh+hdfV5IJ\n"
    "by0aKR/ONzM8vua7FADG2F12ipldVQwJqfD/2PgY4LPwLsWVowi4vx0Izg==\n"
    "-----END PUBLIC KEY-----\n";
constexpr char kOtherEcToken[] =
    R"(eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIiwidHlwIjoiSldUIn0.eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6WyJ4Iiwi)"
    R"(YXRvbGwiXSwic3ViIjoiYW5uIiwiaWF0IjoxNzAwMDAwMDAwLCJleHAiOjE3MDAwMDM2MDAsInJvbGVzIjpbInN1Ym1pdHRlciJd)"
    R"(fQ.JBZZ9_smFc2AbHwALK7bUGWapuOwJTO7wamBxeYHaf59Mtst6Ihm3GgequXVxtFsXH4BfwMvPo790Yu7vMjwpA)";
constexpr char kOtherEcSet[] =
    R"({"keys": [)"
    R"({"kty": "EC", "crv": "P-256", "kid": "k1", "x": "Y7C4U8RnQ_HPWjAO5woh-hdfV5IJby0aKR_ONzM8vuY", "y": )"
    R"("uxQAxthddoqZXVUMCanw_9j4GOCz8C7FlaMIuL8dCM4"})"
    R"(]})";
constexpr char kOtherRsaKey[] =
    "-----BEGIN PUBLIC KEY-----\n"
    "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtjuJ/lm4YXHrMekoQAbM\n"
    "AA5NBrb3BC0/5nXNl9F5TCo9ZMITox9/g20q6Mj1lrSzl/kmETC6B2On1VvJWcnU\n"
    "wlgNIZPkdfK2GUl09zHnPDga6uZSOWXWAFlIX6ZdgMO2566ziJZiA3/Z4G8Tdgcn\n"
    "iQP6oDzfOew1OzdfWXYlXoI+thlA7MW7f+S2Yj/oOH7nEm/ig5zuPQKgXe0xvgvg\n"
    "Zj3N/pjB+NSwjXsqhL8LsRXe7vW3/90zXMSFNCZZRRvTYF6BvDMGMbXvMv4G+Z86\n"
    "keYjmI29hmeIRG/Lp6u3O2qa6w4thIw7Ie4PUHo2wYOnLdV6Dx1AreVANVdlfRt/\n"
    "YwIDAQAB\n"
    "-----END PUBLIC KEY-----\n";
constexpr char kOtherRsaToken[] =
    R"(eyJhbGciOiJSUzI1NiIsImtpZCI6ImsxIiwidHlwIjoiSldUIn0.eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6WyJ4Iiwi)"
    R"(YXRvbGwiXSwic3ViIjoiYW5uIiwiaWF0IjoxNzAwMDAwMDAwLCJleHAiOjE3MDAwMDM2MDAsInJvbGVzIjpbInN1Ym1pdHRlciJd)"
    R"(fQ.ZgWEggdxcYjGNT37Zh04r1p4wK3jiLd1mxhapiuBm8jkWD0UY0Vgkw71JWdNwLywpG1SQiZgfHXCq66lDHiMt7yYIdOKXtBMA)"
    R"(g99ZUTsSsnmPwXQsq-J0xFl91xbvqEqfMPAl9aCwOSc5qGbQZS5-Y2AjdPuemt8A6VJ7GKg2T1LC7T49waeczsB7eaMeYn28VVmI)"
    R"(XIYX6wlJfPtxkLKTn5MinWl_SaTtJurkp1-XHv74ekvrA07ayDx6VI1OlVQjEkcavaoiGK9REGupcx2f2QImgXpp2U7-e-NbtKXo)"
    R"(Fu5xQCu7ysbJu7TDwYslKXtTIyjDQo4kEazKu6OLz2OFw)";
constexpr char kOtherRsaSet[] =
    R"({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}, {"kty": "RSA", "use": "enc", "n": "AA"}, )"
    R"({"kty": "RSA", "kid": "k1", "alg": "RS256", "use": "sig", "n": "tjuJ_lm4YXHrMekoQAbMAA5NBrb3BC0_5nXN)"
    R"(l9F5TCo9ZMITox9_g20q6Mj1lrSzl_kmETC6B2On1VvJWcnUwlgNIZPkdfK2GUl09zHnPDga6uZSOWXWAFlIX6ZdgMO2566ziJZi)"
    R"(A3_Z4G8TdgcniQP6oDzfOew1OzdfWXYlXoI-thlA7MW7f-S2Yj_oOH7nEm_ig5zuPQKgXe0xvgvgZj3N_pjB-NSwjXsqhL8LsRXe)"
    R"(7vW3_90zXMSFNCZZRRvTYF6BvDMGMbXvMv4G-Z86keYjmI29hmeIRG_Lp6u3O2qa6w4thIw7Ie4PUHo2wYOnLdV6Dx1AreVANVdl)"
    R"(fRt_Yw", "e": "AQAB"})"
    R"(]})";

// Parts of the messages.
constexpr char kAlgorithm[] = "expected RS256 or ES256";
constexpr char kSignature[] = "made its signature";
constexpr char kIssuer[] = "no issuer that is trusted here";
constexpr char kTimes[] = "exp at most an hour after iat";
constexpr char kFuture[] = "from the future";
constexpr char kForm[] = "another form";

class JwtTest : public ::testing::Test {
 protected:
  JwtTest() {
    JwtIssuer issuer{.issuer = "https://issuer", .audience = "atoll"};
    issuer.roles = {Role::kSubmitter, Role::kSampler, Role::kIsland};
    issuer.islands = {"eu-*"};
    issuer.keys = ParseJwtKeys(ec_.public_pem, "ec.pem").value();
    issuer.keys.push_back(ParseJwtKeys(rsa_.public_pem, "rsa.pem").value().front());
    issuers_ = {issuer};
  }

  // Claims that pass, with `changes` after them: of equal names the last counts.
  static std::string Claims(const std::string& changes = "") {
    return fmt::format(R"({{"iss": "https://issuer", "aud": "atoll", "sub": "ann", "iat": {}, "exp": {}{}{}}})",
                       kIssuedAt, kIssuedAt + 3600, changes.empty() ? "" : ", ", changes);
  }
  std::string Ec(const std::string& claims) const { return SignJwt(ec_, R"({"alg": "ES256"})", claims); }
  std::string Rsa(const std::string& claims) const { return SignJwt(rsa_, R"({"alg": "RS256"})", claims); }
  // Returns what is wrong with a token; empty: it passes.
  std::string RefusalOf(const std::string& token, absl::Time now = kNow) const {
    const absl::Status status = VerifyJwt(token, issuers_, now).status();
    if (status.ok()) return "";
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
    if (ErrorReason(status) == "TOKEN_EXPIRED") return "TOKEN_EXPIRED";
    EXPECT_EQ(ErrorReason(status), "TOKEN_INVALID") << status;
    const std::string message(status.message());
    for (const char* known : {kAlgorithm, kSignature, kIssuer, kTimes, kFuture}) {
      if (message.find(known) != std::string::npos) return known;
    }
    return message.starts_with("JWT: expected ") ? kForm : message;
  }

  static inline const testing::SigningKey ec_ = testing::MakeEcSigningKey();
  static inline const testing::SigningKey rsa_ = testing::MakeRsaSigningKey();
  std::vector<JwtIssuer> issuers_;
};

TEST_F(JwtTest, TokensOfAnotherLibraryPass) {
  struct Case {
    const char* token;
    const char* keys;
  };
  for (const Case& one : {Case{kOtherEcToken, kOtherEcKey}, Case{kOtherEcToken, kOtherEcSet},
                          Case{kOtherRsaToken, kOtherRsaKey}, Case{kOtherRsaToken, kOtherRsaSet}}) {
    const auto keys = ParseJwtKeys(one.keys, "keys");
    ASSERT_TRUE(keys.ok()) << keys.status();
    issuers_[0].keys = *keys;
    const auto claims = VerifyJwt(one.token, issuers_, kNow);
    ASSERT_TRUE(claims.ok()) << claims.status();
    EXPECT_EQ(claims->subject, "ann");
    EXPECT_EQ(claims->roles, RoleSet({Role::kSubmitter}));
    EXPECT_EQ(claims->expires, absl::FromUnixSeconds(kIssuedAt + 3600));
    std::string forged = one.token;
    forged[forged.size() - 40] = forged[forged.size() - 40] == 'A' ? 'B' : 'A';
    EXPECT_EQ(RefusalOf(forged), kSignature);
  }
}

TEST_F(JwtTest, BothAlgorithmsPassWithOneIssuer) {
  EXPECT_EQ(RefusalOf(Ec(Claims())), "");
  EXPECT_EQ(RefusalOf(Rsa(Claims())), "");
}

TEST_F(JwtTest, OnlyTheTwoAlgorithmsAreTaken) {
  for (const char* name : {"none", "None", "NONE", "HS256", "RS384", "RS512", "ES384", "PS256", "EdDSA", "rs256", ""}) {
    EXPECT_EQ(RefusalOf(SignJwt(rsa_, fmt::format(R"({{"alg": "{}"}})", name), Claims())), kAlgorithm) << name;
  }
  EXPECT_EQ(RefusalOf(SignJwt(rsa_, "{}", Claims())), kAlgorithm);
  EXPECT_EQ(RefusalOf(SignJwt(rsa_, R"({"alg": 256})", Claims())), kAlgorithm);
  // The classic: a public key taken as the secret of an HMAC.
  EXPECT_EQ(RefusalOf(JoinJwt(R"({"alg": "HS256"})", Claims(), std::string(32, 'x'))), kAlgorithm);
  EXPECT_EQ(RefusalOf(JoinJwt(R"({"alg": "none"})", Claims(), "x")), kAlgorithm);
}

TEST_F(JwtTest, AKeyVerifiesItsOwnAlgorithmAlone) {
  EXPECT_EQ(RefusalOf(SignJwt(ec_, R"({"alg": "RS256"})", Claims())), kSignature);
  EXPECT_EQ(RefusalOf(SignJwt(rsa_, R"({"alg": "ES256"})", Claims())), kSignature);
  EXPECT_EQ(RefusalOf(SignJwt(testing::MakeEcSigningKey(), R"({"alg": "ES256"})", Claims())), kSignature);
  EXPECT_EQ(RefusalOf(JoinJwt(R"({"alg": "ES256"})", Claims(), std::string(64, '\0'))), kSignature);
  EXPECT_EQ(RefusalOf(JoinJwt(R"({"alg": "ES256"})", Claims(), std::string(64, '\xff'))), kSignature);
  EXPECT_EQ(RefusalOf(JoinJwt(R"({"alg": "ES256"})", Claims(), "short")), kSignature);
}

TEST_F(JwtTest, AKeysNameIsKept) {
  for (JwtKey& key : issuers_[0].keys) key.id = "2024";
  EXPECT_EQ(RefusalOf(SignJwt(ec_, R"({"alg": "ES256", "kid": "2024"})", Claims())), "");
  EXPECT_EQ(RefusalOf(SignJwt(ec_, R"({"alg": "ES256", "kid": "2023"})", Claims())), kSignature);
}

TEST_F(JwtTest, ClaimsAreChecked) {
  struct Case {
    std::string changes;
    std::string reason;
  };
  const Case cases[] = {
      {R"("iss": "https://other")", kIssuer},
      {R"("iss": "")", kIssuer},
      {R"("iss": 7)", kIssuer},
      {R"("aud": "other")", kIssuer},
      {R"("aud": ["other"])", kIssuer},
      {R"("aud": ["other", "atoll"])", ""},
      {R"("aud": null)", kIssuer},
      {R"("sub": "")", kForm},
      {R"("sub": "a\nb")", kForm},
      {R"("sub": 1)", kForm},
      {R"("sub": "ann ")", kForm},
      {fmt::format(R"("sub": "{}")", std::string(300, 'x')), kForm},
      {R"("exp": 1700003601)", kTimes},
      {R"("exp": 1700007200)", kTimes},
      {R"("exp": 1700000000)", kTimes},
      {R"("exp": "1700003600")", kTimes},
      {R"("exp": 1e300)", kTimes},
      {R"("exp": -1)", kTimes},
      {R"("iat": null)", kTimes},
      {R"("nbf": 1700000091)", kFuture},
      {R"("nbf": 1700000089)", ""},
      {R"("nbf": "soon")", kTimes},
      {R"("iat": 1700000091, "exp": 1700000200)", kFuture},
      {R"("roles": "admin")", kForm},
      {R"("roles": [1])", kForm},
      {R"("islands": "eu-1")", kForm},
      {R"("models": "digits")", kForm},
      {R"("jti": "77")", ""},
      {R"("jti": 77)", kForm},
      {R"("jti": null)", kForm},
  };
  for (const Case& one : cases) EXPECT_EQ(RefusalOf(Ec(Claims(one.changes))), one.reason) << one.changes;
}

TEST_F(JwtTest, ATokenEndsWithALittleLeeway) {
  const std::string token = Ec(Claims());
  EXPECT_EQ(RefusalOf(token, absl::FromUnixSeconds(kIssuedAt + 3600 + 30)), "");
  EXPECT_EQ(RefusalOf(token, absl::FromUnixSeconds(kIssuedAt + 3600 + 31)), "TOKEN_EXPIRED");
  EXPECT_EQ(RefusalOf(token, absl::FromUnixSeconds(kIssuedAt - 30)), "");
  EXPECT_EQ(RefusalOf(token, absl::FromUnixSeconds(kIssuedAt - 31)), kFuture);
}

TEST_F(JwtTest, RolesAndIslandsAreCutToTheIssuers) {
  const auto claims =
      VerifyJwt(Ec(Claims(R"("roles": ["admin", "sampler", "cook"], "islands": ["eu-1", "us-1", "eu-a*", "*"])")),
                issuers_, kNow);
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(claims->roles, RoleSet({Role::kSampler}));
  EXPECT_THAT(claims->islands, ElementsAre("eu-1", "eu-a*"));
  EXPECT_THAT(VerifyJwt(Ec(Claims()), issuers_, kNow)->islands, ElementsAre("eu-*"));
  EXPECT_THAT(VerifyJwt(Ec(Claims(R"("islands": [])")), issuers_, kNow)->islands, IsEmpty());
  EXPECT_THAT(VerifyJwt(Ec(Claims()), issuers_, kNow)->models, ElementsAre("*"));
  issuers_[0].models = {"team-*"};
  EXPECT_THAT(VerifyJwt(Ec(Claims(R"("models": ["team-a", "team-b*", "digits", "*"])")), issuers_, kNow)->models,
              ElementsAre("team-a", "team-b*"));
  EXPECT_THAT(VerifyJwt(Ec(Claims(R"("models": [])")), issuers_, kNow)->models, IsEmpty());
}

TEST_F(JwtTest, BrokenFormsAreRefused) {
  const std::string good = Ec(Claims());
  const std::string parts[] = {good.substr(0, good.find('.')), good.substr(good.rfind('.') + 1)};
  for (const std::string& token :
       {std::string(), std::string("."), std::string(".."), std::string("a.b.c"), parts[0] + "..", good + ".x",
        good + "=", good + " ", good + "\n", "\x80\x81." + good, good + "\xff", parts[0] + ".e30.",
        JoinJwt("[]", Claims(), "x"), JoinJwt(R"({"alg": "ES256", "crit": ["b64"]})", Claims(), "x"),
        JoinJwt(R"({"alg": "ES256"})", "[1]", "x"), std::string(9000, 'a')}) {
    EXPECT_EQ(RefusalOf(token), kForm) << token.substr(0, 100);
  }
  EXPECT_TRUE(LooksLikeJwt(good));
  EXPECT_FALSE(LooksLikeJwt("atoll_abc"));
}

TEST_F(JwtTest, NoPartCanBeChanged) {
  for (const std::string& token : {Ec(Claims()), Rsa(Claims())}) {
    for (size_t i = 0; i < token.size() - 1; i += 7) {
      std::string changed = token;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_FALSE(VerifyJwt(changed, issuers_, kNow).ok()) << i;
    }
    // Another token's signature.
    const std::string other =
        SignJwt(token.size() < 400 ? ec_ : rsa_, R"({"alg": "ES256"})", Claims(R"("sub": "bob")"));
    EXPECT_FALSE(VerifyJwt(std::string(SignedPart(token)) + other.substr(other.rfind('.')), issuers_, kNow).ok());
  }
}

TEST_F(JwtTest, KeysOfAnIssuerAreReplacedOneAfterTheOther) {
  const testing::SigningKey next = testing::MakeEcSigningKey();
  const std::string old_token = Ec(Claims());
  const std::string next_token = SignJwt(next, R"({"alg": "ES256"})", Claims());
  EXPECT_EQ(RefusalOf(next_token), kSignature);
  issuers_[0].keys = ParseJwtKeys(ec_.public_pem + next.public_pem, "keys.pem").value();
  EXPECT_EQ(RefusalOf(old_token), "");
  EXPECT_EQ(RefusalOf(next_token), "");
  issuers_[0].keys = ParseJwtKeys(next.public_pem, "keys.pem").value();
  EXPECT_EQ(RefusalOf(old_token), kSignature);
  EXPECT_EQ(RefusalOf(next_token), "");
}

TEST_F(JwtTest, NoMessageRepeatsTheToken) {
  const std::string token = Rsa(Claims(R"("sub": "")"));
  const auto claims = VerifyJwt(token, issuers_, kNow);
  EXPECT_EQ(std::string(claims.status().message()).find(token.substr(token.rfind('.'))), std::string::npos);
}

TEST(JwtKeysTest, BadKeysAreRefused) {
  const std::string bad[] = {
      "",
      "no key",
      testing::MakeRsaSigningKey(1024).public_pem,
      testing::MakeEcSigningKey().private_pem,
      "{}",
      R"({"keys": []})",
      R"({"keys": {}})",
      R"({"keys": [7]})",
      R"({"keys": [{"kty": "RSA"}]})",
      R"({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]})",
      R"({"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]})",
      fmt::format(R"({{"keys": [{{"kty": "EC", "crv": "P-256", "x": "{0}", "y": "{0}"}}]}})", std::string(43, 'A')),
  };
  for (const std::string& text : bad) {
    const auto keys = ParseJwtKeys(text, "keys.pem");
    EXPECT_EQ(ErrorReason(keys.status()), "INVALID_JWT_KEYS") << text;
    EXPECT_EQ(std::string(keys.status().message()).rfind("keys.pem: ", 0), 0u) << keys.status();
  }
  const std::string two = testing::MakeEcSigningKey().public_pem + testing::MakeRsaSigningKey().public_pem;
  ASSERT_TRUE(ParseJwtKeys(two, "keys.pem").ok());
  EXPECT_EQ(ParseJwtKeys(two, "keys.pem")->size(), 2u);
  // Tokens of the key that is missing would be refused, and no error would say why.
  const std::string end = "-----END PUBLIC KEY-----\n";
  for (const std::string& text : {two.substr(0, two.size() - end.size()), two.substr(0, two.find(end) - 9) + two}) {
    EXPECT_EQ(ErrorReason(ParseJwtKeys(text, "keys.pem").status()), "INVALID_JWT_KEYS") << text;
  }
}

}  // namespace
}  // namespace atl::rpc
