#include "common/auth/principals.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "common/auth/name_pattern.h"
#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "common/spec/nearest_name.h"
#include "common/spec/yaml_tree.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::rpc {

using spec::YamlNode;

namespace {

constexpr size_t kMaxName = 512;

// Returns whether the text has the form that TokenHash writes.
bool IsTokenHash(std::string_view text) {
  return text.size() == 2 * SHA256_DIGEST_LENGTH && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

std::string_view Stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

}  // namespace

// Reads the file's tree, field by field.
class PrincipalsReader {
 public:
  PrincipalsReader(Principals* principals, const Principals::ReadFile& read) : principals_(principals), read_(read) {}

  absl::Status Read(const YamlNode& root) {
    ATOLL_RETURN_IF_ERROR(CheckFields(root, "", {"principals", "jwt"}));
    ATOLL_RETURN_IF_ERROR(ForEach(root, "principals", [this](const YamlNode& node, const std::string& path) {
      return ReadPrincipal(node, path);
    }));
    ATOLL_RETURN_IF_ERROR(
        ForEach(root, "jwt", [this](const YamlNode& node, const std::string& path) { return ReadIssuer(node, path); }));
    if (!principals_->principals_.empty() || !principals_->issuers_.empty()) return absl::OkStatus();
    return Wrong("principals", root, "at least one entry, or one in jwt: else nobody could call anything");
  }

 private:
  static absl::Status Wrong(const std::string& path, const YamlNode& node, std::string_view expected) {
    const std::string found = node.kind == YamlNode::Kind::kScalar ? Quoted(node.text) : spec::Describe(node);
    const std::string message = fmt::format("expected {}, found {} ({})", expected, found, node.where);
    if (!path.empty()) return FieldError(path, "INVALID_PRINCIPALS", message);
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_PRINCIPALS", message);
  }

  static absl::Status Missing(const std::string& path, const YamlNode& node, std::string_view expected) {
    return FieldError(path, "INVALID_PRINCIPALS", fmt::format("expected {}, found none ({})", expected, node.where));
  }

  static absl::Status CheckFields(const YamlNode& node, const std::string& path,
                                  const std::vector<std::string>& known) {
    if (node.kind != YamlNode::Kind::kMap) return Wrong(path, node, "a mapping");
    for (const auto& [name, value] : node.fields) {
      if (std::ranges::find(known, name) != known.end()) continue;
      const std::string nearest = spec::NearestName(name, known);
      const std::string quoted = Quoted(name);
      const std::string shown = quoted.substr(1, quoted.size() - 2);
      return FieldError(path.empty() ? shown : path + "." + shown, "UNKNOWN_FIELD",
                        fmt::format("unknown field; {} ({})",
                                    nearest.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                                    : fmt::format("did you mean '{}'?", nearest),
                                    value->where));
    }
    return absl::OkStatus();
  }

  template <typename Function>
  static absl::Status ForEach(const YamlNode& node, const std::string& name, const Function& function) {
    const YamlNode* list = node.Find(name);
    if (list == nullptr || list->kind == YamlNode::Kind::kNull) return absl::OkStatus();
    if (list->kind != YamlNode::Kind::kSequence) return Wrong(name, *list, "a list");
    for (size_t i = 0; i < list->items.size(); ++i) {
      ATOLL_RETURN_IF_ERROR(function(*list->items[i], fmt::format("{}[{}]", name, i)));
    }
    return absl::OkStatus();
  }

  // Leaves `text` as it is where an optional one is absent.
  static absl::Status ReadText(const YamlNode& node, const std::string& path, const char* name, bool required,
                               std::string* text) {
    const YamlNode* value = node.Find(name);
    if (value == nullptr) return required ? Missing(path + "." + name, node, "a text") : absl::OkStatus();
    const bool good =
        value->kind == YamlNode::Kind::kScalar && !value->text.empty() && value->text.size() <= kMaxName &&
        std::ranges::none_of(value->text, [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
    if (!good) return Wrong(path + "." + name, *value, "a text of 1 to 512 bytes on one line");
    *text = value->text;
    return absl::OkStatus();
  }

  // A list of texts, or one text alone.
  static absl::Status ReadTexts(const YamlNode& node, const std::string& path, const char* name,
                                std::vector<std::string>* texts) {
    const YamlNode* value = node.Find(name);
    if (value == nullptr) return absl::OkStatus();
    if (value->kind == YamlNode::Kind::kScalar) {
      texts->emplace_back();
      return ReadText(node, path, name, true, &texts->back());
    }
    if (value->kind != YamlNode::Kind::kSequence) return Wrong(path + "." + name, *value, "a list");
    for (const auto& item : value->items) {
      if (item->kind != YamlNode::Kind::kScalar || item->text.empty()) {
        return Wrong(path + "." + name, *item, "a list of texts");
      }
      texts->push_back(item->text);
    }
    return absl::OkStatus();
  }

  static absl::Status ReadRoles(const YamlNode& node, const std::string& path, RoleSet* roles) {
    std::vector<std::string> names;
    ATOLL_RETURN_IF_ERROR(ReadTexts(node, path, "roles", &names));
    const std::string expected = "some of " + RoleNames(RoleSet::All());
    for (const std::string& name : names) {
      const std::optional<Role> role = ParseRole(name);
      if (!role) {
        return FieldError(path + ".roles", "INVALID_PRINCIPALS",
                          fmt::format("expected {}, found {} ({})", expected, Quoted(name), node.Find("roles")->where));
      }
      roles->Add(*role);
    }
    return names.empty() ? Missing(path + ".roles", node, expected) : absl::OkStatus();
  }

  // An entry with the role island must list its islands: a forgotten line must not mean all of them.
  static absl::Status ReadIslands(const YamlNode& node, const std::string& path, RoleSet roles,
                                  std::vector<std::string>* islands) {
    ATOLL_RETURN_IF_ERROR(ReadTexts(node, path, "islands", islands));
    if (!roles.Has(Role::kIsland) || !islands->empty()) return absl::OkStatus();
    return Missing(path + ".islands", node, "names of islands beside the role island, as [eu-*]");
  }

  // Without the line, every model is allowed; an empty list allows none.
  static absl::Status ReadModels(const YamlNode& node, const std::string& path, std::vector<std::string>* models) {
    if (node.Find("models") == nullptr) return absl::OkStatus();
    models->clear();
    return ReadTexts(node, path, "models", models);
  }

  static absl::Status ReadQuota(const YamlNode& node, const std::string& path, Quota* quota) {
    const YamlNode* value = node.Find("quota");
    if (value == nullptr) return absl::OkStatus();
    const std::string here = path + ".quota";
    ATOLL_RETURN_IF_ERROR(CheckFields(*value, here, {"open_jobs", "images_in_flight", "images_per_minute", "islands"}));
    for (const auto& [name, number] : value->fields) {
      int64_t most = 0;
      if (number->kind != YamlNode::Kind::kScalar || !absl::SimpleAtoi(number->text, &most) || most < 0) {
        return Wrong(here + "." + name, *number, "a whole number of at least 0");
      }
      (name == "open_jobs"           ? quota->open_jobs
       : name == "images_in_flight"  ? quota->images_in_flight
       : name == "images_per_minute" ? quota->images_per_minute
                                     : quota->islands) = most;
    }
    return absl::OkStatus();
  }

  static absl::Status ReadExpiry(const YamlNode& node, const std::string& path, absl::Time* expires) {
    std::string text;
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "expires", false, &text));
    if (text.empty() || absl::ParseTime(absl::RFC3339_full, text, expires, nullptr)) return absl::OkStatus();
    return Wrong(path + ".expires", *node.Find("expires"), "a time as 2027-01-31T00:00:00Z");
  }

  absl::Status ReadPrincipal(const YamlNode& node, const std::string& path) {
    ATOLL_RETURN_IF_ERROR(CheckFields(node, path,
                                      {"subject", "roles", "token_sha256", "certificate", "islands", "expert_servers",
                                       "models", "quota", "expires"}));
    Principal principal;
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "subject", true, &principal.subject));
    const bool taken = std::ranges::any_of(principals_->principals_,
                                           [&](const Principal& other) { return other.subject == principal.subject; });
    if (taken) return Wrong(path + ".subject", *node.Find("subject"), "every subject once");
    ATOLL_RETURN_IF_ERROR(ReadRoles(node, path, &principal.roles));
    ATOLL_RETURN_IF_ERROR(ReadIslands(node, path, principal.roles, &principal.islands));
    ATOLL_RETURN_IF_ERROR(ReadTexts(node, path, "expert_servers", &principal.expert_servers));
    ATOLL_RETURN_IF_ERROR(ReadModels(node, path, &principal.models));
    ATOLL_RETURN_IF_ERROR(ReadQuota(node, path, &principal.quota));
    ATOLL_RETURN_IF_ERROR(ReadExpiry(node, path, &principal.expires));
    std::vector<std::string> tokens;
    std::vector<std::string> certificates;
    ATOLL_RETURN_IF_ERROR(ReadTexts(node, path, "token_sha256", &tokens));
    ATOLL_RETURN_IF_ERROR(ReadTexts(node, path, "certificate", &certificates));
    if (tokens.empty() && certificates.empty()) return Missing(path, node, "token_sha256 or certificate");
    const size_t index = principals_->principals_.size();
    for (const std::string& token : tokens) {
      // The entry may be the token itself, so the message does not repeat it.
      if (!IsTokenHash(token)) {
        return FieldError(path + ".token_sha256", "INVALID_PRINCIPALS",
                          fmt::format("expected the SHA-256 of a token, 64 digits of lower-case hex ('atoll auth "
                                      "new-token' prints it), found another text ({})",
                                      node.Find("token_sha256")->where));
      }
      if (!principals_->by_token_.emplace(token, index).second) {
        return Wrong(path + ".token_sha256", *node.Find("token_sha256"), "every token once");
      }
    }
    for (const std::string& name : certificates) {
      if (!principals_->by_certificate_.emplace(name, index).second) {
        return Wrong(path + ".certificate", *node.Find("certificate"), "every certificate's name once");
      }
    }
    principals_->principals_.push_back(std::move(principal));
    return absl::OkStatus();
  }

  absl::Status ReadIssuer(const YamlNode& node, const std::string& path) {
    ATOLL_RETURN_IF_ERROR(CheckFields(
        node, path, {"issuer", "audience", "keys", "roles", "islands", "models", "subject_prefix", "quota"}));
    JwtIssuer issuer;
    Principals::IssuedTo issued_to;
    std::string keys;
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "issuer", true, &issuer.issuer));
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "audience", true, &issuer.audience));
    // A second entry for the same audience would have no effect.
    const bool taken = std::ranges::any_of(principals_->issuers_, [&](const JwtIssuer& other) {
      return other.issuer == issuer.issuer && other.audience == issuer.audience;
    });
    if (taken) return Wrong(path + ".audience", *node.Find("audience"), "every audience of an issuer once");
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "keys", true, &keys));
    ATOLL_RETURN_IF_ERROR(ReadRoles(node, path, &issuer.roles));
    ATOLL_RETURN_IF_ERROR(ReadIslands(node, path, issuer.roles, &issuer.islands));
    ATOLL_RETURN_IF_ERROR(ReadModels(node, path, &issuer.models));
    ATOLL_RETURN_IF_ERROR(ReadText(node, path, "subject_prefix", false, &issued_to.subject_prefix));
    ATOLL_RETURN_IF_ERROR(ReadQuota(node, path, &issued_to.quota));
    absl::StatusOr<std::string> text = read_(keys);
    if (!text.ok()) return WithContext(text.status(), path + ".keys");
    auto parsed = ParseJwtKeys(*text, keys);
    if (!parsed.ok()) return WithContext(parsed.status(), path + ".keys");
    issuer.keys = std::move(*parsed);
    principals_->issuers_.push_back(std::move(issuer));
    principals_->issued_to_.push_back(std::move(issued_to));
    return absl::OkStatus();
  }

  Principals* const principals_;
  const Principals::ReadFile& read_;
};

namespace {

absl::Status Refused(std::string_view reason, std::string_view message) {
  return MakeError(absl::StatusCode::kUnauthenticated, reason, message);
}

constexpr char kSubjectUrl[] = "atoll/subject";

// Adds the subject of the credential, for SubjectOfRefused.
absl::Status Refused(std::string_view reason, std::string_view message, std::string_view subject) {
  absl::Status refusal = Refused(reason, message);
  refusal.SetPayload(kSubjectUrl, absl::Cord(std::string(subject)));
  return refusal;
}

// OK where the caller may call at `now`.
absl::Status CheckInForce(const Principal& principal, const DenyList& denied, absl::Time now) {
  const std::string& subject = principal.subject;
  if (denied.subjects.contains(subject)) {
    return Refused("TOKEN_REVOKED", fmt::format("{} is on the deny list", Quoted(subject)), subject);
  }
  if (now < principal.expires) return absl::OkStatus();
  return Refused("TOKEN_EXPIRED",
                 fmt::format("the entry of {} expired at {}", Quoted(subject),
                             absl::FormatTime(principal.expires, absl::UTCTimeZone())),
                 subject);
}

}  // namespace

Principal OpenPrincipal(std::string_view subject) {
  return {.subject = std::string(subject), .roles = RoleSet::All(), .islands = {"*"}, .expert_servers = {"*"}};
}

bool MayActForIsland(const Principal& principal, std::string_view island_id) {
  return principal.roles.Has(Role::kAdmin) || MatchesAny(principal.islands, island_id);
}

absl::Status CheckIsland(const Principal& principal, std::string_view island_id) {
  if (MayActForIsland(principal, island_id)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "ISLAND_NOT_YOURS",
                   fmt::format("{} may act for the islands [{}], not for {}", Quoted(principal.subject),
                               fmt::join(principal.islands, ", "), Quoted(island_id)));
}

absl::StatusOr<bool> IsNamedForExpertServer(const Principal& principal, std::string_view server_id) {
  if (principal.roles.Has(Role::kAdmin) || MatchesAny(principal.expert_servers, server_id)) return true;
  if (principal.expert_servers.empty()) return false;
  return MakeError(absl::StatusCode::kPermissionDenied, "EXPERT_SERVER_NOT_YOURS",
                   fmt::format("{} may act for the expert servers [{}], not for {}", Quoted(principal.subject),
                               fmt::join(principal.expert_servers, ", "), Quoted(server_id)));
}

absl::Status CheckModel(const Principal& principal, std::string_view model) {
  if (principal.roles.Has(Role::kAdmin) || MatchesAny(principal.models, model)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "MODEL_NOT_YOURS",
                   fmt::format("{} may publish the models [{}], not {}", Quoted(principal.subject),
                               fmt::join(principal.models, ", "), Quoted(model)));
}

absl::StatusOr<DenyList> DenyList::Parse(std::string_view text, std::string_view file_name) {
  DenyList list;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Stripped(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const size_t space = line.find(' ');
    const std::string_view kind = line.substr(0, space);
    const std::string_view value = space == std::string_view::npos ? "" : Stripped(line.substr(space + 1));
    auto* const entries = kind == "subject" ? &list.subjects
                          : kind == "jti"   ? &list.jtis
                          : kind == "token" ? &list.tokens
                                            : nullptr;
    // A token may stand there by mistake: the message does not repeat it.
    if (entries == nullptr || value.empty() || (kind == "token" && !IsTokenHash(value))) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "INVALID_DENY_LIST",
          fmt::format("{}, line {}: expected 'subject NAME', 'jti ID' or 'token SHA256' with 64 digits of "
                      "lower-case hex ('cut -d. -f1,2 FILE | tr -d \"\\n\" | sha256sum' prints them), found "
                      "another text",
                      file_name, number));
    }
    entries->emplace(value);
  }
  return list;
}

absl::StatusOr<Principals> Principals::Parse(std::string_view yaml, std::string_view file_name, const ReadFile& read) {
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<YamlNode> root, spec::ParseYamlTree(yaml, file_name));
  Principals principals;
  ATOLL_RETURN_IF_ERROR(PrincipalsReader(&principals, read).Read(*root));
  return principals;
}

absl::StatusOr<Principal> Principals::CheckJwt(std::string_view bearer, const DenyList& denied, absl::Time now) const {
  ATOLL_ASSIGN_OR_RETURN(JwtClaims claims, VerifyJwt(bearer, issuers_, now));
  Principal principal;
  principal.subject = issued_to_[claims.issuer].subject_prefix + claims.subject;
  principal.quota = issued_to_[claims.issuer].quota;
  principal.roles = claims.roles;
  principal.islands = std::move(claims.islands);
  principal.models = std::move(claims.models);
  principal.expires = claims.expires + kJwtLeeway;
  if (denied.jtis.contains(claims.id)) {
    return Refused("TOKEN_REVOKED", fmt::format("the token of {} is on the deny list", Quoted(principal.subject)),
                   principal.subject);
  }
  ATOLL_RETURN_IF_ERROR(CheckInForce(principal, denied, now));
  return principal;
}

absl::StatusOr<Principal> Principals::Check(std::string_view bearer, std::span<const std::string> certificate_names,
                                            const DenyList& denied, absl::Time now) const {
  const auto entry = [&](size_t index) -> absl::StatusOr<Principal> {
    ATOLL_RETURN_IF_ERROR(CheckInForce(principals_[index], denied, now));
    return principals_[index];
  };
  if (!bearer.empty()) {
    // The lookup is by hash, which a caller cannot choose: its duration reveals nothing about other tokens.
    const auto found = by_token_.find(TokenHash(bearer));
    // The list contains JWTs by their signed part. The subject of a denied JWT stays unknown.
    if (denied.tokens.contains(TokenHash(LooksLikeJwt(bearer) ? SignedPart(bearer) : bearer))) {
      return Refused("TOKEN_REVOKED", "the token is on the deny list",
                     found == by_token_.end() ? "" : principals_[found->second].subject);
    }
    if (LooksLikeJwt(bearer)) return CheckJwt(bearer, denied, now);
    if (found == by_token_.end()) return Refused("TOKEN_UNKNOWN", "the token is not one of this service's");
    return entry(found->second);
  }
  for (const std::string& name : certificate_names) {
    if (const auto found = by_certificate_.find(name); found != by_certificate_.end()) return entry(found->second);
  }
  if (!certificate_names.empty()) {
    return Refused("CERTIFICATE_UNKNOWN",
                   fmt::format("no principal has the certificate of {}, and no token came with the call",
                               Quoted(certificate_names.front())));
  }
  return Refused("CREDENTIAL_REQUIRED", "expected a token or a client certificate, found neither");
}

std::string SubjectOfRefused(const absl::StatusOr<Principal>& caller, std::span<const std::string> certificate_names) {
  if (caller.ok()) return caller->subject;
  const auto subject = caller.status().GetPayload(kSubjectUrl);
  if (subject && !subject->empty()) return std::string(*subject);
  return certificate_names.empty() ? "" : certificate_names.front();
}

NewToken MakeToken() {
  std::array<unsigned char, 32> bytes{};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) std::abort();  // the system has no random bytes
  std::string token = "atoll_" + absl::WebSafeBase64Escape(
                                     absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  token.erase(token.find_last_not_of('=') + 1);
  return {token, TokenHash(token)};
}

std::string TokenHash(std::string_view token) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

}  // namespace atl::rpc
