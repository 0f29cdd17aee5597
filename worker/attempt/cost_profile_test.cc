#include "worker/attempt/cost_profile.h"

#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/profile_file.h"
#include "common/planner/measured_profile.h"

namespace atl::worker {
namespace {

using ::testing::ElementsAre;

planner::Profile Measured(const std::vector<int32_t>& sizes, double scale) {
  planner::Profile profile{.parameter_bytes = {8}};
  for (const int32_t size : sizes) {
    profile.layers[size] = {{.forward_seconds = scale * size, .backward_seconds = 2 * scale * size, .kept_bytes = 4}};
  }
  profile.optimizer_seconds_per_byte = scale;
  profile.transfer_latency_seconds = 1;
  profile.rank_slowdown = {scale};
  return profile;
}

class ObtainProfileTest : public testing::Test {
 protected:
  ObtainProfileTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    store_ = *storage::BlobStore::Open("file://" + folder_);
  }
  ~ObtainProfileTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<planner::Profile> Obtain(double scale) {
    return ObtainProfile(store_.get(), "k", {2, 8}, [&](const Measurement& measurement) {
      asked_.push_back(measurement.micro_batch_sizes);
      EXPECT_EQ(measurement.calibration, measurement.micro_batch_sizes.size() == 1);
      return absl::StatusOr<planner::Profile>(Measured(measurement.micro_batch_sizes, scale));
    });
  }

  std::string folder_ = testing::TempDir() + "atoll_profile_XXXXXX";
  std::unique_ptr<storage::BlobStore> store_;
  std::vector<std::vector<int32_t>> asked_;
};

TEST_F(ObtainProfileTest, IsMeasuredOnceAndThenAdjustedToTheMachine) {
  const auto first = Obtain(1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->layers.at(8)[0].forward_seconds, 8);
  EXPECT_EQ(first->key, "k");

  const auto second = Obtain(1.5);
  ASSERT_TRUE(second.ok()) << second.status();
  // The whole profile the first time, its smallest size the second.
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(2, 8), ElementsAre(2)));
  EXPECT_EQ(second->layers.at(8)[0].forward_seconds, 12);
  EXPECT_EQ(second->optimizer_seconds_per_byte, 1.5);
  EXPECT_EQ(second->transfer_latency_seconds, 1);
  EXPECT_THAT(second->rank_slowdown, ElementsAre(1.5));

  // The store keeps the measured profile, not the scaled one.
  EXPECT_EQ(Obtain(1)->layers.at(8)[0].forward_seconds, 8);
}

TEST_F(ObtainProfileTest, OneThatCannotBeReadIsReplaced) {
  ASSERT_TRUE(store_->Write(store_->UriOf("profiles/k.json"), "{\"format\": 1}").ok());
  ASSERT_TRUE(Obtain(1).ok());
  EXPECT_THAT(asked_, ElementsAre(ElementsAre(2, 8)));
  const auto kept = storage::ParseProfile(*store_->Read(store_->UriOf("profiles/k.json")), "k.json");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->layers.size(), 2u);
}

TEST_F(ObtainProfileTest, AnErrorOfTheMeasurementIsPassedOn) {
  const auto profile = ObtainProfile(store_.get(), "k", {2}, [](const Measurement&) {
    return absl::StatusOr<planner::Profile>(absl::UnavailableError("a rank is lost"));
  });
  EXPECT_TRUE(absl::IsUnavailable(profile.status()));
  EXPECT_FALSE(store_->Read(store_->UriOf("profiles/k.json")).ok());
}

TEST(NeedsMeasuredProfileTest, WhereAPlanIsOpenBubblesAreToBeFilledOrACacheIsWeighed) {
  spec::PipelineSpec pipeline;
  EXPECT_FALSE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/false, /*ranks=*/2));
  EXPECT_TRUE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/true, /*ranks=*/1)) << "a cache is weighed";
  pipeline.frozen_cache = "always";
  EXPECT_FALSE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/true, /*ranks=*/2)) << "no pieces";
  pipeline.frozen_cache = "never";
  EXPECT_TRUE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/true, /*ranks=*/2));
  EXPECT_FALSE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/true, /*ranks=*/1)) << "no bubbles";
  pipeline.fill = "never";
  EXPECT_FALSE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/true, /*ranks=*/2));
  pipeline.schedule = "auto";
  EXPECT_TRUE(NeedsMeasuredProfile(pipeline, /*has_frozen=*/false, /*ranks=*/1));
}

TEST(ProfileKeyTest, TellsApartWhatCostsDifferently) {
  const ProfiledThing thing{.micro_batch_sizes = {2, 4}, .ranks = 2, .device_name = "cpu", .build = "b"};
  EXPECT_EQ(ProfileKey(thing), ProfileKey(thing));
  const auto changed = [&](auto change) {
    ProfiledThing other = thing;
    change(other);
    return ProfileKey(other);
  };
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.options.model.width *= 2; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.options.threads = 2; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.options.training.precision.compute = "bfloat16"; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.micro_batch_sizes = {2}; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.ranks = 4; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.build = "c"; }));
  EXPECT_NE(ProfileKey(thing), changed([](ProfiledThing& t) { t.options.height = 16; }));
  // Frozen components are measured too, at sizes that follow the batch; and they make what is learnt.
  const auto frozen = [&](auto change) {
    return changed([&](ProfiledThing& t) {
      t.options.frozen = {{.name = "e", .output = "latent", .torchscript = {"file:///e.pt"}, .shape = {2, 4, 4}}};
      t.options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
          std::map<std::string, std::string>{{"file:///e.pt", "a program"}});
      change(t);
    });
  };
  const std::string with_frozen = frozen([](ProfiledThing&) {});
  EXPECT_NE(ProfileKey(thing), with_frozen);
  EXPECT_EQ(with_frozen, frozen([](ProfiledThing& t) { t.options.frozen_seed = 9; }));
  EXPECT_NE(with_frozen, frozen([](ProfiledThing& t) { t.options.frozen[0].shape = {4, 4, 4}; }));
  EXPECT_NE(with_frozen, frozen([](ProfiledThing& t) { t.options.frozen[0].output = "none"; }));
  EXPECT_NE(with_frozen, frozen([](ProfiledThing& t) { t.options.training.batch_size *= 2; }));
  EXPECT_NE(with_frozen, frozen([](ProfiledThing& t) {
              t.options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
                  std::map<std::string, std::string>{{"file:///e.pt", "another"}});
            }));
  // Costs do not depend on how long is trained, or from which seed.
  EXPECT_EQ(ProfileKey(thing), changed([](ProfiledThing& t) {
              t.options.training.steps = 9;
              t.options.seed = 9;
            }));
}

}  // namespace
}  // namespace atl::worker
