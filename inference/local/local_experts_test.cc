// Real networks with random weights, published on disk and hosted in this process.
#include "inference/local/local_experts.h"

#include <limits>
#include <map>
#include <thread>

#include <ATen/ATen.h>

#include "absl/synchronization/notification.h"
#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/model/dit.h"
#include "common/model/testing.h"
#include "common/model/weights.h"
#include "common/storage/safetensors.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/hosted_networks.h"
#include "inference/local/network.h"
#include "inference/testing/published_tiny_model.h"
#include "inference/testing/tiny_model.h"

namespace atl::router {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kPixels = 16;

absl::StatusOr<EvaluationAnswer> Answer(ExpertLane& lane, Evaluation evaluation) {
  absl::StatusOr<EvaluationAnswer> result;
  absl::Notification done;
  lane.Start(std::make_shared<Evaluation>(std::move(evaluation)), [&](absl::StatusOr<EvaluationAnswer> answer) {
    result = std::move(answer);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

// Rows `picked` out of a fixed endless list, whose first estimate is zero.
Rows RowsOf(const std::vector<int64_t>& picked, bool guided, bool estimates = false) {
  Rows rows{.count = static_cast<int64_t>(picked.size())};
  for (const int64_t row : picked) {
    std::vector<float> x(kPixels);
    CounterRandom(1, RandomPurpose::kSampleNoise, 0, static_cast<uint64_t>(row)).Normal(x);
    rows.x.insert(rows.x.end(), x.begin(), x.end());
    if (estimates) {
      for (float& value : x) value = row == 0 ? 0.0f : value / 2;
      rows.estimate.insert(rows.estimate.end(), x.begin(), x.end());
    }
    rows.t.push_back(1.0f / static_cast<float>(1 + row));
    rows.classes.push_back(row % 4);
    if (guided) rows.null_classes.push_back(4);
  }
  return rows;
}

class LocalExpertsTest : public ::testing::Test {
 protected:
  void Publish(const Networks& networks, bool self_conditioning = false) {
    files_ = OpenVersion(store_.get(), uri_, PublishNetworks(store_.get(), uri_, networks, self_conditioning)).value();
  }
  std::unique_ptr<LocalExperts> Make(int threads = 1, int64_t budget = 0) {
    return LocalExperts::Create({.threads = threads, .memory_budget_bytes = budget}, Clock::Real()).value();
  }
  Evaluation Of(int32_t expert, Rows rows, bool reproducible = false) const {
    return {.network = files_->network(expert),
            .channels = 1,
            .height = 4,
            .width = 4,
            .rows = std::move(rows),
            .reproducible = reproducible};
  }
  int64_t Bytes(int32_t expert) const { return WeightBytes(*files_, expert).value(); }

  storage::TemporaryStore store_;
  const std::string uri_ = storage::ModelFolderUri(*store_.get(), "tiny", "v1");
  std::shared_ptr<const VersionFiles> files_;
};

TEST_F(LocalExpertsTest, AnswersAreThoseOfTheNetworksThatWerePublished) {
  const Networks networks = TinyNetworks();
  Publish(networks);
  const auto experts = Make();
  const auto served = experts->Host(files_);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(*served, files_);
  Rows rows = RowsOf({0, 1, 2}, /*guided=*/false);
  const at::Tensor x = at::from_blob(rows.x.data(), {3, 1, 4, 4}, at::kFloat).clone();
  const at::Tensor t = at::from_blob(rows.t.data(), {3}, at::kFloat).clone();
  const at::Tensor classes = at::from_blob(rows.classes.data(), {3}, at::kLong).clone();
  for (int32_t expert = kRouterNetwork; expert < kTinyExperts; ++expert) {
    const bool routes = expert == kRouterNetwork;
    at::Tensor expected = model::RunModel((routes ? networks.router : networks.experts[expert]).layers, x, t, classes);
    if (routes) expected = at::softmax(expected, -1);
    expected = expected.contiguous();
    const auto answer = Answer(*experts->lanes()[0], Of(expert, rows));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->values, std::vector<float>(expected.const_data_ptr<float>(),
                                                 expected.const_data_ptr<float>() + expected.numel()));
    EXPECT_EQ(answer->fingerprint, experts->fingerprint());
    EXPECT_GT(answer->compute_time, absl::ZeroDuration());
  }
}

TEST_F(LocalExpertsTest, TheSecondBranchComesBehindTheFirst) {
  Publish(TinyNetworks(true), true);
  const auto experts = Make();
  const auto served = experts->Host(files_);
  ASSERT_TRUE(served.ok()) << served.status();
  const Rows rows = RowsOf({0, 1, 2}, /*guided=*/true, /*estimates=*/true);
  const auto both = Answer(*experts->lanes()[0], Of(1, rows));
  ASSERT_TRUE(both.ok()) << both.status();
  ASSERT_EQ(both->values.size(), 2 * rows.x.size());
  for (const bool null_branch : {false, true}) {
    Rows one = rows;
    if (null_branch) one.classes = rows.null_classes;
    one.null_classes.clear();
    const auto answer = Answer(*experts->lanes()[0], Of(1, one));
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto size = static_cast<int64_t>(rows.x.size());
    EXPECT_TRUE(
        model::IsNear(at::tensor(answer->values), at::tensor(both->values).narrow(0, null_branch ? size : 0, size)));
  }
}

TEST_F(LocalExpertsTest, ABudgetOfTwoOfThreeExpertsChangesNoBit) {
  Publish(TinyNetworks());
  const int64_t budget = Bytes(0) + Bytes(1) + Bytes(kRouterNetwork);
  const auto free = Make();
  const auto tight = Make(1, budget);
  const auto served_free = free->Host(files_);
  const auto served_tight = tight->Host(files_);
  ASSERT_TRUE(served_free.ok()) << served_free.status();
  ASSERT_TRUE(served_tight.ok()) << served_tight.status();
  for (const int32_t expert : {0, kRouterNetwork, 1, 2, 2, kRouterNetwork, 0, 2, 1}) {
    const auto expected = Answer(*free->lanes()[0], Of(expert, RowsOf({0, 1, 2, 3, 4}, true)));
    const auto found = Answer(*tight->lanes()[0], Of(expert, RowsOf({0, 1, 2, 3, 4}, true)));
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_EQ(expected->values, found->values) << "expert " << expert;
    EXPECT_LE(tight->stats().resident_bytes, budget);
  }
  EXPECT_GT(tight->stats().evictions, 2);
  EXPECT_EQ(free->stats().evictions, 0);
  EXPECT_EQ(free->stats().loads, 4);
  EXPECT_EQ(tight->lanes()[0]->hosted()->size(), 4u);
}

TEST_F(LocalExpertsTest, AVersionComesBesideABusyOneAtOneReadEach) {
  Publish(TinyNetworks());
  int64_t budget = Bytes(kRouterNetwork);
  for (int32_t expert = 0; expert < kTinyExperts; ++expert) budget += Bytes(expert);
  const auto experts = Make(1, budget);
  const auto old_version = experts->Host(files_);
  ASSERT_TRUE(old_version.ok()) << old_version.status();
  const auto answer_all = [&] {
    std::vector<std::vector<float>> values;
    for (const int32_t network : {0, 1, 2, kRouterNetwork}) {
      const auto answer = Answer(*experts->lanes()[0], Of(network, RowsOf({0, 1}, false)));
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (answer.ok()) values.push_back(answer->values);
      EXPECT_LE(experts->stats().resident_bytes, budget);
    }
    return values;
  };
  const std::vector<std::vector<float>> expected = answer_all();
  ASSERT_EQ(experts->stats().loads, kTinyExperts + 1);
  // The new version fills the memory that the old one needs at every step.
  Networks next = TinyNetworks();
  next.experts[0] = TinyNetwork(0, 77);
  const std::string uri = storage::ModelFolderUri(*store_.get(), "tiny", "next");
  const auto new_files = OpenVersion(store_.get(), uri, PublishNetworks(store_.get(), uri, next, false)).value();
  ASSERT_NE(new_files->digest, files_->digest);
  int64_t loads = kTinyExperts + 1;
  for (int32_t expert = 0; expert < kTinyExperts; ++expert) {
    ASSERT_TRUE(experts->Load(new_files, expert).ok());
    EXPECT_EQ(answer_all(), expected);
    loads += 2;  // the new network, and the old one that gave way to it
    EXPECT_EQ(experts->stats().loads, loads) << "expert " << expert;
  }
  // Once it is asked, the new version has the memory, and is not read again.
  ASSERT_TRUE(experts->Load(new_files, kRouterNetwork).ok());
  files_ = new_files;
  answer_all();
  loads = experts->stats().loads;
  answer_all();
  EXPECT_EQ(experts->stats().loads, loads);
}

TEST_F(LocalExpertsTest, LanesThatShareAMemoryOfOneExpertTakeTurns) {
  Publish(TinyNetworks());
  const auto free = Make();
  const auto tight = Make(2, Bytes(0));
  for (const auto* experts : {&free, &tight}) {
    for (int32_t expert = 0; expert < 2; ++expert) ASSERT_TRUE((*experts)->Load(files_, expert).ok());
  }
  std::vector<std::thread> threads;
  for (int32_t expert = 0; expert < 2; ++expert) {
    const auto expected = Answer(*free->lanes()[0], Of(expert, RowsOf({0, 1}, false)));
    ASSERT_TRUE(expected.ok());
    threads.emplace_back([&, expert, values = expected->values] {
      for (int i = 0; i < 20; ++i) {
        const auto found = Answer(*tight->lanes()[expert], Of(expert, RowsOf({0, 1}, false)));
        ASSERT_TRUE(found.ok()) << found.status();
        EXPECT_EQ(found->values, values);
        EXPECT_LE(tight->stats().resident_bytes, Bytes(0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(tight->stats().evictions, 0);
}

// Two parts of the processor, with one lane each.
class TwoDevicesTest : public LocalExpertsTest {
 protected:
  std::unique_ptr<LocalExperts> MakeTwo(int64_t budget, bool replicate = true) {
    return LocalExperts::Create({.device = "cpu:0,cpu:1",
                                 .threads = 2,
                                 .memory_budget_bytes = budget,
                                 .placer = {.replicate = replicate, .interval = absl::Milliseconds(1)}},
                                Clock::Real())
        .value();
  }
  static bool Has(const ExpertLane& lane, const NetworkId& id) {
    const auto hosted = lane.hosted();
    const HostedNetwork* const found = FindHosted(*hosted, id);
    return found != nullptr && found->resident;
  }
};

TEST_F(TwoDevicesTest, EveryNetworkLiesOnOneOfThemAndAnswersTheSameBits) {
  Publish(TinyNetworks());
  const auto one = Make();
  const auto two = MakeTwo(0, /*replicate=*/false);
  const auto served_one = one->Host(files_);
  const auto served_two = two->Host(files_);
  ASSERT_TRUE(served_one.ok() && served_two.ok()) << served_one.status() << served_two.status();
  ASSERT_EQ(two->lanes().size(), 2u);
  EXPECT_EQ(two->lanes()[0]->info().name, "cpu:0/0");
  EXPECT_EQ(two->lanes()[1]->info().name, "cpu:1/0");
  EXPECT_EQ(two->lanes()[0]->info().fingerprint, one->fingerprint());
  int on_first = 0;
  for (int32_t expert = kRouterNetwork; expert < kTinyExperts; ++expert) {
    const NetworkId id = files_->network(expert);
    const bool first = Has(*two->lanes()[0], id);
    EXPECT_NE(first, Has(*two->lanes()[1], id)) << expert;
    on_first += first ? 1 : 0;
    const auto expected = Answer(*one->lanes()[0], Of(expert, RowsOf({0, 1, 2}, false)));
    const auto found = Answer(*two->lanes()[first ? 0 : 1], Of(expert, RowsOf({0, 1, 2}, false)));
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_EQ(expected->values, found->values);
  }
  EXPECT_EQ(on_first, 2);
  EXPECT_EQ(two->stats().networks, 4);
  EXPECT_EQ(two->stats().loads, 4);
  EXPECT_EQ(two->stats().evictions, 0);
}

TEST_F(TwoDevicesTest, AHotExpertIsCopiedAndNoBudgetIsExceeded) {
  Publish(TinyNetworks());
  // Two experts and the router network each: room for one copy of an expert in all, and of the router network.
  const int64_t budget = 2 * Bytes(0) + Bytes(kRouterNetwork);
  const auto two = MakeTwo(budget);
  const auto served = two->Host(files_);
  ASSERT_TRUE(served.ok()) << served.status();
  const NetworkId hot = files_->network(1);
  const auto& lanes = two->lanes();
  const size_t home = Has(*lanes[0], hot) ? 0 : 1;
  const auto expected = Answer(*lanes[home], Of(1, RowsOf({0, 1, 2, 3}, false)));
  ASSERT_TRUE(expected.ok()) << expected.status();
  // As many batches as take longer than a load does.
  for (int i = 0; i < 100'000 && !Has(*lanes[1 - home], hot); ++i) {
    ASSERT_TRUE(Answer(*lanes[home], Of(1, RowsOf({0, 1, 2, 3}, false))).ok());
    EXPECT_LE(two->stats().resident_bytes, 2 * budget);
  }
  ASSERT_TRUE(Has(*lanes[0], hot) && Has(*lanes[1], hot));
  EXPECT_GE(two->stats().replicated, 1);
  EXPECT_GE(two->stats().loads_ahead, 1);
  const auto copied = Answer(*lanes[1 - home], Of(1, RowsOf({0, 1, 2, 3}, false)));
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->values, expected->values);
  // The others still lie somewhere.
  for (int32_t expert = kRouterNetwork; expert < kTinyExperts; ++expert) {
    const NetworkId id = files_->network(expert);
    EXPECT_TRUE(Has(*lanes[0], id) || Has(*lanes[1], id)) << expert;
  }
}

TEST_F(TwoDevicesTest, TightMemoryIsSharedByWhatIsAskedForAndChangesNoBit) {
  Publish(TinyNetworks());
  const int64_t budget = Bytes(0);  // two of four networks at a time
  const auto free = Make();
  const auto tight = MakeTwo(budget);
  const auto served_free = free->Host(files_);
  const auto served_tight = tight->Host(files_);
  ASSERT_TRUE(served_free.ok() && served_tight.ok()) << served_free.status() << served_tight.status();
  for (int round = 0; round < 5; ++round) {
    for (int32_t expert = kRouterNetwork; expert < kTinyExperts; ++expert) {
      const auto expected = Answer(*free->lanes()[0], Of(expert, RowsOf({0, 1, 2}, false)));
      const auto found = Answer(*tight->lanes()[round % 2], Of(expert, RowsOf({0, 1, 2}, false)));
      ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
      EXPECT_EQ(expected->values, found->values) << "expert " << expert;
      EXPECT_LE(tight->stats().resident_bytes, 2 * budget);
    }
  }
  EXPECT_GT(tight->stats().evictions, 0);
}

TEST_F(LocalExpertsTest, ReproducibleRowsAreTheSameBitsInAnyCompany) {
  Publish(TinyNetworks(true), true);
  const auto experts = Make(2);
  const auto served = experts->Host(files_);
  ASSERT_TRUE(served.ok()) << served.status();
  const std::vector<std::vector<int64_t>> companies = {
      {0},
      {1},
      {15},
      {0, 1},
      {9, 0, 4},
      {1, 0, 7, 3, 15},
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
      {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
      {30, 31, 0, 32, 33, 1, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 15}};
  for (const int32_t expert : {kRouterNetwork, 0, 2}) {
    const bool routes = expert == kRouterNetwork;
    const size_t size = routes ? kTinyExperts : kPixels;
    // By row and branch.
    std::map<std::pair<int64_t, bool>, std::vector<float>> seen;
    for (const bool guided : {false, true}) {
      if (guided && routes) continue;
      for (size_t i = 0; i < companies.size(); ++i) {
        const std::vector<int64_t>& company = companies[i];
        const auto answer =
            Answer(*experts->lanes()[i % 2], Of(expert, RowsOf(company, guided, !routes), /*reproducible=*/true));
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_EQ(answer->values.size(), company.size() * size * (guided ? 2 : 1));
        for (size_t place = 0; place < answer->values.size() / size; ++place) {
          const auto begin = answer->values.begin() + static_cast<ptrdiff_t>(place * size);
          const std::vector<float> values(begin, begin + static_cast<ptrdiff_t>(size));
          const auto key = std::pair(company[place % company.size()], place >= company.size());
          const auto [first, fresh] = seen.emplace(key, values);
          EXPECT_EQ(first->second, values) << "expert " << expert << ", row " << key.first << " in company " << i;
        }
      }
    }
    EXPECT_EQ(seen.size(), (routes ? 1u : 2u) * 36);
  }
}

TEST(ReproducibleSizesTest, StartAtTheBaseAndDouble) {
  UseOneThread();
  const auto network = Network::Place(TinyNetwork(0, 1), "cpu");
  ASSERT_TRUE(network.ok());
  for (const int64_t base : {1, 2, 4}) {
    const auto sizes = (*network)->ReproducibleSizes(base);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    ASSERT_FALSE(sizes->empty());
    if (*sizes != std::vector<int64_t>{1}) {
      for (size_t i = 0; i < sizes->size(); ++i) EXPECT_EQ((*sizes)[i], base << i);
    }
  }
}

TEST_F(LocalExpertsTest, NetworksAreForgottenWithTheLastReferenceToTheirVersion) {
  Publish(TinyNetworks());
  const auto experts = Make();
  auto first = experts->Host(files_);
  auto second = experts->Host(files_);
  ASSERT_TRUE(first.ok() && second.ok());
  first->reset();
  EXPECT_EQ(experts->stats().resident, 4);
  const auto lane = experts->lanes()[0];
  EXPECT_TRUE(Answer(*lane, Of(0, RowsOf({0}, false))).ok());
  second->reset();
  EXPECT_EQ(experts->stats().resident_bytes, 0);
  EXPECT_THAT(*lane->hosted(), IsEmpty());
  const absl::Status gone = Answer(*lane, Of(0, RowsOf({0}, false))).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(gone), "NETWORK_NOT_HOSTED");
}

TEST_F(LocalExpertsTest, ABudgetTooSmallForANetworkNamesItAndTheBytes) {
  Publish(TinyNetworks());
  const auto experts = Make(1, Bytes(1) - 1);
  const absl::Status status = experts->Host(files_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "EXPERT_DOES_NOT_FIT");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expert 0 of model 'tiny' version 'v1': expected a memory budget of at least"));
  EXPECT_EQ(experts->stats().networks, 0);
}

TEST_F(LocalExpertsTest, OneChangedByteInAnyFileIsDataLossAndNothingStays) {
  Publish(TinyNetworks());
  const auto experts = Make();
  for (const std::string name : {"expert_1/config.json", "expert_2/diffusion_pytorch_model.safetensors",
                                 "router/config.json", "router/diffusion_pytorch_model.safetensors"}) {
    const std::string whole = *store_->Read(uri_ + "/" + name);
    std::string damaged = whole;
    damaged[damaged.size() / 2] ^= 1;
    ASSERT_TRUE(store_->Write(uri_ + "/" + name, damaged).ok());
    const absl::Status status = experts->Host(files_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << ": " << status;
    EXPECT_EQ(ErrorReason(status), "HASH_MISMATCH");
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_EQ(experts->stats().networks, 0);
    ASSERT_TRUE(store_->Write(uri_ + "/" + name, whole).ok());
  }
  EXPECT_TRUE(experts->Host(files_).ok());
}

TEST_F(LocalExpertsTest, TheIndexIsVerifiedAndMustNameEveryFile) {
  Publish(TinyNetworks());
  const std::string index_uri = uri_ + "/model_index.json";
  EXPECT_EQ((*OpenVersion(store_.get(), uri_, ""))->digest, files_->digest);
  auto index = *storage::ParseModelIndex(*store_->Read(index_uri), "index");
  std::erase_if(index.files, [](const auto& file) { return file.name.starts_with("expert_2"); });
  const std::string digest = store_->Write(index_uri, storage::ToJson(index))->sha256;
  EXPECT_EQ(ErrorReason(OpenVersion(store_.get(), uri_, files_->digest).status()), "HASH_MISMATCH");
  const absl::Status status = Make()->Host(OpenVersion(store_.get(), uri_, digest).value()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "MODEL_FILE_MISSING");
  EXPECT_THAT(std::string(status.message()), HasSubstr("'expert_2/diffusion_pytorch_model.safetensors'"));
}

TEST_F(LocalExpertsTest, AMissingFileIsNamed) {
  Publish(TinyNetworks());
  ASSERT_TRUE(store_->Delete(uri_ + "/expert_0/diffusion_pytorch_model.safetensors").ok());
  const absl::Status status = Make()->Host(files_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert_0/diffusion_pytorch_model.safetensors"));
}

TEST_F(LocalExpertsTest, AFileThatIsGoneWhenItsExpertIsLoadedAgainIsOneLostExpert) {
  Publish(TinyNetworks());
  const auto experts = Make(1, Bytes(0));
  for (int32_t expert = 0; expert < 2; ++expert) ASSERT_TRUE(experts->Load(files_, expert).ok());
  ASSERT_TRUE(store_->Delete(uri_ + "/expert_0/diffusion_pytorch_model.safetensors").ok());
  const auto lane = experts->lanes()[0];
  const absl::Status lost = Answer(*lane, Of(0, RowsOf({0}, false))).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("expert_0/diffusion_pytorch_model.safetensors"));
  EXPECT_TRUE(Answer(*lane, Of(1, RowsOf({0}, false))).ok());
  EXPECT_THAT(*lane->hosted(), ElementsAre(HostedNetwork{.id = files_->network(1), .resident = true}));
  EXPECT_FALSE(experts->Hosts(files_->network(0)));
  EXPECT_TRUE(experts->Hosts(files_->network(1)));
}

TEST_F(LocalExpertsTest, NetworksThatDoNotFitTheIndexAreRefused) {
  Networks networks = TinyNetworks();
  networks.router = TinyNetwork(kTinyExperts + 1, 1);
  Publish(networks);
  const absl::Status status = Make()->Host(files_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "MODEL_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 1x4x4 images, 4 classes, 3 outputs, found"));
  for (const bool index_says : {false, true}) {
    Publish(TinyNetworks(!index_says), index_says);
    EXPECT_THAT(std::string(Make()->Host(files_).status().message()), HasSubstr("0 outputs, self-conditioned"));
  }
}

TEST_F(LocalExpertsTest, WeightsThatAreNotFiniteAreRefusedByTheProbe) {
  Networks networks = TinyNetworks();
  {
    const at::NoGradGuard no_grad;
    networks.experts[1].layers.back()->parameters().back().tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  Publish(networks);
  const absl::Status status = Make()->Host(files_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "NON_FINITE_OUTPUT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert 1"));
}

TEST_F(LocalExpertsTest, RowsThatAreNotForTheNetworkAreRefused) {
  Publish(TinyNetworks());
  const auto experts = Make();
  const auto served = experts->Host(files_);
  ASSERT_TRUE(served.ok());
  const auto broken = [&](const std::function<void(Evaluation*)>& change) {
    Evaluation evaluation = Of(0, RowsOf({0, 1}, true));
    change(&evaluation);
    const absl::Status status = Answer(*experts->lanes()[0], std::move(evaluation)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return ErrorReason(status);
  };
  const std::vector<std::string> reasons = {
      broken([](Evaluation* e) { e->channels = 3; }),
      broken([](Evaluation* e) { e->height = 8; }),
      broken([](Evaluation* e) { e->rows = {}; }),
      broken([](Evaluation* e) { e->rows.count = -1; }),
      broken([](Evaluation* e) { e->rows.count = 3; }),
      broken([](Evaluation* e) { e->rows.x.pop_back(); }),
      broken([](Evaluation* e) { e->rows.t.pop_back(); }),
      broken([](Evaluation* e) { e->rows.null_classes.pop_back(); }),
      broken([](Evaluation* e) { e->rows.classes[0] = 5; }),
      broken([](Evaluation* e) { e->rows.null_classes[1] = -1; }),
      broken([](Evaluation* e) { e->rows.estimate = e->rows.x; }),
  };
  EXPECT_THAT(reasons, Each("SHAPE_MISMATCH"));
}

TEST(LocalExpertsOptionsTest, BadOptionsAreNamed) {
  EXPECT_EQ(ErrorField(LocalExperts::Create({.threads = 0}, Clock::Real()).status()), "--threads");
  EXPECT_EQ(ErrorField(LocalExperts::Create({.memory_budget_bytes = -1}, Clock::Real()).status()), "--memory-budget");
  EXPECT_THAT(std::string(LocalExperts::Create({.device = "tpu"}, Clock::Real()).status().message()),
              HasSubstr("--device: expected cpu, cpu:N, cuda or cuda:N, found 'tpu'"));
}

// Expert 1 is no longer the network whose answers were stored.
TEST_F(LocalExpertsTest, ANetworkThatAnswersOtherwiseThanItsProbeIsNotHosted) {
  const Networks networks = TinyNetworks();
  Publish(networks);
  const at::Tensor x = at::linspace(-1, 1, 2 * kPixels).reshape({2, 1, 4, 4});
  const at::Tensor t = at::tensor({0.9f, 0.3f});
  const at::Tensor classes = at::tensor({1, 4}, at::kLong);
  std::map<std::string, at::Tensor> tensors = {{"x", x}, {"t", t}, {"class", classes}};
  tensors["posterior"] = at::softmax(model::RunModel(networks.router.layers, x, t, classes), -1);
  for (int32_t expert = 0; expert < kTinyExperts; ++expert) {
    const at::Tensor velocity = model::RunModel(networks.experts[expert].layers, x, t, classes);
    tensors[fmt::format("velocity.{}", expert)] = expert == 1 ? velocity * 1.01 : velocity;
  }
  std::vector<storage::TensorView> views;
  for (const auto& [name, tensor] : tensors) views.push_back(model::ToView(name, tensor));
  const storage::WrittenFile written =
      store_->Write(uri_ + "/probe.safetensors", *storage::SerializeSafetensors(views, {})).value();
  storage::ModelIndex index = files_->index;
  index.probe = "probe.safetensors";
  index.files.push_back({index.probe, written.bytes, written.sha256});
  ASSERT_TRUE(store_->Write(uri_ + "/model_index.json", storage::ToJson(index)).ok());
  files_ = OpenVersion(store_.get(), uri_, "").value();

  const auto experts = Make();
  EXPECT_TRUE(experts->Load(files_, 0).ok());
  EXPECT_TRUE(experts->Load(files_, kRouterNetwork).ok());
  const absl::Status status = experts->Load(files_, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "PROBE_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert 1"));
  EXPECT_EQ(ErrorReason(experts->Host(files_).status()), "PROBE_MISMATCH");
}

}  // namespace
}  // namespace atl::router
