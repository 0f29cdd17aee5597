// Routes UCX's log messages to our log.
#pragma once

namespace atl::transport {

// Applies to the whole process from now on; repeatable, thread-safe. UCX's errors and warnings become debug lines. An
// error is also the Status of its call or operation. The other lines report peers that left first and messages dropped
// by an abort, both of which are expected.
void RouteUcxLog();

}  // namespace atl::transport
