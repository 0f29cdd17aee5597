// UCX's log messages, sent to ours.
#pragma once

namespace atl::transport {

// From now on for the whole process; repeatable, thread-safe. UCX's errors and warnings become debug lines: an error is
// also the Status of the call or operation that it concerns, and the rest tell of peers that left first and of messages
// that were dropped when an instance was aborted, as they must be.
void RouteUcxLog();

}  // namespace atl::transport
