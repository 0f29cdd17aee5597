// Messages between routers and expert servers, as bytes of a peer that means no good: both ends read them beside the
// generated code.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "atoll/expert/v1/expert_service.pb.h"
#include "expert_server/expert_wire.h"
#include "router/engine/dispatcher.h"
#include "router/remote/expert_wire.h"
#include "tests/fuzz/short_error.h"

namespace {

using atl::RequireShortError;

// In slices of `piece` bytes, as a network delivers them.
grpc::ByteBuffer InPieces(const std::string& text, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t from = 0; from < text.size(); from += piece) slices.emplace_back(text.substr(from, piece));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void Require(bool holds) {
  if (!holds) std::abort();
}

void AsRequest(const std::string& text, size_t piece) {
  grpc::ByteBuffer bytes = InPieces(text, piece);
  auto frame = atl::worker::DecodeRequest(&bytes);
  if (!frame.ok()) return RequireShortError(frame.status());
  const atl::router::Rows& rows = frame->evaluation.rows;
  Require((rows.x.size() + rows.estimate.size()) * sizeof(float) <= text.size());
  if (const absl::Status checked = atl::worker::CheckRows(frame->evaluation); !checked.ok()) {
    return RequireShortError(checked);
  }
  // The sizes that a lane uses unchecked are consistent.
  const auto count = static_cast<size_t>(rows.count);
  Require(count > 0 && rows.x.size() % count == 0 && rows.t.size() == count && rows.classes.size() == count);
  // A router must encode the frame so that it reads back equal.
  const auto evaluation = std::make_shared<const atl::router::Evaluation>(frame->evaluation);
  auto again = atl::router::EncodeRequest(frame->id, evaluation, frame->timeout);
  Require(again.ok());
  const auto read = atl::worker::DecodeRequest(&*again);
  Require(read.ok() && read->evaluation.network == evaluation->network && read->evaluation.rows.t.size() == count);
}

void AsAnswer(const std::string& text, size_t piece) {
  grpc::ByteBuffer bytes = InPieces(text, piece);
  const auto answer = atl::router::DecodeAnswer(&bytes);
  if (!answer.ok()) return RequireShortError(answer.status());
  if (!answer->answer.ok()) return;
  Require(answer->answer->values.size() * sizeof(float) <= text.size());
}

void AsHosting(const std::string& text) {
  atlpb::expert::v1::ListNetworksResponse hosting;
  if (!hosting.ParseFromString(text)) return;
  const auto ready = atl::router::ReadyNetworks(hosting);
  Require(ready.size() <= static_cast<size_t>(hosting.networks_size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = 1 + data[0];
  AsRequest(text, piece);
  AsAnswer(text, piece);
  AsHosting(text);
  return 0;
}
