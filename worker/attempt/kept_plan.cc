#include "worker/attempt/kept_plan.h"

#include <string>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/hashed_bytes.h"
#include "common/storage/sha256.h"
#include "common/wire/plan_wire.h"

namespace atl::worker {
namespace {

constexpr int64_t kLargestPlan = 64 << 20;

std::string UriOf(const storage::BlobStore& store, const spec::TaskGrant& grant, int32_t ranks) {
  const std::string name = storage::Sha256(fmt::format("{} {}", grant.token.task_id, ranks)).substr(0, 32);
  return store.UriOf(fmt::format("plans/{}.binpb", name));
}

}  // namespace

absl::Status KeepPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks,
                      const planner::Plan& plan) {
  const std::string bytes = wire::ToProto(plan).SerializeAsString();
  return store->Write(UriOf(*store, grant, ranks), storage::WithHash(bytes)).status();
}

absl::StatusOr<planner::Plan> ReadKeptPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks) {
  const std::string uri = UriOf(*store, grant, ranks);
  ATOLL_ASSIGN_OR_RETURN(const std::string content, store->Read(uri, kLargestPlan));
  ATOLL_ASSIGN_OR_RETURN(const std::string_view bytes, storage::WithoutHash(content, uri));
  atlpb::plan::v1::Plan proto;
  absl::Status status = absl::InvalidArgumentError("expected a plan");
  if (proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    absl::StatusOr<planner::Plan> plan = wire::FromProto(proto);
    if (plan.ok() && plan->rank_count() <= ranks) return plan;
    if (!plan.ok()) status = plan.status();
  }
  return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                   fmt::format("{}: {}", uri, std::string(status.message())));
}

}  // namespace atl::worker
