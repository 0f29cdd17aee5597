#include "coordinator/service/stream_writer.h"

#include "absl/synchronization/notification.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::job::v1;

// Sends more at once than a caller takes who does not read.
class Flood : public pb::JobService::CallbackService {
 public:
  grpc::ServerWriteReactor<pb::WatchJobResponse>* WatchJob(grpc::CallbackServerContext* call,
                                                           const pb::WatchJobRequest*) override {
    writer = StreamWriter<pb::WatchJobResponse>::Create(call, &clock, [this](const grpc::Status& status) {
      end = status;
      ended.Notify();
    });
    pb::WatchJobResponse message;
    message.mutable_job()->set_message(std::string(32 << 20, 'x'));
    writer->Send("", std::move(message));
    opened.Notify();
    return writer.get();
  }

  FakeClock clock;
  std::shared_ptr<StreamWriter<pb::WatchJobResponse>> writer;
  absl::Notification opened;
  grpc::Status end;
  absl::Notification ended;
};

TEST(StreamWriterTest, AStreamThatNobodyReadsCanBeCutOff) {
  Flood flood;
  const auto server = rpc::Server::Start({.services = {{pb::JobService::service_full_name(), &flood}}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = pb::JobService::NewStub(rpc::MakeChannel((*server)->address()));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  const auto reader = stub->WatchJob(&context, pb::WatchJobRequest());
  flood.opened.WaitForNotification();
  const absl::Duration began = flood.clock.Monotonic();
  flood.clock.Advance(absl::Minutes(1));
  EXPECT_EQ(flood.writer->unread_since(), began) << "nobody has taken it";
  flood.writer->Cut();
  ASSERT_TRUE(flood.ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(flood.end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(flood.writer->unread_since(), absl::InfiniteDuration());
  flood.writer->Cut();  // it is over: nothing to cut
  pb::WatchJobResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(StreamWriterTest, AStreamThatIsReadIsNotUnread) {
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
