// Real networks with random weights, exact networks of a small set of points, and published versions on disk.
#include "router/engine/local_backend.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "common/base/errors.h"
#include "common/model/flow_matching.h"
#include "common/model/weights.h"
#include "common/storage/model_index.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/engine.h"
#include "router/engine/fake_backend.h"
#include "router/engine/load_model.h"
#include "router/engine/recorded_events.h"
#include "router/engine/serve_inline.h"
#include "router/engine/testing/published_tiny_model.h"
#include "router/engine/testing/tiny_model.h"

namespace atl::router {
namespace {

using ::testing::HasSubstr;

std::vector<std::vector<float>> Sample(std::shared_ptr<ModelBackend> backend, SampleRequest request,
                                       SampleReport* report = nullptr) {
  request.format = ImageFormat::kRaw;
  FakeClock clock;
  Engine engine({}, &clock, nullptr);
  ServeInline(&engine, std::move(backend), &clock);
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine.Submit(request, absl::InfiniteDuration(), events);
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  for (int i = 0; i < 1000 && engine.RunTick(); ++i) {
  }
  EXPECT_EQ(events->log().back(), "done") << events->status();
  if (report != nullptr) *report = events->report();
  std::vector<std::vector<float>> images;
  for (size_t i = 0; i < request.classes.size(); ++i) images.push_back(events->Pixels(static_cast<int32_t>(i)));
  return images;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

class LocalBackendTest : public ::testing::Test {
 protected:
  std::shared_ptr<ModelBackend> Make(Networks networks) {
    auto backend = MakeLocalBackend(TinyInfo(), std::move(networks), &pool_);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }
  ComputePool pool_{2};
};

TEST_F(LocalBackendTest, AnImageComesOutTheSameAloneAndAmongOthers) {
  const auto backend = Make(TinyNetworks());
  SampleRequest many{.classes = {0, 1, 2, 3, -1, 1, 2}, .seeds = {100}, .steps = 8};
  SampleReport report;
  const auto together = Sample(backend, many, &report);
  EXPECT_GT(report.routing.mean_entropy(), 0);
  for (size_t i = 0; i < many.classes.size(); ++i) {
    const auto alone = Sample(backend, {.classes = {many.classes[i]}, .seeds = {100 + i}, .steps = 8});
    EXPECT_LT(Distance(alone[0], together[i]), 1e-3) << "image " << i;
  }
}

TEST_F(LocalBackendTest, TopKOfAllExpertsIsFull) {
  const auto backend = Make(TinyNetworks());
  SampleRequest request{.classes = {0, 1, 2}, .seeds = {5}, .steps = 6};
  request.routing = {.mode = RoutingMode::kFull};
  const auto full = Sample(backend, request);
  request.routing = {.top_k = kTinyExperts};
  const auto all = Sample(backend, request);
  for (size_t i = 0; i < full.size(); ++i) EXPECT_EQ(full[i], all[i]);
}

TEST_F(LocalBackendTest, FullTopOneAndOracleAgreeUnderACertainRouter) {
  Networks networks = TinyNetworks();
  // The head's last bias decides, by far: expert 1.
  {
    const at::NoGradGuard no_grad;
    const auto& parameters = networks.router.layers.back()->parameters();
    const auto bias = std::find_if(parameters.rbegin(), parameters.rend(), [](const model::NamedTensor& parameter) {
      return parameter.tensor.dim() == 1 && parameter.tensor.size(0) == kTinyExperts;
    });
    ASSERT_NE(bias, parameters.rend());
    bias->tensor[1].fill_(1000.0);
  }
  const auto backend = Make(std::move(networks));
  SampleRequest request{.classes = {0, 1, -1}, .seeds = {5}, .steps = 6};
  const auto top_1 = Sample(backend, request);
  request.routing = {.mode = RoutingMode::kFull};
  const auto full = Sample(backend, request);
  request.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 1};
  const auto oracle = Sample(backend, request);
  request.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 2};
  const auto other = Sample(backend, request);
  for (size_t i = 0; i < top_1.size(); ++i) {
    EXPECT_EQ(top_1[i], full[i]);
    EXPECT_EQ(top_1[i], oracle[i]);
    EXPECT_GT(Distance(top_1[i], other[i]), 1e-3);
  }
}

TEST_F(LocalBackendTest, ThreadsDoNotChangeABit) {
  ComputePool one(1);
  auto backend = MakeLocalBackend(TinyInfo(), TinyNetworks(), &one);
  ASSERT_TRUE(backend.ok());
  const SampleRequest request{.classes = {0, 1, 2, 3}, .seeds = {1}, .steps = 5};
  const auto single = Sample(*std::move(backend), request);
  const auto two = Sample(Make(TinyNetworks()), request);
  for (size_t i = 0; i < single.size(); ++i) EXPECT_EQ(single[i], two[i]);
}

TEST_F(LocalBackendTest, NetworksThatDoNotFitTheIndexAreRefused) {
  Networks networks = TinyNetworks();
  networks.experts.pop_back();
  EXPECT_EQ(ErrorReason(MakeLocalBackend(TinyInfo(), std::move(networks), &pool_).status()), "MODEL_MISMATCH");
  networks = TinyNetworks();
  networks.router = TinyNetwork(kTinyExperts + 1, 1);
  const absl::Status status = MakeLocalBackend(TinyInfo(), std::move(networks), &pool_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 1x4x4 images, 4 classes, 3 outputs, found"));
}

TEST_F(LocalBackendTest, WeightsThatAreNotFiniteAreRefusedByTheProbe) {
  Networks networks = TinyNetworks();
  {
    const at::NoGradGuard no_grad;
    networks.experts[1].layers.back()->parameters().back().tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  const absl::Status status = MakeLocalBackend(TinyInfo(), std::move(networks), &pool_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "NON_FINITE_OUTPUT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert 1"));
}

// ---- Self-conditioned networks.

// Euler steps over the networks themselves, all experts weighted by the router network, one image.
at::Tensor SampleStraight(const Networks& networks, at::Tensor x, int64_t label, double guidance, int32_t steps) {
  const at::NoGradGuard no_grad;
  at::Tensor estimate = at::zeros_like(x);
  for (int32_t step = 0; step < steps; ++step) {
    const at::Tensor t = at::full({1}, 1.0 - static_cast<double>(step) / steps, at::kFloat);
    const at::Tensor classes = at::full({1}, label, at::kLong);
    const at::Tensor null_class = at::full({1}, TinyInfo().classes, at::kLong);
    const at::Tensor posterior = at::softmax(model::RunModel(networks.router.layers, x, t, classes), 1)[0];
    at::Tensor guided = at::zeros_like(x);
    at::Tensor own = at::zeros_like(x);
    for (int64_t expert = 0; expert < kTinyExperts; ++expert) {
      const model::LayerList& layers = networks.experts[expert].layers;
      const at::Tensor of_class = model::RunModel(layers, x, t, classes, estimate);
      const at::Tensor of_null = model::RunModel(layers, x, t, null_class, estimate);
      guided += posterior[expert] * (of_null + guidance * (of_class - of_null));
      own += posterior[expert] * of_class;
    }
    estimate = model::EstimateOf(x, t, own);
    x = x - guided / steps;
  }
  return x;
}

TEST_F(LocalBackendTest, SelfConditionedExpertsAreGivenTheEnsemblesEstimate) {
  auto made = MakeLocalBackend(TinyInfo(true), TinyNetworks(true), &pool_);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<ModelBackend> backend = *std::move(made);
  const Networks networks = TinyNetworks(true);
  ActiveRequest start{.order = {.images = {{2, 5}}},
                      .model = std::make_shared<ServedVersion>(ServedVersion{.info = backend->info()})};
  StartImages(&start);
  const at::Tensor noise = at::from_blob(start.images.front().state.x.data(), {1, 1, 4, 4}, at::kFloat).clone();
  for (const double guidance : {1.0, 2.0}) {
    SampleRequest request{.classes = {2}, .seeds = {5}, .routing = {.mode = RoutingMode::kFull}, .steps = 6};
    request.guidance = guidance;
    const std::vector<float> image = Sample(backend, request)[0];
    const at::Tensor expected = SampleStraight(networks, noise, 2, guidance, 6).flatten().contiguous();
    const std::vector<float> straight(expected.const_data_ptr<float>(), expected.const_data_ptr<float>() + 16);
    EXPECT_LT(Distance(image, straight), 1e-3) << "guidance " << guidance;
  }
}

TEST_F(LocalBackendTest, ExpertsThatAreNotAsTheIndexSaysOfSelfConditioningAreRefused) {
  for (const bool index_says : {false, true}) {
    const absl::Status status = MakeLocalBackend(TinyInfo(index_says), TinyNetworks(!index_says), &pool_).status();
    EXPECT_EQ(ErrorReason(status), "MODEL_MISMATCH") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("0 outputs, self-conditioned"));
  }
}

// ---- Exact experts and exact posterior of sixteen points in two clusters.

constexpr int64_t kPoints = 16;
constexpr int64_t kDimensions = 16;

TEST(ExactSamplingTest, ExactExpertsUnderTheExactPosteriorLandOnDataPoints) {
  at::Generator generator = at::detail::createCPUGenerator(17);
  const at::Tensor points = at::randn({kPoints, kDimensions}, generator, at::kDouble);
  const at::Tensor cluster_of = at::arange(kPoints, at::kLong).remainder(2);
  SamplerInfo info = TinyInfo();
  info.experts = 2;
  const auto tensor_of = [](std::span<const float> x) {
    return at::from_blob(const_cast<float*>(x.data()), {1, static_cast<int64_t>(x.size())}, at::kFloat).to(at::kDouble);
  };
  const auto floats_of = [](const at::Tensor& row) {
    const at::Tensor flat = row.flatten().to(at::kFloat).contiguous();
    return std::vector<float>(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
  };
  const auto backend = std::make_shared<FakeBackend>(info);
  backend->velocity = [&](int32_t expert, std::span<const float> x, float t, int64_t) {
    const at::Tensor mine = points.index({cluster_of == expert});
    return floats_of(model::ExactVelocity(mine, tensor_of(x), at::full({1}, t, at::kDouble)));
  };
  backend->posterior = [&](std::span<const float> x, float t, int64_t) {
    return floats_of(model::ExactPosterior(points, cluster_of, 2, tensor_of(x), at::full({1}, t, at::kDouble)));
  };
  for (const RoutingMode mode : {RoutingMode::kFull, RoutingMode::kTopK}) {
    SampleRequest request{
        .classes = std::vector<int32_t>(12, -1), .seeds = {40}, .routing = {.mode = mode}, .steps = 60};
    for (const std::vector<float>& image : Sample(backend, request)) {
      const at::Tensor distance = (points - tensor_of(image)).norm(2, 1).min();
      EXPECT_LT(distance.item<double>(), 1e-3) << "mode " << static_cast<int>(mode);
    }
  }
}

// ---- Published versions.

class PublishedModelTest : public ::testing::Test {
 protected:
  void SetUp() override { digest_ = PublishTinyModel(store_.get(), uri_); }
  absl::StatusOr<std::unique_ptr<ModelBackend>> Load() {
    return LoadPublishedModel(store_.get(), uri_, digest_, &pool_);
  }

  storage::TemporaryStore store_;
  const std::string uri_ = storage::ModelFolderUri(*store_.get(), "tiny", "v1");
  std::string digest_;
  ComputePool pool_{1};
};

TEST_F(PublishedModelTest, LoadsAndSamplesLikeTheNetworksThatWerePublished) {
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->info(), TinyInfo());
  auto original = MakeLocalBackend(TinyInfo(), TinyNetworks(), &pool_);
  const SampleRequest request{.classes = {0, 3}, .steps = 4};
  EXPECT_EQ(Sample(*std::move(loaded), request), Sample(*std::move(original), request));
}

TEST_F(PublishedModelTest, ASelfConditionedModelSaysSoInItsIndex) {
  digest_ = PublishTinyModel(store_.get(), uri_, /*self_conditioning=*/true);
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->info(), TinyInfo(true));
  auto original = MakeLocalBackend(TinyInfo(true), TinyNetworks(true), &pool_);
  const SampleRequest request{.classes = {0, 3}, .steps = 4};
  EXPECT_EQ(Sample(*std::move(loaded), request), Sample(*std::move(original), request));
}

TEST_F(PublishedModelTest, OneChangedByteInAnyFileIsDataLoss) {
  for (const std::string name :
       {"model_index.json", "expert_1/config.json", "expert_2/diffusion_pytorch_model.safetensors",
        "router/config.json", "router/diffusion_pytorch_model.safetensors"}) {
    const std::string whole = *store_->Read(uri_ + "/" + name);
    std::string damaged = whole;
    damaged[damaged.size() / 2] ^= 1;
    ASSERT_TRUE(store_->Write(uri_ + "/" + name, damaged).ok());
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    ASSERT_TRUE(store_->Write(uri_ + "/" + name, whole).ok());
  }
  EXPECT_TRUE(Load().ok());
}

TEST_F(PublishedModelTest, AMissingFileIsNamed) {
  ASSERT_TRUE(store_->Delete(uri_ + "/expert_0/config.json").ok());
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert_0/config.json"));
}

TEST_F(PublishedModelTest, AnIndexWithoutAnExpertsEntryIsDataLoss) {
  auto index = *storage::ParseModelIndex(*store_->Read(uri_ + "/model_index.json"), "index");
  std::erase_if(index.files, [](const auto& file) { return file.name.starts_with("expert_2"); });
  digest_ = store_->Write(uri_ + "/model_index.json", storage::ToJson(index))->sha256;
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'expert_2/config.json'"));
}

}  // namespace
}  // namespace atl::router
