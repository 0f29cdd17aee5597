// Whole samples by real networks with random weights, published on disk and hosted in this process, and by exact
// networks of a small set of points.
#include <cmath>

#include <ATen/ATen.h>

#include "absl/synchronization/notification.h"
#include "common/base/fake_clock.h"
#include "common/formats/model_index.h"
#include "common/model/flow_matching.h"
#include "common/model/flow_matching_testing.h"
#include "common/model/weights.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/local/local_experts.h"
#include "inference/testing/tiny_model.h"
#include "router/engine/engine.h"
#include "router/engine/sampler_info.h"
#include "router/engine/testing/company.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

using Images = std::vector<std::vector<float>>;

// The version of TinyNetworks(self_conditioning).
SamplerInfo TinyInfo(bool self_conditioning = false) {
  return {.model = "tiny",
          .version = "v1",
          .experts = kTinyExperts,
          .classes = 4,
          .channels = 1,
          .height = 4,
          .width = 4,
          .self_conditioning = self_conditioning,
          .class_names = {"a", "b", "c", "d"}};
}

class AwaitedEvents : public RecordedEvents {
 public:
  void OnDone(const SampleReport& report) override {
    RecordedEvents::OnDone(report);
    over_.Notify();
  }
  void OnError(const absl::Status& status) override {
    RecordedEvents::OnError(status);
    over_.Notify();
  }
  void Await() { over_.WaitForNotification(); }

 private:
  absl::Notification over_;
};

// A running engine over lanes of this process.
class Sampler {
 public:
  Sampler(std::shared_ptr<const VersionFiles> files, int lanes, int64_t budget = 0, const std::string& device = "cpu") {
    experts_ = LocalExperts::Create({.device = device, .threads = lanes, .memory_budget_bytes = budget}, Clock::Real())
                   .value();
    for (const auto& lane : experts_->lanes()) engine_.AddLane(lane);
    engine_.Serve(ServedOf(experts_->Host(std::move(files)).value()));
    engine_.Start();
  }
  ~Sampler() { engine_.Stop(); }

  struct Running {
    std::unique_ptr<SampleTicket> ticket;
    std::shared_ptr<AwaitedEvents> events;
    size_t images = 0;
  };
  Running Start(SampleRequest request) {
    request.format = ImageFormat::kRaw;
    Running running{.events = std::make_shared<AwaitedEvents>(), .images = request.classes.size()};
    auto ticket = engine_.Submit(request, absl::InfiniteDuration(), running.events);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    running.ticket = *std::move(ticket);
    return running;
  }
  Images Await(const Running& running) {
    running.events->Await();
    EXPECT_EQ(running.events->log().back(), "done") << running.events->status();
    Images images;
    for (size_t i = 0; i < running.images; ++i) images.push_back(running.events->Pixels(static_cast<int32_t>(i)));
    return images;
  }
  Images Sample(const SampleRequest& request) { return Await(Start(request)); }

  const LocalExperts& experts() const { return *experts_; }
  Engine* engine() { return &engine_; }

 private:
  std::unique_ptr<LocalExperts> experts_;
  TickedEngine engine_{{}, Clock::Real(), nullptr};
};

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

class LocalSamplingTest : public ::testing::Test {
 protected:
  std::shared_ptr<const VersionFiles> Publish(const Networks& networks, bool self_conditioning = false) {
    const std::string digest = PublishNetworks(store_.get(), uri_, networks, self_conditioning);
    return OpenVersion(store_.get(), uri_, digest).value();
  }

  storage::TemporaryStore store_;
  const std::string uri_ = storage::ModelFolderUri(*store_.get(), "tiny", "v1");
};

TEST_F(LocalSamplingTest, APublishedVersionIsServedUnderItsNameAndDigest) {
  for (const bool self_conditioning : {false, true}) {
    const auto files = Publish(TinyNetworks(self_conditioning), self_conditioning);
    const auto served = ServedOf(files);
    EXPECT_EQ(served->info, TinyInfo(self_conditioning));
    EXPECT_EQ(served->network(1), files->network(1));
  }
}

TEST_F(LocalSamplingTest, AnImageComesOutTheSameAloneAndAmongOthers) {
  Sampler sampler(Publish(TinyNetworks()), 2);
  const SampleRequest many{.classes = {0, 1, 2, 3, -1, 1, 2}, .seeds = {100}, .steps = 8};
  const Sampler::Running running = sampler.Start(many);
  const Images together = sampler.Await(running);
  EXPECT_GT(running.events->report().routing.mean_entropy(), 0);
  EXPECT_EQ(running.events->report().fingerprint, "");
  for (size_t i = 0; i < many.classes.size(); ++i) {
    const Images alone = sampler.Sample({.classes = {many.classes[i]}, .seeds = {100 + i}, .steps = 8});
    EXPECT_LT(Distance(alone[0], together[i]), 1e-3) << "image " << i;
  }
}

TEST_F(LocalSamplingTest, ReproducibleImagesAreTheSameBitsInAnyCompany) {
  Sampler sampler(Publish(TinyNetworks(true), true), 2);
  for (const RoutingMode mode : {RoutingMode::kTopK, RoutingMode::kFull}) {
    const auto request_of = [&](uint64_t first, int32_t count) {
      SampleRequest request{.seeds = {first}, .routing = {.mode = mode}, .steps = 6, .guidance = 2.0};
      for (int32_t i = 0; i < count; ++i) {
        request.classes.push_back(static_cast<int32_t>((first + static_cast<uint64_t>(i)) % 5) - 1);
      }
      request.reproducible = true;
      return request;
    };
    Images alone;
    for (uint64_t seed = 0; seed < 16; ++seed) {
      const Sampler::Running running = sampler.Start(request_of(seed, 1));
      alone.push_back(sampler.Await(running)[0]);
      EXPECT_EQ(running.events->report().fingerprint, sampler.experts().fingerprint());
    }
    for (const int32_t size : {2, 5, 16}) {
      for (uint64_t first = 0; first + static_cast<uint64_t>(size) <= 16; first += static_cast<uint64_t>(size)) {
        const Images together = sampler.Sample(request_of(first, size));
        for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i], alone[first + i]) << size << " images";
      }
    }
    // All at once, beside images that are not reproducible.
    std::vector<std::pair<uint64_t, Sampler::Running>> running;
    std::vector<Sampler::Running> others;
    for (uint64_t first = 0; first + 3 <= 16; first += 3) {
      running.emplace_back(first, sampler.Start(request_of(first, 3)));
      SampleRequest other = request_of(200 + first, 4);
      other.reproducible = false;
      others.push_back(sampler.Start(other));
    }
    for (const auto& [first, request] : running) {
      const Images mixed = sampler.Await(request);
      for (size_t i = 0; i < mixed.size(); ++i) EXPECT_EQ(mixed[i], alone[first + i]) << "among others";
    }
    for (const Sampler::Running& request : others) sampler.Await(request);
  }
}

// ---- Images that are not reproducible, in company.

// Networks of width 64, on 8x8 pictures.
Networks MiddlingNetworks() {
  const auto network = [](int64_t outputs, uint64_t seed) {
    model::LoadedModel made{.config = {.classes = 4, .width = 64, .depth = 3, .heads = 4, .outputs = outputs}};
    made.layers = model::BuildLayers(made.config, seed, 0, model::LayerCount(made.config));
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(seed);
    for (const auto& layer : made.layers) {
      for (const model::NamedTensor& parameter : layer->parameters()) {
        parameter.tensor.add_(at::randn(parameter.tensor.sizes(), generator, at::kFloat), 0.05);
      }
    }
    return made;
  };
  Networks networks{.router = network(kTinyExperts, 99)};
  for (int32_t expert = 0; expert < kTinyExperts; ++expert) networks.experts.push_back(network(0, 10 + expert));
  return networks;
}

TEST_F(LocalSamplingTest, InAnyCompanyImagesStayWithinAGreyLevelOfThemselvesAlone) {
  Sampler sampler(Publish(MiddlingNetworks()), 2);
  const Company company = MeasureCompany(sampler.engine(), {.images = 208, .classes = 4, .steps = 8, .guidance = 2.0});
  fmt::print("{}\n", Describe(company));
  EXPECT_EQ(company.failed, 0);
  EXPECT_EQ(company.compared, 4 * 208);
  EXPECT_GE(company.within_a_level, 0.99 * static_cast<double>(company.compared));
  EXPECT_EQ(company.unforeseen, 0) << "whoever comes out otherwise had a close call";
}

TEST_F(LocalSamplingTest, LanesAndABudgetOfTwoOfThreeExpertsChangeNoBit) {
  const auto files = Publish(TinyNetworks());
  int64_t budget = *WeightBytes(*files, kRouterNetwork);
  for (int32_t expert = 0; expert < 2; ++expert) budget += *WeightBytes(*files, expert);
  Sampler one(files, 1);
  Sampler two(files, 2);
  Sampler tight(files, 2, budget);
  Sampler apart(files, 2, budget, "cpu:0,cpu:1");
  SampleRequest request{.classes = {0, 1, 2, 3, 1}, .seeds = {1}, .routing = {.mode = RoutingMode::kFull}, .steps = 4};
  request.reproducible = true;
  const Images images = one.Sample(request);
  EXPECT_EQ(two.Sample(request), images);
  EXPECT_EQ(tight.Sample(request), images);
  EXPECT_EQ(apart.Sample(request), images);
  EXPECT_LE(apart.experts().stats().resident_bytes, 2 * budget);
  EXPECT_EQ(two.experts().stats().evictions, 0);
  EXPECT_GE(tight.experts().stats().evictions, 4);
  EXPECT_LE(tight.experts().stats().resident_bytes, budget);
}

TEST_F(LocalSamplingTest, TopKOfAllExpertsIsFull) {
  Sampler sampler(Publish(TinyNetworks()), 2);
  SampleRequest request{.classes = {0, 1, 2}, .seeds = {5}, .steps = 6};
  request.reproducible = true;
  request.routing = {.mode = RoutingMode::kFull};
  const Images full = sampler.Sample(request);
  request.routing = {.top_k = kTinyExperts};
  EXPECT_EQ(sampler.Sample(request), full);
}

TEST_F(LocalSamplingTest, FullTopOneAndOracleAgreeUnderACertainRouter) {
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
  Sampler sampler(Publish(networks), 2);
  SampleRequest request{.classes = {0, 1, -1}, .seeds = {5}, .steps = 6};
  request.reproducible = true;
  const Images top_1 = sampler.Sample(request);
  request.routing = {.mode = RoutingMode::kFull};
  EXPECT_EQ(sampler.Sample(request), top_1);
  request.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 1};
  EXPECT_EQ(sampler.Sample(request), top_1);
  request.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 2};
  const Images other = sampler.Sample(request);
  for (size_t i = 0; i < top_1.size(); ++i) EXPECT_GT(Distance(top_1[i], other[i]), 1e-3);
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

TEST_F(LocalSamplingTest, SelfConditionedExpertsAreGivenTheEnsemblesEstimate) {
  const Networks networks = TinyNetworks(true);
  Sampler sampler(Publish(networks, true), 2);
  ActiveRequest start{.order = {.images = {{2, 5}}},
                      .model = std::make_shared<ServedVersion>(ServedVersion{.info = TinyInfo(true)})};
  StartImages(&start);
  const at::Tensor noise = at::from_blob(start.images.front().state.x.data(), {1, 1, 4, 4}, at::kFloat).clone();
  for (const double guidance : {1.0, 2.0}) {
    SampleRequest request{.classes = {2}, .seeds = {5}, .routing = {.mode = RoutingMode::kFull}, .steps = 6};
    request.guidance = guidance;
    const std::vector<float> image = sampler.Sample(request)[0];
    const at::Tensor expected = SampleStraight(networks, noise, 2, guidance, 6).flatten().contiguous();
    const std::vector<float> straight(expected.const_data_ptr<float>(), expected.const_data_ptr<float>() + 16);
    EXPECT_LT(Distance(image, straight), 1e-3) << "guidance " << guidance;
  }
}

// ---- Exact experts and exact posterior of sixteen points in two clusters.

Images SampleInline(std::shared_ptr<ModelBackend> backend, SampleRequest request) {
  request.format = ImageFormat::kRaw;
  FakeClock clock;
  TickedEngine engine({}, &clock, nullptr);
  ServeInline(&engine, std::move(backend), &clock);
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine.Submit(request, absl::InfiniteDuration(), events);
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  for (int i = 0; i < 1000 && engine.RunTick(); ++i) {
  }
  EXPECT_EQ(events->log().back(), "done") << events->status();
  Images images;
  for (size_t i = 0; i < request.classes.size(); ++i) images.push_back(events->Pixels(static_cast<int32_t>(i)));
  return images;
}

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
    for (const std::vector<float>& image : SampleInline(backend, request)) {
      const at::Tensor distance = (points - tensor_of(image)).norm(2, 1).min();
      EXPECT_LT(distance.item<double>(), 1e-3) << "mode " << static_cast<int>(mode);
    }
  }
}

}  // namespace
}  // namespace atl::router
