#include "tests/chaos/sampler.h"

#include <utility>

#include "absl/time/clock.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"

namespace atl::chaos {
namespace {

namespace pb = atlpb::sample::v1;

// Refusals that mean "not now". FAILED_PRECONDITION: a router that was started again knows of no model yet.
bool MayTryAgain(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

}  // namespace

Sampler::Sampler(std::string router_address, std::string model, std::string version)
    : router_address_(std::move(router_address)), model_(std::move(model)), version_(std::move(version)) {
  thread_ = std::thread([this] { Run(); });
}

Sampler::~Sampler() {
  stopping_ = true;
  thread_.join();
}

Sampler::Counts Sampler::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

void Sampler::Run() {
  while (!stopping_) {
    AskOnce();
    absl::SleepFor(absl::Milliseconds(200));  // a load that leaves the processor to those who train
  }
}

void Sampler::AskOnce() {
  pb::SampleRequest request;
  request.set_model(model_);
  request.set_version(version_);
  for (const int label : {-1, 3}) request.add_classes(label);
  for (const int seed : {11, 12}) request.add_seeds(seed);
  request.set_mode(pb::SampleRequest::MODE_FULL);
  request.set_steps(4);
  request.set_format(pb::SampleRequest::FORMAT_RAW);
  request.set_reproducible(true);
  const auto stub = pb::SampleService::NewStub(rpc::MakeChannel(router_address_));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(5));
  const auto stream = stub->Sample(&context, request);
  std::string images[2];
  pb::SampleResponse response;
  while (stream->Read(&response)) {
    if (response.has_image() && response.image().index() < 2)
      images[response.image().index()] = response.image().data();
  }
  const absl::Status status = rpc::FromGrpc(stream->Finish());
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    ++counts_.refused;
    if (!MayTryAgain(status) && counts_.wrong.empty()) counts_.wrong = status.ToString();
    return;
  }
  ++counts_.answered;
  const std::string both = images[0] + images[1];
  if (expected_.empty()) expected_ = both;
  if (counts_.wrong.empty() && (both.empty() || both != expected_)) counts_.wrong = "images differ from the first ones";
}

}  // namespace atl::chaos
