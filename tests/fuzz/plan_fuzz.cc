// Plans as ranks get them from their leader.
#include <cstdint>
#include <cstdlib>

#include "common/schedule/action.h"
#include "common/wire/plan_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atlpb::plan::v1::Plan proto;
  if (!proto.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto plan = atl::wire::FromProto(proto);
  if (!plan.ok()) return 0;
  (void)atl::schedule::Validate(plan->schedule);
  if (plan->is_self_conditioned()) (void)atl::schedule::Validate(plan->self_conditioned);
  // An accepted plan must survive another conversion unchanged.
  const auto again = atl::wire::FromProto(atl::wire::ToProto(*plan));
  if (!again.ok() || !(*again == *plan)) std::abort();
  return 0;
}
