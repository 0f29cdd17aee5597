// The follower against a ModelService over real gRPC, whose rows and presence the test decides.
#include "router/service/model_follower.h"

#include <set>

#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

namespace pb = atlpb::model::v1;

// Sends the rows now and whenever they change, until the call is cancelled or the service ends.
class FakeModelService final : public pb::ModelService::Service {
 public:
  void Set(const std::string& version, int64_t generation, const std::string& model = "digits") {
    Publish(version, model);
    absl::MutexLock lock(&mutex_);
    models_[model].set_name(model);
    models_[model].set_serving_version(version);
    models_[model].set_serving_generation(generation);
    ++changes_;
  }
  // The version is sent with the next change of the serving version.
  void Publish(const std::string& version, const std::string& model = "digits") {
    absl::MutexLock lock(&mutex_);
    pb::ModelVersion* const added = models_[model].add_versions();
    added->set_version(version);
    added->set_uri("file:///models/digits/" + version);
    added->set_digest("digest-" + version);
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }

  grpc::Status WatchModel(grpc::ServerContext* context, const pb::WatchModelRequest*,
                          grpc::ServerWriter<pb::WatchModelResponse>* writer) override {
    int64_t sent = 0;
    while (!context->IsCancelled()) {
      std::vector<pb::Model> models;
      {
        absl::MutexLock lock(&mutex_);
        const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || changes_ != sent; };
        if (!mutex_.AwaitWithTimeout(absl::Condition(&changed), absl::Milliseconds(20))) continue;
        if (ending_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going away");
        for (const auto& [name, model] : models_) models.push_back(model);
        sent = changes_;
      }
      for (const pb::Model& model : models) {
        pb::WatchModelResponse response;
        *response.mutable_model() = model;
        if (!writer->Write(response)) return grpc::Status::OK;
      }
    }
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, pb::Model> models_ ABSL_GUARDED_BY(mutex_);
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

class ModelFollowerTest : public ::testing::Test {
 protected:
  void StartCoordinator(const std::string& listen = "127.0.0.1:0") {
    models_ = std::make_unique<FakeModelService>();
    server_ =
        *rpc::Server::Start({.listen = listen, .services = {{pb::ModelService::service_full_name(), models_.get()}}});
  }
  void StopCoordinator() {
    models_->End();
    server_.reset();
  }
  void Follow() {
    FollowerOptions options{.load_backoff = {.first = absl::Milliseconds(10), .longest = absl::Milliseconds(40)},
                            .backoff = {.first = absl::Milliseconds(10), .longest = absl::Milliseconds(50)}};
    options.models = {"digits", "letters"};
    options.pinned = {{"digits", pinned_}};
    options.drain_deadline = drain_deadline_;
    ModelFollower::Callbacks callbacks;
    callbacks.on_serving = [this](const std::string& model, const std::string& version, int64_t) {
      absl::MutexLock lock(&mutex_);
      if (model == "digits") serving_ = version;
      if (model == "letters") serving_letters_ = version;
    };
    callbacks.server_needs = [this](const std::vector<NetworkId>& networks) {
      ServerNeeds needs{.networks = static_cast<int32_t>(networks.size())};
      absl::MutexLock lock(&mutex_);
      needs.without_servers = without_servers_;
      for (const NetworkId& network : networks) {
        if (!hosted_.contains(network)) needs.missing.push_back(network.expert);
      }
      return needs;
    };
    callbacks.on_waiting = [this](const std::string&, int64_t networks) {
      absl::MutexLock lock(&mutex_);
      waits_.push_back(networks);
    };
    callbacks.on_load_failed = [this](const PublishedVersion&, const absl::Status&) {
      absl::MutexLock lock(&mutex_);
      ++failures_;
    };
    follower_ = std::make_unique<ModelFollower>(
        options, rpc::MakeChannel(server_->address()),
        [this](const PublishedVersion& version) { return Load(version); }, &engine_, Clock::Real(), callbacks);
  }
  absl::StatusOr<LoadedVersion> Load(const PublishedVersion& version) {
    EXPECT_EQ(version.digest, "digest-" + version.version);
    absl::MutexLock lock(&mutex_);
    loads_.push_back(version.version);
    mutex_.Await(absl::Condition(
        +[](ModelFollowerTest* test) ABSL_NO_THREAD_SAFETY_ANALYSIS { return test->loads_.back() != test->stuck_; },
        this));
    if (version.version == damaged_) return MakeError(absl::StatusCode::kDataLoss, "SHA256_MISMATCH", "damaged");
    ServedVersion served{.digest = version.digest};
    served.info = {
        .model = version.model, .version = version.version, .experts = 2, .channels = 1, .height = 2, .width = 2};
    LoadedVersion loaded{.served = std::make_shared<const ServedVersion>(served)};
    if (version.version == remote_) loaded.remote = {served.network(0), served.network(1)};
    return loaded;
  }
  static NetworkId Expert(const std::string& version, int32_t expert) {
    return {.model = "digits", .version = version, .digest = "digest-" + version, .expert = expert};
  }
  void AskServersFor(const std::string& version) {
    absl::MutexLock lock(&mutex_);
    remote_ = version;
  }
  // Sets the networks that servers host from now on.
  void Host(std::set<NetworkId> hosted) {
    {
      absl::MutexLock lock(&mutex_);
      hosted_ = std::move(hosted);
    }
    follower_->LookAgain();
  }
  bool AwaitWait(int64_t networks) {
    absl::MutexLock lock(&mutex_);
    const auto waits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !waits_.empty() && waits_.back() == networks;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&waits), absl::Seconds(20));
  }
  bool AwaitLoads(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto loaded = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return loads_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&loaded), absl::Seconds(20));
  }
  bool AwaitServing(const std::string& version) {
    absl::MutexLock lock(&mutex_);
    const auto serves = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return serving_ == version; };
    return mutex_.AwaitWithTimeout(absl::Condition(&serves), absl::Seconds(20));
  }
  bool AwaitFailures(int count) {
    absl::MutexLock lock(&mutex_);
    const auto failed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return failures_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&failed), absl::Seconds(20));
  }
  void SetDamaged(const std::string& version) {
    absl::MutexLock lock(&mutex_);
    damaged_ = version;
  }
  // While it is named, its load does not come to an end.
  void SetStuck(const std::string& version) {
    absl::MutexLock lock(&mutex_);
    stuck_ = version;
  }
  void TearDown() override {
    SetStuck("");
    follower_.reset();
    if (server_ != nullptr) StopCoordinator();
  }

  std::vector<std::string> pinned_;
  absl::Duration drain_deadline_ = absl::InfiniteDuration();
  TickedEngine engine_{{}, Clock::Real(), nullptr};
  std::unique_ptr<FakeModelService> models_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<ModelFollower> follower_;
  absl::Mutex mutex_;
  std::string serving_ ABSL_GUARDED_BY(mutex_);
  std::string serving_letters_ ABSL_GUARDED_BY(mutex_);
  std::string damaged_ ABSL_GUARDED_BY(mutex_);
  std::string stuck_ ABSL_GUARDED_BY(mutex_);
  std::string remote_ ABSL_GUARDED_BY(mutex_);  // the version whose experts are asked of servers
  std::set<NetworkId> hosted_ ABSL_GUARDED_BY(mutex_);
  bool without_servers_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int64_t> waits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> loads_ ABSL_GUARDED_BY(mutex_);
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(ModelFollowerTest, ServesTheFirstVersionThenTheNext) {
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitServing("v2"));
  EXPECT_EQ(engine_.Info("digits")->version, "v2");
}

TEST_F(ModelFollowerTest, ADamagedVersionIsRefusedAndTheOldOneServesOn) {
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  SetDamaged("v2");
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitFailures(2));
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
  // Mended, it is taken up without another word from the coordinator.
  SetDamaged("");
  EXPECT_TRUE(AwaitServing("v2"));
}

TEST_F(ModelFollowerTest, GoesOnWhileTheCoordinatorIsAwayAndFindsItAgain) {
  StartCoordinator();
  const std::string address = server_->address();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  StopCoordinator();
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
  StartCoordinator(address);
  models_->Set("v2", 2);
  EXPECT_TRUE(AwaitServing("v2"));
}

TEST_F(ModelFollowerTest, ACoordinatorWhoseStoreWasRestoredIsFollowedFromItsBackupOn) {
  StartCoordinator();
  const std::string address = server_->address();
  Follow();
  models_->Set("v1", 3);
  ASSERT_TRUE(AwaitServing("v1"));
  models_->Set("v2", 4);
  ASSERT_TRUE(AwaitServing("v2"));
  StopCoordinator();
  // The backup is from before v2.
  StartCoordinator(address);
  models_->Set("v1", 3);
  EXPECT_TRUE(AwaitServing("v1"));
  models_->Set("v3", 4);
  EXPECT_TRUE(AwaitServing("v3"));
}

TEST_F(ModelFollowerTest, ARollbackToALoadedVersionNeedsNoSecondLoad) {
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  // A request keeps v1 loaded while v2 serves.
  const auto ticket = engine_.Submit({.classes = {-1}}, absl::InfiniteDuration(), std::make_shared<RecordedEvents>());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitServing("v2"));
  models_->Set("v1", 3);
  ASSERT_TRUE(AwaitServing("v1"));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(loads_, ::testing::ElementsAre("v1", "v2"));
}

TEST_F(ModelFollowerTest, PinnedVersionsAnswerThoseWhoNameThem) {
  pinned_ = {"v0", "v1"};
  StartCoordinator();
  models_->Publish("v0");
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitServing("v2"));
  // v1 served before; v0 never did and is loaded beside.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (engine_.Versions("digits").size() < 3 && absl::Now() < end) std::this_thread::yield();
  EXPECT_THAT(engine_.Versions("digits"), ::testing::ElementsAre("v2", "v0", "v1"));
  const auto ticket =
      engine_.Submit({.version = "v0", .classes = {-1}}, absl::InfiniteDuration(), std::make_shared<RecordedEvents>());
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(engine_.RequestsOn("digits", "v0"), 1);
  EXPECT_EQ(ErrorReason(engine_
                            .Submit({.version = "v9", .classes = {-1}}, absl::InfiniteDuration(),
                                    std::make_shared<RecordedEvents>())
                            .status()),
            "UNKNOWN_VERSION");
  // Back to a pinned version: nothing is loaded again.
  models_->Set("v1", 3);
  ASSERT_TRUE(AwaitServing("v1"));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(loads_, ::testing::UnorderedElementsAre("v0", "v1", "v2"));
}

TEST_F(ModelFollowerTest, AReplacedVersionsRequestsEndWhenTheirTimeIsOver) {
  drain_deadline_ = absl::ZeroDuration();
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine_.Submit({.classes = {-1}}, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitServing("v2"));
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!events->over() && absl::Now() < end) engine_.RunTick();
  EXPECT_EQ(events->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(events->status()), "VERSION_DRAINED");
}

TEST_F(ModelFollowerTest, AVersionServesOnceServersHostAllOfIt) {
  AskServersFor("v2");
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitWait(2));
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
  // Half of it is not enough, nor are the networks of another version.
  Host({Expert("v2", 1), Expert("v1", 0)});
  ASSERT_TRUE(AwaitWait(1));
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
  const std::vector<FollowedVersion> versions = follower_->Versions();
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].version, "v2");
  EXPECT_TRUE(versions[1].wanted);
  EXPECT_EQ(versions[1].state, VersionState::kReady);
  EXPECT_EQ(versions[1].waits_for, "1 of its 2 networks are on no expert server: expert 0");
  Host({Expert("v2", 0), Expert("v2", 1)});
  ASSERT_TRUE(AwaitServing("v2"));
  EXPECT_TRUE(AwaitWait(0));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(loads_, ::testing::ElementsAre("v1", "v2"));
}

TEST_F(ModelFollowerTest, AVersionThatWaitsForServersGivesWayToTheNext) {
  AskServersFor("v2");
  StartCoordinator();
  Follow();
  models_->Set("v2", 1);
  ASSERT_TRUE(AwaitWait(2));
  EXPECT_FALSE(engine_.takes_requests());
  models_->Set("v3", 2);
  ASSERT_TRUE(AwaitServing("v3"));
  EXPECT_EQ(follower_->Versions().size(), 1u);
}

TEST_F(ModelFollowerTest, WithoutAServerTheVersionIsLoadedAnew) {
  AskServersFor("v1");
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitWait(2));
  {
    absl::MutexLock lock(&mutex_);
    remote_ = "";  // the loader takes all networks for its own from now on
    without_servers_ = true;
  }
  follower_->LookAgain();
  ASSERT_TRUE(AwaitServing("v1"));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(loads_, ::testing::ElementsAre("v1", "v1"));
}

TEST_F(ModelFollowerTest, WhileAVersionLoadsOthersRollAndDrain) {
  drain_deadline_ = absl::ZeroDuration();
  AskServersFor("v2");
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitWait(2));
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine_.Submit({.classes = {-1}}, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  // Another model's load hangs; this one's switch, and the end of the old version's request, do not wait for it.
  SetStuck("a1");
  models_->Set("a1", 1, "letters");
  ASSERT_TRUE(AwaitLoads(3));
  EXPECT_EQ(ErrorReason(engine_.Info("letters").status()), "MODEL_LOADING");
  Host({Expert("v2", 0), Expert("v2", 1)});
  ASSERT_TRUE(AwaitServing("v2"));
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!events->over() && absl::Now() < end) engine_.RunTick();
  EXPECT_EQ(ErrorReason(events->status()), "VERSION_DRAINED");
  SetStuck("");
  absl::MutexLock lock(&mutex_);
  const auto letters = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return serving_letters_ == "a1"; };
  EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&letters), absl::Seconds(20)));
}

TEST_F(ModelFollowerTest, OnceStoppedNothingSwitchesAndOnlyTheEndWaitsForALoad) {
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  SetStuck("v2");
  models_->Set("v2", 2);
  ASSERT_TRUE(AwaitLoads(2));
  follower_->Stop();
  SetStuck("");
  follower_.reset();
  EXPECT_EQ(engine_.Info("digits")->version, "v1");
}

TEST_F(ModelFollowerTest, EndsPromptlyWithAndWithoutACoordinator) {
  StartCoordinator();
  Follow();
  models_->Set("v1", 1);
  ASSERT_TRUE(AwaitServing("v1"));
  const absl::Time start = absl::Now();
  follower_.reset();
  StopCoordinator();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

}  // namespace
}  // namespace atl::router
