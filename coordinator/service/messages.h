// Conversion of jobs, models and islands between the coordinator's structs and proto; common/wire has the shared types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "atoll/admin/v1/admin_service.pb.h"
#include "atoll/island/v1/island_service.pb.h"
#include "atoll/job/v1/job_service.pb.h"
#include "atoll/model/v1/model_service.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/store/store.h"
#include "google/protobuf/message.h"

namespace atl::coordinator {

// Without tasks.
atlpb::job::v1::Job JobToProto(const jobs::Job& job);
atlpb::job::v1::Job JobToProto(const JobView& view);
atlpb::job::v1::Task TaskToProto(const jobs::Task& task);
atlpb::admin::v1::Island IslandToProto(const IslandView& view);
atlpb::job::v1::Rollback RollbackToProto(const jobs::Rollback& rollback);
atlpb::model::v1::Model ModelToProto(const store::Model& model);
leases::Capabilities CapabilitiesFromProto(const atlpb::island::v1::Capabilities& proto);

// Returns 50 for 0 and 1000 for more than 1000; INVALID_ARGUMENT (INVALID_PAGE_SIZE) for a negative size.
absl::StatusOr<int32_t> PageSize(int32_t requested);

// Returns the SHA-256 of the request without its request_id, which a repeated call must equal.
std::string PayloadHash(const google::protobuf::Message& request);

}  // namespace atl::coordinator
