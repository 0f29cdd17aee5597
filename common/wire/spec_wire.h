// Job specs between domain and proto, by reflection over the names that spec::Visit gives: a field is named once.
#pragma once

#include "atoll/job/v1/job.pb.h"
#include "atoll/plan/v1/plan.pb.h"
#include "common/spec/spec.h"

namespace atl::wire {

// Sets every field.
void ToProto(const spec::JobSpec& spec, atlpb::job::v1::JobSpec* proto);
atlpb::job::v1::JobSpec ToProto(const spec::JobSpec& spec);

// An unset field keeps its default; one of router_training takes the value of the same field of training. Never fails:
// spec::Validate reports invalid values.
spec::JobSpec FromProto(const atlpb::job::v1::JobSpec& proto);

// Converts a precision to and from the message of a plan in the same way.
void ToProto(const spec::PrecisionSpec& precision, atlpb::plan::v1::Precision* proto);
spec::PrecisionSpec FromProto(const atlpb::plan::v1::Precision& proto);

}  // namespace atl::wire
