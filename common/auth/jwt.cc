#include "common/auth/jwt.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/auth/name_pattern.h"
#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::rpc {
namespace {

using Json = nlohmann::json;

constexpr int kMinRsaBits = 2048;
constexpr int kMaxRsaBits = 8192;  // what a caller can make us compute
constexpr size_t kMaxSubject = 256;
constexpr std::string_view kPemStart = "-----BEGIN PUBLIC KEY-----";
constexpr size_t kP256Bytes = 32;  // of a coordinate, and of each half of an ES256 signature

using KeyPtr = Handle<EVP_PKEY, EVP_PKEY_free>;
using NumberPtr = Handle<BIGNUM, BN_free>;

absl::Status RefuseToken(std::string_view message, std::string_view reason = "TOKEN_INVALID") {
  return MakeError(absl::StatusCode::kUnauthenticated, reason, fmt::format("JWT: {}", message));
}

absl::Status BadKeys(std::string_view file, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_JWT_KEYS", fmt::format("{}: {}", file, message));
}

// The form without padding that JWTs use. absl's decoder alone would skip white space.
std::optional<std::string> FromBase64Url(std::string_view text) {
  const bool plain = std::ranges::all_of(
      text, [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; });
  std::string bytes;
  if (!plain || !absl::WebSafeBase64Unescape(absl::string_view(text.data(), text.size()), &bytes)) return std::nullopt;
  return bytes;
}

std::optional<Json> ReadObject(std::string_view text) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  return object;
}

// "" where it is absent or no text.
std::string Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Seconds since the epoch, up to the year 9999.
std::optional<absl::Time> ClaimTime(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double seconds = found->get<double>();
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 253'402'300'799.0) return std::nullopt;
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

absl::StatusOr<JwtKey> TakeKey(KeyPtr key, const std::string& id, std::string_view file) {
  JwtKey taken{.id = id};
  if (EVP_PKEY_is_a(key.get(), "RSA") == 1) {
    taken.algorithm = "RS256";
    if (const int bits = EVP_PKEY_get_bits(key.get()); bits < kMinRsaBits || bits > kMaxRsaBits) {
      return BadKeys(file,
                     fmt::format("expected an RSA key of {} to {} bits, found {}", kMinRsaBits, kMaxRsaBits, bits));
    }
  } else if (EVP_PKEY_is_a(key.get(), "EC") == 1) {
    taken.algorithm = "ES256";
    std::array<char, 64> group{};
    if (EVP_PKEY_get_group_name(key.get(), group.data(), group.size(), nullptr) != 1 ||
        std::string_view(group.data()) != "prime256v1") {
      return BadKeys(file, fmt::format("expected an EC key on P-256, found one on {}", group.data()));
    }
  } else {
    return BadKeys(file, "expected RSA keys and EC keys on P-256, found another kind");
  }
  taken.key = std::move(key);
  return taken;
}

absl::StatusOr<std::vector<JwtKey>> KeysOfPem(std::string_view text, std::string_view file) {
  const Handle<BIO, BIO_free_all> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  std::vector<JwtKey> keys;
  while (KeyPtr key{PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr)}) {
    ATOLL_ASSIGN_OR_RETURN(JwtKey taken, TakeKey(std::move(key), "", file));
    keys.push_back(std::move(taken));
  }
  ERR_clear_error();
  if (keys.empty()) return BadKeys(file, "expected 'BEGIN PUBLIC KEY' (PEM) or a JSON Web Key Set, found neither");
  // OpenSSL reports the end of the file and a damaged key, as in a half-written file, in the same way.
  size_t begun = 0;
  for (size_t at = 0; (at = text.find(kPemStart, at)) != std::string_view::npos; at += kPemStart.size()) ++begun;
  if (keys.size() < begun)
    return BadKeys(file, fmt::format("expected {} keys, found {} whole ones", begun, keys.size()));
  return keys;
}

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

NumberPtr ToNumber(std::string_view bytes) {
  return NumberPtr(BN_bin2bn(Bytes(bytes), static_cast<int>(bytes.size()), nullptr));
}

NumberPtr NumberOf(const Json& key, const char* name) {
  const std::optional<std::string> bytes = FromBase64Url(Text(key, name));
  return bytes && !bytes->empty() && bytes->size() <= kMaxRsaBits / 8 ? ToNumber(*bytes) : nullptr;
}

using Builder = Handle<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free>;

KeyPtr Build(const char* kind, OSSL_PARAM_BLD* builder) {
  const Handle<OSSL_PARAM, OSSL_PARAM_free> params(OSSL_PARAM_BLD_to_param(builder));
  const Handle<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(EVP_PKEY_CTX_new_from_name(nullptr, kind, nullptr));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return KeyPtr(key);
}

KeyPtr RsaKey(const Json& key) {
  const NumberPtr modulus = NumberOf(key, "n");
  const NumberPtr exponent = NumberOf(key, "e");
  const Builder builder(OSSL_PARAM_BLD_new());
  if (modulus == nullptr || exponent == nullptr || builder == nullptr ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1) {
    return nullptr;
  }
  return Build("RSA", builder.get());
}

KeyPtr EcKey(const Json& key) {
  const std::optional<std::string> x = FromBase64Url(Text(key, "x"));
  const std::optional<std::string> y = FromBase64Url(Text(key, "y"));
  const Builder builder(OSSL_PARAM_BLD_new());
  if (!x || !y || x->size() != kP256Bytes || y->size() != kP256Bytes || builder == nullptr) return nullptr;
  const std::string point = "\x04" + *x + *y;
  if (OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(), point.size()) != 1) {
    return nullptr;
  }
  return Build("EC", builder.get());
}

absl::StatusOr<std::vector<JwtKey>> KeysOfSet(std::string_view text, std::string_view file) {
  const std::optional<Json> set = ReadObject(text);
  const auto list = set ? set->find("keys") : Json::const_iterator();
  if (!set || list == set->end() || !list->is_array()) {
    return BadKeys(file, "expected a JSON Web Key Set with a list 'keys'");
  }
  std::vector<JwtKey> keys;
  for (const Json& one : *list) {
    if (!one.is_object()) return BadKeys(file, "expected objects in the list 'keys'");
    const std::string kind = Text(one, "kty");
    const std::string use = Text(one, "use");
    const std::string algorithm = Text(one, "alg");
    // Sets hold keys for other purposes too.
    if (!use.empty() && use != "sig") continue;
    if (kind != "RSA" && !(kind == "EC" && Text(one, "crv") == "P-256")) continue;
    if (!algorithm.empty() && algorithm != (kind == "RSA" ? "RS256" : "ES256")) continue;
    KeyPtr key = kind == "RSA" ? RsaKey(one) : EcKey(one);
    if (key == nullptr) {
      return BadKeys(file, fmt::format("key {}: its numbers make no {} key", Quoted(Text(one, "kid")), kind));
    }
    ATOLL_ASSIGN_OR_RETURN(JwtKey taken, TakeKey(std::move(key), Text(one, "kid"), file));
    keys.push_back(std::move(taken));
  }
  if (keys.empty()) return BadKeys(file, "expected a key for RS256 or ES256, found none");
  return keys;
}

// An ES256 signature is two numbers side by side; OpenSSL wants them in DER. Returns "" for another form.
std::string ToDer(std::string_view signature) {
  if (signature.size() != 2 * kP256Bytes) return "";
  const Handle<ECDSA_SIG, ECDSA_SIG_free> numbers(ECDSA_SIG_new());
  NumberPtr r = ToNumber(signature.substr(0, kP256Bytes));
  NumberPtr s = ToNumber(signature.substr(kP256Bytes));
  if (numbers == nullptr || r == nullptr || s == nullptr) return "";
  ECDSA_SIG_set0(numbers.get(), r.release(), s.release());
  std::array<unsigned char, 80> der{};  // at most 72 are used
  unsigned char* end = der.data();
  const int size = i2d_ECDSA_SIG(numbers.get(), &end);
  return {der.begin(), der.begin() + std::max(size, 0)};
}

bool SignatureFits(const JwtKey& key, std::string_view signed_part, std::string_view signature) {
  const std::string bytes = key.algorithm == "ES256" ? ToDer(signature) : std::string(signature);
  const Handle<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  const bool fits =
      context != nullptr && EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key.key.get()) == 1 &&
      EVP_DigestVerify(context.get(), Bytes(bytes), bytes.size(), Bytes(signed_part), signed_part.size()) == 1;
  ERR_clear_error();
  return fits;
}

// A subject stands in logs, and in a line of the deny list.
bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxSubject && text.front() != ' ' && text.back() != ' ' &&
         std::ranges::none_of(text, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

bool HasAudience(const Json& claims, const std::string& wanted) {
  const auto found = claims.find("aud");
  if (found == claims.end()) return false;
  if (found->is_string()) return found->get<std::string>() == wanted;
  return found->is_array() && std::ranges::any_of(*found, [&](const Json& one) {
           return one.is_string() && one.get<std::string>() == wanted;
         });
}

absl::StatusOr<size_t> IssuerOf(const Json& claims, std::span<const JwtIssuer> issuers) {
  const std::string name = Text(claims, "iss");
  for (size_t i = 0; i < issuers.size(); ++i) {
    if (issuers[i].issuer == name && HasAudience(claims, issuers[i].audience)) return i;
  }
  return RefuseToken(
      fmt::format("no issuer that is trusted here is {} (iss), with this service as audience (aud)", Quoted(name)));
}

absl::StatusOr<absl::Time> CheckTimes(const Json& claims, absl::Time now) {
  const std::optional<absl::Time> issued = ClaimTime(claims, "iat");
  const std::optional<absl::Time> expires = ClaimTime(claims, "exp");
  const std::optional<absl::Time> start = claims.contains("nbf") ? ClaimTime(claims, "nbf") : issued;
  if (!issued || !expires || !start || *expires <= *issued || *expires - *issued > kMaxJwtLifetime) {
    return RefuseToken(
        "expected claims iat and exp, and nbf if any, in seconds since 1970, with exp at most an hour after iat");
  }
  if (now > *expires + kJwtLeeway) {
    return RefuseToken(fmt::format("it expired at {}", absl::FormatTime(*expires, absl::UTCTimeZone())),
                       "TOKEN_EXPIRED");
  }
  if (std::max(*issued, *start) > now + kJwtLeeway) return RefuseToken("it is from the future; are the clocks right?");
  return *expires;
}

std::optional<std::vector<std::string>> TextsOf(const Json& claims, const char* name) {
  const auto found = claims.find(name);
  std::vector<std::string> texts;
  if (found == claims.end()) return texts;
  if (!found->is_array()) return std::nullopt;
  for (const Json& one : *found) {
    if (!one.is_string()) return std::nullopt;
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

// Returns the claim's entries that the issuer may grant, or all of the issuer's where the claim is absent. Unset if the
// claim is not a list of texts.
std::optional<std::vector<std::string>> CoveredTexts(const Json& claims, const char* name,
                                                     const std::vector<std::string>& patterns) {
  if (!claims.contains(name)) return patterns;
  auto texts = TextsOf(claims, name);
  if (texts) std::erase_if(*texts, [&](const std::string& text) { return !MatchesAny(patterns, text); });
  return texts;
}

absl::Status TakeRights(const Json& claims, const JwtIssuer& issuer, JwtClaims* taken) {
  const auto roles = TextsOf(claims, "roles");
  auto islands = CoveredTexts(claims, "islands", issuer.islands);
  auto models = CoveredTexts(claims, "models", issuer.models);
  if (!roles || !islands || !models) {
    return RefuseToken("expected claims roles, islands and models to be lists of texts");
  }
  for (const std::string& name : *roles) {
    // Names of other services' roles may stand beside ours.
    if (const std::optional<Role> role = ParseRole(name); role && issuer.roles.Has(*role)) taken->roles.Add(*role);
  }
  taken->islands = *std::move(islands);
  taken->models = *std::move(models);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<JwtKey>> ParseJwtKeys(std::string_view text, std::string_view file_name) {
  if (text.size() > 256 * 1024) return BadKeys(file_name, "expected at most 256 KiB of keys");
  const size_t start = text.find_first_not_of(" \t\r\n");
  const bool json = start != std::string_view::npos && text[start] == '{';
  return json ? KeysOfSet(text, file_name) : KeysOfPem(text, file_name);
}

bool LooksLikeJwt(std::string_view token) {
  return std::ranges::count(token, '.') == 2;
}

std::string_view SignedPart(std::string_view token) {
  return token.substr(0, token.rfind('.'));
}

absl::StatusOr<JwtClaims> VerifyJwt(std::string_view token, std::span<const JwtIssuer> issuers, absl::Time now) {
  if (token.size() > kMaxJwtBytes) return RefuseToken("expected at most 8 KiB");
  if (!LooksLikeJwt(token)) return RefuseToken("expected three parts between two dots");
  const std::string_view signed_part = SignedPart(token);
  const size_t dot = signed_part.find('.');
  const std::optional<std::string> header_text = FromBase64Url(signed_part.substr(0, dot));
  const std::optional<std::string> claims_text = FromBase64Url(signed_part.substr(dot + 1));
  const std::optional<std::string> signature = FromBase64Url(token.substr(signed_part.size() + 1));
  if (!header_text || !claims_text || !signature || signature->empty()) {
    return RefuseToken("expected three parts in base64url");
  }
  const std::optional<Json> header = ReadObject(*header_text);
  if (!header) return RefuseToken("expected a JSON object as header");
  const std::string algorithm = Text(*header, "alg");
  if (algorithm != "RS256" && algorithm != "ES256") {
    return RefuseToken(fmt::format("expected RS256 or ES256, found {}", Quoted(algorithm)));
  }
  if (header->contains("crit")) return RefuseToken("expected no header 'crit': nothing of it is known");
  const std::optional<Json> claims = ReadObject(*claims_text);
  if (!claims) return RefuseToken("expected a JSON object as claims");

  JwtClaims taken;
  ATOLL_ASSIGN_OR_RETURN(taken.issuer, IssuerOf(*claims, issuers));
  const JwtIssuer& issuer = issuers[taken.issuer];
  const std::string key_id = Text(*header, "kid");
  const bool genuine = std::ranges::any_of(issuer.keys, [&](const JwtKey& key) {
    return key.algorithm == algorithm && (key.id.empty() || key_id.empty() || key.id == key_id) &&
           SignatureFits(key, signed_part, *signature);
  });
  if (!genuine) {
    return RefuseToken(fmt::format("no {} key of {} made its signature", algorithm, Quoted(issuer.issuer)));
  }
  ATOLL_ASSIGN_OR_RETURN(taken.expires, CheckTimes(*claims, now));
  taken.subject = Text(*claims, "sub");
  if (!IsName(taken.subject)) {
    return RefuseToken(
        fmt::format("expected a claim sub of 1 to {} printable bytes, no blank at its ends", kMaxSubject));
  }
  if (claims->contains("jti") && !claims->at("jti").is_string()) {
    return RefuseToken("expected claim jti to be a text");
  }
  taken.id = Text(*claims, "jti");
  ATOLL_RETURN_IF_ERROR(TakeRights(*claims, issuer, &taken));
  return taken;
}

}  // namespace atl::rpc
