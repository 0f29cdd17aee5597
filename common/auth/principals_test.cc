#include "common/auth/principals.h"

#include <openssl/bn.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/auth/name_pattern.h"
#include "common/base/errors.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/pki.h"

namespace atl::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'060);

absl::StatusOr<std::string> NoFiles(const std::string& path) {
  return MakeError(absl::StatusCode::kNotFound, "FILE_ERROR", "cannot read " + path);
}

absl::StatusOr<Principals> Parse(const std::string& yaml) {
  return Principals::Parse(yaml, "principals.yaml", NoFiles);
}

TEST(PrincipalsTest, TokensAndCertificatesAreKnown) {
  const std::string yaml = fmt::format(R"(
principals:
- subject: ann
  roles: [submitter, reader]
  token_sha256: [{}, {}]
  quota: {{open_jobs: 3, images_in_flight: 64, images_per_minute: 90}}
- subject: eu
  roles: [island]
  islands: [eu-*, north]
  expert_servers: eu-*
  quota: {{islands: 40}}
  certificate: eu.example.org
- subject: old
  roles: sampler
  token_sha256: {}
  expires: 2023-01-01T00:00:00Z
)",
                                       TokenHash("one"), TokenHash("two"), TokenHash("three"));
  const auto principals = Parse(yaml);
  ASSERT_TRUE(principals.ok()) << principals.status();
  for (const char* token : {"one", "two"}) {
    const auto ann = principals->Check(token, {}, {}, kNow);
    ASSERT_TRUE(ann.ok()) << ann.status();
    EXPECT_EQ(ann->subject, "ann");
    EXPECT_EQ(ann->roles, RoleSet({Role::kSubmitter, Role::kReader}));
    EXPECT_EQ(ann->quota, (Quota{.open_jobs = 3, .images_in_flight = 64, .images_per_minute = 90}));
  }
  const std::vector<std::string> names = {"somebody", "eu.example.org"};
  const auto eu = principals->Check("", names, {}, kNow);
  ASSERT_TRUE(eu.ok()) << eu.status();
  EXPECT_EQ(eu->subject, "eu");
  EXPECT_THAT(eu->islands, ElementsAre("eu-*", "north"));
  EXPECT_THAT(eu->expert_servers, ElementsAre("eu-*"));
  EXPECT_EQ(eu->quota, (Quota{.islands = 40}));

  const auto reason = [&](std::string_view token, std::vector<std::string> certificate, const DenyList& denied = {}) {
    const auto principal = principals->Check(token, certificate, denied, kNow);
    EXPECT_FALSE(principal.ok());
    EXPECT_TRUE(absl::IsUnauthenticated(principal.status())) << principal.status();
    return ErrorReason(principal.status());
  };
  EXPECT_EQ(reason("", {}), "CREDENTIAL_REQUIRED");
  EXPECT_EQ(reason("four", {}), "TOKEN_UNKNOWN");
  EXPECT_EQ(reason(TokenHash("one"), {}), "TOKEN_UNKNOWN");
  EXPECT_EQ(reason("three", {}), "TOKEN_EXPIRED");
  EXPECT_EQ(reason("", {"somebody"}), "CERTIFICATE_UNKNOWN");
  // A token decides: a good certificate does not make up for a bad one.
  EXPECT_EQ(reason("four", {"eu.example.org"}), "TOKEN_UNKNOWN");
  EXPECT_EQ(reason("a.b.c", {}), "TOKEN_INVALID");
  EXPECT_EQ(reason("one", {}, {.subjects = {"ann"}}), "TOKEN_REVOKED");
  EXPECT_EQ(reason("one", {}, {.tokens = {TokenHash("one")}}), "TOKEN_REVOKED");
  EXPECT_EQ(reason("", {"eu.example.org"}, {.subjects = {"eu"}}), "TOKEN_REVOKED");
  EXPECT_TRUE(principals->Check("two", {}, {.tokens = {TokenHash("one")}}, kNow).ok());
}

// The other ES256 signature of the same text: of (r, s) it is (r, n - s), where n is the order of P-256.
std::string TwinOf(const std::string& token) {
  std::string bytes;
  EXPECT_TRUE(absl::WebSafeBase64Unescape(token.substr(token.rfind('.') + 1), &bytes));
  BIGNUM* order = nullptr;
  BN_hex2bn(&order, "FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551");
  auto* const half = reinterpret_cast<unsigned char*>(bytes.data() + 32);
  BIGNUM* const s = BN_bin2bn(half, 32, nullptr);
  BN_sub(s, order, s);
  BN_bn2binpad(s, half, 32);
  BN_free(s);
  BN_free(order);
  std::string signature = absl::WebSafeBase64Escape(bytes);
  signature.erase(signature.find_last_not_of('=') + 1);
  return std::string(SignedPart(token)) + "." + signature;
}

// The last letter of 64 bytes in base64 has four bits that count for nothing.
std::string WithOtherLastBits(std::string token) {
  token.back() = static_cast<char>(token.back() + 1);  // "A", "Q", "g" or "w" before
  return token;
}

TEST(PrincipalsTest, JwtsOfAnIssuerAreKnown) {
  const testing::SigningKey key = testing::MakeEcSigningKey();
  const std::string yaml = R"(
jwt:
- issuer: https://issuer
  audience: atoll
  keys: issuer.pem
  roles: [submitter]
  subject_prefix: corp/
  quota: {open_jobs: 2}
)";
  const auto principals =
      Principals::Parse(yaml, "principals.yaml", [&](const std::string& path) -> absl::StatusOr<std::string> {
        EXPECT_EQ(path, "issuer.pem");
        return key.public_pem;
      });
  ASSERT_TRUE(principals.ok()) << principals.status();
  const std::string token = SignJwt(
      key, R"({"alg": "ES256"})",
      R"({"iss": "https://issuer", "aud": "atoll", "sub": "ann", "jti": "7", "iat": 1700000000, "exp": 1700003600,
          "roles": ["submitter", "admin"]})");
  const auto ann = principals->Check(token, {}, {}, kNow);
  ASSERT_TRUE(ann.ok()) << ann.status();
  EXPECT_EQ(ann->subject, "corp/ann");
  EXPECT_EQ(ann->roles, RoleSet({Role::kSubmitter}));
  EXPECT_EQ(ann->quota.open_jobs, 2);
  EXPECT_EQ(ErrorReason(principals->Check(token, {}, {.jtis = {"7"}}, kNow).status()), "TOKEN_REVOKED");
  // The deny list hashes only the signed part: a holder can rewrite the signature in other ways that verify as well.
  const DenyList denied{.tokens = {TokenHash(SignedPart(token))}};
  for (const std::string& text : {token, TwinOf(token), WithOtherLastBits(token)}) {
    EXPECT_EQ(principals->Check(text, {}, {}, kNow)->subject, "corp/ann") << text;
    EXPECT_EQ(ErrorReason(principals->Check(text, {}, denied, kNow).status()), "TOKEN_REVOKED") << text;
  }
  EXPECT_EQ(ErrorReason(principals->Check(token, {}, {.subjects = {"corp/ann"}}, kNow).status()), "TOKEN_REVOKED");
  EXPECT_TRUE(principals->Check(token, {}, {.subjects = {"ann"}, .jtis = {"8"}}, kNow).ok());
}

TEST(PrincipalsTest, AnIssuersAudienceHasOneEntry) {
  const std::string key = testing::MakeEcSigningKey().public_pem;
  const auto parse = [&](const std::string& audience) {
    const std::string first = "{issuer: i, audience: a, keys: k.pem, roles: [admin]}";
    const std::string second = "{issuer: i, audience: " + audience + ", keys: k.pem, roles: [reader]}";
    return Principals::Parse("jwt: [" + first + ", " + second + "]", "principals.yaml",
                             [&key](const std::string&) -> absl::StatusOr<std::string> { return key; });
  };
  EXPECT_TRUE(parse("b").ok());
  const absl::Status status = parse("a").status();
  EXPECT_EQ(ErrorField(status), "jwt[1].audience");
  EXPECT_THAT(std::string(status.message()), HasSubstr("every audience of an issuer once, found 'a'"));
}

TEST(PrincipalsTest, WrongFilesSayWhere) {
  const std::string hash = TokenHash("x");
  struct Case {
    std::string yaml;
    std::string field;
    std::string message;
  };
  const Case cases[] = {
      {"", "", "a mapping, found nothing"},
      {"principals: []", "principals", "at least one entry"},
      {"[]", "", "a mapping"},
      {"principal: []", "principal", "did you mean 'principals'?"},
      {"principals: 7", "principals", "a list"},
      {"principals: [ann]", "principals[0]", "a mapping"},
      {"principals: [{roles: [admin], token_sha256: " + hash + "}]", "principals[0].subject", "expected a text"},
      {"principals: [{subject: a, token_sha256: " + hash + "}]", "principals[0].roles", "expected some of admin"},
      {"principals: [{subject: a, roles: [root], token_sha256: " + hash + "}]", "principals[0].roles", "'root'"},
      {"principals: [{subject: a, roles: [admin]}]", "principals[0]", "token_sha256 or certificate"},
      {"principals: [{subject: a, roles: [admin], token_sha256: hunter2}]", "principals[0].token_sha256", "64 digits"},
      {"principals: [{subject: a, roles: [admin], token: x}]", "principals[0].token", "unknown field"},
      {"principals: [{subject: a, roles: [island], certificate: c}]", "principals[0].islands",
       "beside the role island"},
      {"principals: [{subject: a, roles: [admin], certificate: c, quota: {jobs: 1}}]", "principals[0].quota.jobs",
       "unknown field"},
      {"principals: [{subject: a, roles: [admin], certificate: c, quota: {open_jobs: -1}}]",
       "principals[0].quota.open_jobs", "a whole number"},
      {"principals: [{subject: a, roles: [admin], certificate: c, expires: tomorrow}]", "principals[0].expires",
       "a time as"},
      {"principals: [{subject: a, roles: [admin], certificate: c}, {subject: a, roles: [admin], certificate: d}]",
       "principals[1].subject", "every subject once"},
      {"principals: [{subject: a, roles: [admin], certificate: c}, {subject: b, roles: [admin], certificate: c}]",
       "principals[1].certificate", "once"},
      {"principals: [{subject: a, roles: [admin], certificate: [c, [d]]}]", "principals[0].certificate", "texts"},
      {"jwt: [{issuer: i, audience: a, roles: [admin]}]", "jwt[0].keys", "expected a text"},
  };
  for (const Case& one : cases) {
    const absl::Status status = Parse(one.yaml).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.yaml;
    EXPECT_EQ(ErrorField(status), one.field) << one.yaml << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message)) << one.yaml;
  }
  // The file has the token in place of its hash.
  EXPECT_THAT(std::string(Parse(cases[10].yaml).status().message()), Not(HasSubstr("hunter2")));
  const absl::Status keys = Parse("jwt: [{issuer: i, audience: a, roles: [admin], keys: k.pem}]").status();
  EXPECT_EQ(keys.message(), "jwt[0].keys: cannot read k.pem");
}

TEST(PrincipalsTest, ExpertServersAreTheCallersOwnWhereItsEntryNamesSome) {
  Principal principal{.subject = "eu", .roles = {Role::kExpert}};
  EXPECT_FALSE(*IsNamedForExpertServer(principal, "eu-1"));
  principal.expert_servers = {"eu-*", "north"};
  EXPECT_TRUE(*IsNamedForExpertServer(principal, "eu-1"));
  EXPECT_TRUE(*IsNamedForExpertServer(principal, "north"));
  const absl::Status status = IsNamedForExpertServer(principal, "us-1").status();
  EXPECT_EQ(ErrorReason(status), "EXPERT_SERVER_NOT_YOURS");
  EXPECT_EQ(status.message(), "'eu' may act for the expert servers [eu-*, north], not for 'us-1'");
  principal.roles.Add(Role::kAdmin);
  EXPECT_TRUE(*IsNamedForExpertServer(principal, "us-1"));
  EXPECT_TRUE(*IsNamedForExpertServer(OpenPrincipal("anonymous"), "us-1"));
}

TEST(PrincipalsTest, ModelsAreTheCallersOwnWhereItsEntryNamesSome) {
  const auto principals = Parse(fmt::format(R"(
principals:
- {{subject: all, roles: [submitter], token_sha256: {}}}
- {{subject: team, roles: [submitter], models: [team-*, digits], token_sha256: {}}}
- {{subject: none, roles: [submitter], models: [], token_sha256: {}}}
- {{subject: root, roles: [admin], models: [], token_sha256: {}}}
)",
                                            TokenHash("all"), TokenHash("team"), TokenHash("none"), TokenHash("root")));
  ASSERT_TRUE(principals.ok()) << principals.status();
  const auto check = [&](const char* token, const char* model) {
    return CheckModel(principals->Check(token, {}, {}, kNow).value(), model);
  };
  EXPECT_TRUE(check("all", "faces").ok());
  EXPECT_TRUE(check("team", "team-faces").ok());
  EXPECT_TRUE(check("team", "digits").ok());
  EXPECT_TRUE(check("root", "faces").ok());
  EXPECT_TRUE(CheckModel(OpenPrincipal("anonymous"), "faces").ok());
  const absl::Status status = check("team", "digits2");
  EXPECT_EQ(ErrorReason(status), "MODEL_NOT_YOURS");
  EXPECT_EQ(status.message(), "'team' may publish the models [team-*, digits], not 'digits2'");
  EXPECT_EQ(ErrorReason(check("none", "faces")), "MODEL_NOT_YOURS");
}

TEST(PrincipalsTest, IslandsAreTheCallersOwn) {
  Principal principal{.subject = "eu", .roles = {Role::kIsland}, .islands = {"eu-*", "north"}};
  for (const char* island : {"eu-", "eu-1", "eu-1-2", "north"})
    EXPECT_TRUE(CheckIsland(principal, island).ok()) << island;
  for (const char* island : {"", "eu", "xeu-1", "north2", "us-1"}) {
    EXPECT_EQ(ErrorReason(CheckIsland(principal, island)), "ISLAND_NOT_YOURS") << island;
  }
  EXPECT_EQ(CheckIsland(principal, "us-1").message(), "'eu' may act for the islands [eu-*, north], not for 'us-1'");
  EXPECT_TRUE(CheckIsland({.subject = "root", .roles = {Role::kAdmin}}, "us-1").ok());
  EXPECT_TRUE(CheckIsland(OpenPrincipal("anonymous"), "us-1").ok());
}

TEST(PrincipalsTest, PatternsMatchWholeNames) {
  EXPECT_TRUE(Matches("*", ""));
  EXPECT_TRUE(Matches("a*c*e", "abcde"));
  EXPECT_TRUE(Matches("a*c*e", "acce"));
  EXPECT_TRUE(Matches("**a", "bca"));
  EXPECT_FALSE(Matches("a*c", "abcd"));
  EXPECT_FALSE(Matches("", "a"));
  EXPECT_FALSE(Matches("a", ""));
}

TEST(DenyListTest, LinesAreRead) {
  const std::string hash = TokenHash("one");
  const auto list = DenyList::Parse("# who left\nsubject ann lee\n\n  jti 77 \r\ntoken " + hash, "deny");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->subjects, ElementsAre("ann lee"));
  EXPECT_THAT(list->jtis, ElementsAre("77"));
  EXPECT_THAT(list->tokens, ElementsAre(hash));
  const auto names = DenyList::Parse("subject 'o'neil's'\nsubject team #7\nsubject J\xC3\xBCrgen", "deny");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(names->subjects, UnorderedElementsAre("'o'neil's'", "team #7", "J\xC3\xBCrgen"));
}

TEST(DenyListTest, LinesThatCouldMatchNobodyAreRefused) {
  const std::string hash = TokenHash("one");
  const std::string lines[] = {"ann",
                               "subject",
                               "subject ",
                               "user ann",
                               "Subject ann",
                               "subject\tann",
                               "\xEF\xBB\xBFsubject ann",
                               "token " + absl::AsciiStrToUpper(hash),
                               "token " + hash.substr(0, 40),
                               "token " + hash + "0",
                               "token atoll_hunter2",
                               "token " + hash + " # left",
                               "token sha256:" + hash};
  for (const std::string& line : lines) {
    const absl::Status status = DenyList::Parse("jti 1\n" + line + "\njti 2", "deny").status();
    EXPECT_EQ(ErrorReason(status), "INVALID_DENY_LIST") << line;
    EXPECT_THAT(std::string(status.message()), StartsWith("deny, line 2: expected 'subject NAME'")) << line;
    // The line has the token in place of its hash.
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter2")));
  }
}

TEST(TokenTest, TokensAreRandomAndTheirHashesKnown) {
  const NewToken one = MakeToken();
  const NewToken two = MakeToken();
  EXPECT_NE(one.token, two.token);
  EXPECT_EQ(one.token.size(), 6u + 43u);
  EXPECT_EQ(one.sha256, TokenHash(one.token));
  EXPECT_EQ(TokenHash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace atl::rpc
