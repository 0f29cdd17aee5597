#include "common/auth/guard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "grpc/grpc_security_constants.h"

namespace atl::rpc {
namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

std::string_view View(grpc::string_ref text) {
  return {text.data(), text.size()};
}

absl::StatusOr<Principal> Find(const Authenticator& authenticator, const Metadata& metadata,
                               const grpc::AuthContext& context) {
  ATOLL_ASSIGN_OR_RETURN(const std::string_view bearer, BearerOf(metadata));
  return authenticator.Check(bearer, CertificateNames(context));
}

}  // namespace

// A second credential beside the first is none of a client of ours.
absl::StatusOr<std::string_view> BearerOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto [first, last] = metadata.equal_range("authorization");
  if (first == last) return std::string_view();
  std::string_view value = View(first->second);
  if (std::next(first) != last ||
      !absl::EqualsIgnoreCase(absl::string_view(value.data(), std::min<size_t>(value.size(), 7)), "bearer ")) {
    return MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_INVALID",
                     "expected one header 'authorization: Bearer TOKEN', found another form");
  }
  value.remove_prefix(7);
  return value;
}

CallStart StartOf(std::string method, const grpc::ServerContextBase& call) {
  // The guard has let it in: its header is well formed.
  return {.method = std::move(method),
          .bearer = std::string(BearerOf(call.client_metadata()).value_or("")),
          .certificate_names = CertificateNames(*call.auth_context()),
          .began = absl::Now()};
}

absl::StatusOr<Principal> WhoStill(const Authenticator& authenticator, const CallStart& start) {
  ATOLL_ASSIGN_OR_RETURN(Principal principal,
                         authenticator.CheckAsOf(start.bearer, start.certificate_names, start.began));
  ATOLL_RETURN_IF_ERROR(CheckAccess(start.method, principal.subject, principal.roles));
  return principal;
}

grpc::Status Guard::Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                            OutputMetadata*) {
  const auto path = metadata.find(":path");
  const std::string_view method = path == metadata.end() ? "" : View(path->second);
  const Access* const row = FindAccess(method);
  if (row != nullptr && row->open) return grpc::Status::OK;
  const absl::StatusOr<Principal> caller = Find(*authenticator_, metadata, *context);
  const absl::Status status = caller.ok() ? CheckAccess(method, caller->subject, caller->roles) : caller.status();
  if (status.ok()) return grpc::Status::OK;
  Refused({.method = std::string(method),
           .subject = SubjectOfRefused(caller, CertificateNames(*context)),
           .peer = "",
           .status = status});
  return {static_cast<grpc::StatusCode>(status.code()),
          fmt::format("[{}] {}", ErrorReason(status), std::string(status.message()))};
}

absl::StatusOr<Principal> Guard::Who(const grpc::ServerContextBase& call) const {
  return Find(*authenticator_, call.client_metadata(), *call.auth_context());
}

void Guard::TellRefused(OnRefused on_refused) {
  absl::MutexLock lock(&mutex_);
  on_refused_ = std::move(on_refused);
}

void Guard::Refused(const RefusedCall& call) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (on_refused_) on_refused_(call);
}

absl::StatusOr<Principal> CallerOf(const Guard* guard, const grpc::ServerContextBase& call) {
  if (guard != nullptr) return guard->Who(call);
  const auto context = call.auth_context();
  const std::vector<std::string> names = context == nullptr ? std::vector<std::string>() : CertificateNames(*context);
  return OpenPrincipal(names.empty() ? "anonymous" : names.front());
}

// Uses names, not the peer's identity, which is "local" for every connection from this machine.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  for (const char* const property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context.FindPropertyValues(property)) {
      if (std::ranges::find(names, View(name)) == names.end()) names.emplace_back(View(name));
    }
  }
  return names;
}

}  // namespace atl::rpc
