#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/nccl/nccl_api.h"

namespace atl::transport {
namespace {

absl::Status FromCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_CUDA",
                   fmt::format("{} failed: {}", call, cudaGetErrorString(error)));
}

NcclResult FromNccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return {};
  if (result == ncclInProgress) return {.state = NcclResult::State::kInProgress};
  return {.state = NcclResult::State::kFailed,
          .error = fmt::format("{} failed: {}: {}", call, ncclGetErrorString(result), ncclGetLastError(nullptr))};
}

ncclComm_t AsComm(NcclApi::Comm comm) {
  return static_cast<ncclComm_t>(comm);
}
cudaStream_t AsStream(NcclApi::Stream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t AsEvent(NcclApi::Event event) {
  return static_cast<cudaEvent_t>(event);
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

class RealApi final : public NcclApi {
 public:
  absl::StatusOr<int> DeviceCount() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                     fmt::format("expected a CUDA device, found none: {}",
                                 error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error)));
  }
  absl::Status UseDevice(int device) override { return FromCuda(cudaSetDevice(device), "cudaSetDevice"); }

  absl::StatusOr<std::string> UniqueId() override {
    ncclUniqueId id;
    const NcclResult result = FromNccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (result.state == NcclResult::State::kDone) return std::string(id.internal, sizeof(id.internal));
    return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_NCCL", result.error);
  }
  NcclResult InitRank(Comm* comm, int ranks, const std::string& unique_id, int rank) override {
    ncclUniqueId id = {};
    if (unique_id.size() != sizeof(id.internal)) {
      return {
          .state = NcclResult::State::kFailed,
          .error = fmt::format("expected a unique id of {} bytes, found {}", sizeof(id.internal), unique_id.size())};
    }
    std::memcpy(id.internal, unique_id.data(), sizeof(id.internal));
    ncclConfig_t config = NonBlocking();
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&made, ranks, id, rank, &config);
    *comm = made;
    return FromNccl(result, "ncclCommInitRankConfig");
  }
  NcclResult Split(Comm parent, bool member, int key, Comm* comm) override {
    ncclConfig_t config = NonBlocking();
    static_assert(sizeof(ncclComm_t) == sizeof(Comm));
    // NCCL writes *comm when the split is done, possibly after this call: it must be the caller's own place.
    return FromNccl(ncclCommSplit(AsComm(parent), member ? 0 : NCCL_SPLIT_NOCOLOR, key,
                                  reinterpret_cast<ncclComm_t*>(comm), &config),
                    "ncclCommSplit");
  }
  NcclResult AsyncError(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(AsComm(comm), &state);
    return asked == ncclSuccess ? FromNccl(state, "a communicator") : FromNccl(asked, "ncclCommGetAsyncError");
  }
  NcclResult Finalize(Comm comm) override { return FromNccl(ncclCommFinalize(AsComm(comm)), "ncclCommFinalize"); }
  void Destroy(Comm comm) override { (void)ncclCommDestroy(AsComm(comm)); }
  void Abort(Comm comm) override { (void)ncclCommAbort(AsComm(comm)); }

  NcclResult Send(const void* bytes, size_t size, int peer, Comm comm, Stream stream) override {
    return FromNccl(ncclSend(bytes, size, ncclInt8, peer, AsComm(comm), AsStream(stream)), "ncclSend");
  }
  NcclResult Receive(void* bytes, size_t size, int peer, Comm comm, Stream stream) override {
    return FromNccl(ncclRecv(bytes, size, ncclInt8, peer, AsComm(comm), AsStream(stream)), "ncclRecv");
  }
  NcclResult AllGather(const void* sent, void* received, size_t size, Comm comm, Stream stream) override {
    return FromNccl(ncclAllGather(sent, received, size, ncclInt8, AsComm(comm), AsStream(stream)), "ncclAllGather");
  }

  absl::StatusOr<Stream> CreateStream() override {
    cudaStream_t stream = nullptr;
    // Does not wait for the legacy default stream: lanes run beside the compute and are ordered by events alone.
    if (absl::Status status = FromCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        !status.ok()) {
      return status;
    }
    return Stream(stream);
  }
  void DestroyStream(Stream stream) override { (void)cudaStreamDestroy(AsStream(stream)); }
  absl::StatusOr<Event> RecordEvent(Stream stream) override {
    cudaEvent_t event = nullptr;
    absl::Status status = FromCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    if (!status.ok()) return status;
    status = FromCuda(cudaEventRecord(event, AsStream(stream)), "cudaEventRecord");
    if (status.ok()) return Event(event);
    (void)cudaEventDestroy(event);
    return status;
  }
  absl::StatusOr<bool> EventDone(Event event) override {
    const cudaError_t error = cudaEventQuery(AsEvent(event));
    if (error == cudaSuccess || error == cudaErrorNotReady) return error == cudaSuccess;
    return FromCuda(error, "cudaEventQuery");
  }
  void DestroyEvent(Event event) override { (void)cudaEventDestroy(AsEvent(event)); }
  absl::Status StreamWait(Stream stream, Event event) override {
    return FromCuda(cudaStreamWaitEvent(AsStream(stream), AsEvent(event), 0), "cudaStreamWaitEvent");
  }

  absl::StatusOr<void*> Allocate(size_t size) override {
    void* bytes = nullptr;
    if (absl::Status status = FromCuda(cudaMalloc(&bytes, size), "cudaMalloc"); !status.ok()) return status;
    return bytes;
  }
  void Free(void* bytes) override { (void)cudaFree(bytes); }
  absl::Status Copy(void* to, const void* from, size_t size, Stream stream) override {
    return FromCuda(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, AsStream(stream)), "cudaMemcpyAsync");
  }
};

}  // namespace

NcclApi* RealNcclApi() {
  static NcclApi* const api = new RealApi;
  return api;
}

}  // namespace atl::transport
