#include "common/rpc/refused_subject.h"

#include "absl/strings/cord.h"

namespace atl::rpc {
namespace {

constexpr char kSubjectUrl[] = "atoll/subject";

}  // namespace

absl::Status WithSubject(absl::Status refusal, std::string_view subject) {
  if (!refusal.ok()) refusal.SetPayload(kSubjectUrl, absl::Cord(std::string(subject)));
  return refusal;
}

std::string SubjectOfRefused(const absl::StatusOr<Principal>& caller, std::span<const std::string> certificate_names) {
  if (caller.ok()) return caller->subject;
  if (const auto subject = caller.status().GetPayload(kSubjectUrl)) return std::string(*subject);
  return certificate_names.empty() ? "" : certificate_names.front();
}

}  // namespace atl::rpc
