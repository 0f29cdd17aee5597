#include "coordinator/service/stream_writer.h"

#include "absl/synchronization/notification.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/fake_clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::job::v1;

// Sends one large message.
class Flood : public pb::JobService::CallbackService {
 public:
  grpc::ServerWriteReactor<pb::WatchJobResponse>* WatchJob(grpc::CallbackServerContext*,
                                                           const pb::WatchJobRequest*) override {
    writer = StreamWriter<pb::WatchJobResponse>::Create([this](const grpc::Status& status) {
      end = status;
      ended.Notify();
    });
    pb::WatchJobResponse message;
    message.mutable_job()->set_message(std::string(32 << 20, 'x'));
    writer->Send("", std::move(message));
    return writer.get();
  }

  std::shared_ptr<StreamWriter<pb::WatchJobResponse>> writer;
  grpc::Status end;
  absl::Notification ended;
};

TEST(StreamWriterTest, WhatWaitsIsSentBeforeTheEnd) {
  Flood flood;
  const auto server = rpc::Server::Start({.services = {{pb::JobService::service_full_name(), &flood}}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = pb::JobService::NewStub(rpc::MakeChannel((*server)->address()));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  const auto reader = stub->WatchJob(&context, pb::WatchJobRequest());
  pb::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  flood.writer->End(grpc::Status::OK);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(flood.ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(flood.end.ok());
}

}  // namespace
}  // namespace atl::coordinator
