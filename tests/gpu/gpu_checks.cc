// Checks and measurements of one GPU, for machines that have nothing but a bundle and PyTorch (tests/gpu/run.sh).
//
//   gpu_checks --list            the names
//   gpu_checks NAME [--steps N]  runs one: 0 passed, 1 failed, 77 skipped since there is no device
//
// Measurements are one JSON object per line on standard output; what people read goes to standard error.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>

#include "absl/synchronization/notification.h"
#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/device.h"
#include "common/planner/plan.h"
#include "common/schedule/action.h"
#include "common/spec/spec_io.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "inference/local/local_experts.h"
#include "inference/testing/published_tiny_model.h"
#include "tests/bench/figures.h"
#include "worker/island/rank_device.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace atl::gpu {
namespace {

using transport::Lane;
using transport::LaneKind;
using transport::NcclApi;
using transport::RealNcclApi;

constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Status Failed(const std::string& message) {
  return absl::InternalError(message);
}

absl::Status Cuda(cudaError_t error, const char* call) {
  return error == cudaSuccess ? absl::OkStatus() : Failed(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

absl::Status Nccl(ncclResult_t result, const char* call) {
  return result == ncclSuccess ? absl::OkStatus() : Failed(fmt::format("{}: {}", call, ncclGetErrorString(result)));
}

void Print(const char* name, const std::string& metric, double value, const char* unit) {
  bench::PrintFigure(name, metric, value, unit);
}

double Seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// --- transport

absl::StatusOr<std::unique_ptr<transport::Transport>> OneRank(const std::vector<Lane>& lanes) {
  ATOLL_ASSIGN_OR_RETURN(auto made,
                         transport::MakeNcclTransport({.api = RealNcclApi()}, 0, 1, {.attempt = 1, .secret = "s"}));
  ATOLL_RETURN_IF_ERROR(made->Connect({made->Address()}, lanes, kPatience));
  return made;
}

// Connect, sums that keep their bits, and an abort that ends everything with its reason.
absl::Status CheckOneRank() {
  ATOLL_ASSIGN_OR_RETURN(const auto rank, OneRank({}));
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = 1.0 / static_cast<double>(i + 1);
    const std::vector<double> before = values;
    ATOLL_RETURN_IF_ERROR(rank->AllReduceSum(values, kPatience));
    if (values != before) return Failed(fmt::format("a sum over one rank changed its {} values", count));
  }
  rank->Abort(absl::AbortedError("enough"));
  double value = 1;
  const absl::Status status = rank->AllReduceSum({&value, 1}, kPatience);
  if (status.code() == absl::StatusCode::kAborted && status.message() == "enough") return absl::OkStatus();
  return Failed(fmt::format("after Abort(enough): expected its reason, found {}", status.ToString()));
}

// Hops inside a rank are hand-overs: the transport refuses such a lane by name rather than wait for itself for ever.
absl::Status CheckSelfLane() {
  const auto rank = OneRank({{0, 0, 1, LaneKind::kForward}});
  if (ErrorReason(rank.status()) == "TRANSPORT_LANE_INVALID") return absl::OkStatus();
  return Failed(
      fmt::format("a lane from rank 0 to itself: expected TRANSPORT_LANE_INVALID, found {}", rank.status().ToString()));
}

// NCCL itself: a message to oneself inside a group, a sum, a gather, in the order of a stream that does not block.
absl::Status CheckNcclCollectives() {
  constexpr size_t kCount = 1 << 20;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ATOLL_RETURN_IF_ERROR(Nccl(ncclGetUniqueId(&id), "ncclGetUniqueId"));
  ATOLL_RETURN_IF_ERROR(Nccl(ncclCommInitRank(&comm, 1, id, 0), "ncclCommInitRank"));
  ATOLL_ASSIGN_OR_RETURN(const NcclApi::Stream opaque, RealNcclApi()->CreateStream());
  auto* const stream = static_cast<cudaStream_t>(opaque);
  const at::Tensor sent = at::arange(kCount, at::TensorOptions().device(at::kCUDA).dtype(at::kFloat));
  at::Tensor received = at::zeros_like(sent);
  at::Tensor summed = at::zeros_like(sent);
  at::Tensor gathered = at::zeros_like(sent);
  ATOLL_ASSIGN_OR_RETURN(const NcclApi::Event ready, RealNcclApi()->RecordEvent(nullptr));
  ATOLL_RETURN_IF_ERROR(RealNcclApi()->StreamWait(opaque, ready));
  RealNcclApi()->DestroyEvent(ready);
  ATOLL_RETURN_IF_ERROR(Nccl(ncclGroupStart(), "ncclGroupStart"));
  ATOLL_RETURN_IF_ERROR(Nccl(ncclSend(sent.data_ptr(), kCount, ncclFloat, 0, comm, stream), "ncclSend to self"));
  ATOLL_RETURN_IF_ERROR(Nccl(ncclRecv(received.data_ptr(), kCount, ncclFloat, 0, comm, stream), "ncclRecv from self"));
  ATOLL_RETURN_IF_ERROR(Nccl(ncclGroupEnd(), "ncclGroupEnd"));
  ATOLL_RETURN_IF_ERROR(
      Nccl(ncclAllReduce(received.data_ptr(), summed.data_ptr(), kCount, ncclFloat, ncclSum, comm, stream),
           "ncclAllReduce"));
  ATOLL_RETURN_IF_ERROR(
      Nccl(ncclAllGather(summed.data_ptr(), gathered.data_ptr(), kCount, ncclFloat, comm, stream), "ncclAllGather"));
  ATOLL_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream), "the stream of the collectives"));
  RealNcclApi()->DestroyStream(opaque);
  (void)ncclCommDestroy(comm);
  return at::equal(gathered, sent) ? absl::OkStatus() : Failed("what came back is not what was sent");
}

// Lanes' streams run beside the compute: a copy on one does not wait for products on the compute stream, but one that
// is told to wait for them does.
absl::Status CheckStreams() {
  NcclApi* const api = RealNcclApi();
  constexpr int64_t kBytes = int64_t{256} << 20;
  const at::Tensor host = at::ones({kBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  at::Tensor device = at::zeros({kBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  at::Tensor a = at::randn({8192, 8192}, at::TensorOptions().device(at::kCUDA));
  const auto compute = [&] {
    for (int i = 0; i < 4; ++i) a = at::mm(a, a) * 1e-4;
  };
  compute();
  ATOLL_ASSIGN_OR_RETURN(const NcclApi::Stream lane, api->CreateStream());
  absl::Status status;
  const auto copy = [&] { status.Update(api->Copy(device.data_ptr(), host.data_ptr(), kBytes, lane)); };
  const auto settle = [&] { status.Update(Cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize")); };
  const auto timed = [&](const std::function<void()>& work) {
    settle();
    return Seconds([&] { work(), settle(); });
  };
  timed(copy);
  std::vector<double> computes, copies, both;
  for (int i = 0; i < 5; ++i) {
    computes.push_back(timed(compute));
    copies.push_back(timed(copy));
    both.push_back(timed([&] { compute(), copy(); }));
  }
  const double shorter = std::min(Median(computes), Median(copies));
  const double overlap = (Median(computes) + Median(copies) - Median(both)) / shorter;
  Print("streams", "copy_bytes_per_second", kBytes / Median(copies), "B/s");
  Print("streams", "overlap", overlap, "1");
  // The order that the transport keeps: what the compute stream makes is what the lane reads.
  at::Tensor made = at::zeros({1 << 24}, at::TensorOptions().device(at::kCUDA));
  at::Tensor seen = at::zeros_like(made);
  compute();
  made.fill_(7);
  ATOLL_ASSIGN_OR_RETURN(const NcclApi::Event ready, api->RecordEvent(nullptr));
  status.Update(api->StreamWait(lane, ready));
  status.Update(api->Copy(seen.data_ptr(), made.data_ptr(), made.nbytes(), lane));
  settle();
  api->DestroyEvent(ready);
  api->DestroyStream(lane);
  ATOLL_RETURN_IF_ERROR(status);
  if (!at::equal(seen, made)) return Failed("a lane read what the compute stream had not made yet");
  if (overlap < 0.5)
    return Failed(fmt::format("copies: expected at least half to hide in compute, found {:.2f}", overlap));
  return absl::OkStatus();
}

// --- training

// Images of smooth noise with labels; the same for every trainer.
class Waves : public trainer::TrainingData {
 public:
  explicit Waves(int32_t classes) : classes_(classes) {}
  int64_t size() const override { return 4096; }
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    const CounterRandom random(11, RandomPurpose::kSubset, 0, static_cast<uint64_t>(position));
    const float frequency = 0.01F + 0.3F * random.Uniform(0);
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::sin(frequency * static_cast<float>(i));
    return Item{.label = static_cast<int32_t>(position % classes_)};
  }

 private:
  const int32_t classes_;
};

trainer::TrainerOptions SmallModel(const std::string& device) {
  trainer::TrainerOptions options;
  options.model = {.patch = 2, .width = 128, .depth = 4, .heads = 4, .mlp_ratio = 4.0};
  options.training.steps = 100;
  options.training.batch_size = 16;
  options.training.learning_rate = 1e-3;
  options.training.warmup_steps = 0;
  options.training.class_dropout = 0.1;
  options.training.flip = true;
  options.channels = 3;
  options.height = options.width = 16;
  options.classes = 10;
  options.seed = 7;
  options.device = device;
  return options;
}

trainer::TrainerOptions DitB2() {
  trainer::TrainerOptions options = SmallModel("cuda");
  options.model = {.patch = 2, .width = 768, .depth = 12, .heads = 12, .mlp_ratio = 4.0};
  options.training.steps = 1'000'000;
  options.training.batch_size = 64;
  options.training.learning_rate = 1e-4;
  options.training.flip = false;
  options.channels = 4;
  options.height = options.width = 32;
  options.classes = 1000;
  return options;
}

// Everything on one rank; `split` runs input and weight gradients apart.
absl::StatusOr<planner::Plan> OneRankPlan(const trainer::TrainerOptions& options, int32_t micro_batches,
                                          const std::string& compute, bool split) {
  std::string text;
  for (int32_t m = 0; m < micro_batches; ++m) {
    text +=
        fmt::format("{}0F{},", m == 0 ? "" : ",", m) + (split ? fmt::format("0I{0},0W{0}", m) : fmt::format("0B{}", m));
  }
  planner::Plan plan;
  ATOLL_ASSIGN_OR_RETURN(plan.schedule, schedule::ParseText(text));
  plan.micro_batches = micro_batches;
  plan.micro_batch_size = options.training.batch_size / micro_batches;
  plan.generator = "gpu_checks";
  plan.stages = {{.rank = 0, .first_layer = 0, .end_layer = spec::LayerCount(options.model)}};
  plan.precision.compute = compute;
  return plan;
}

absl::StatusOr<std::vector<trainer::StepResult>> Train(const trainer::TrainerOptions& options,
                                                       const planner::Plan& plan, int steps,
                                                       std::vector<double>* seconds = nullptr) {
  Waves data(options.classes);
  ATOLL_ASSIGN_OR_RETURN(const auto trainer, trainer::Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real()));
  std::vector<trainer::StepResult> results;
  for (int i = 0; i < steps; ++i) {
    absl::StatusOr<trainer::StepResult> result = absl::InternalError("");
    // The loss is read at the end of a step: the device has done all of it by then.
    const double took = Seconds([&] { result = trainer->Step(); });
    ATOLL_RETURN_IF_ERROR(result.status());
    results.push_back(*result);
    if (seconds != nullptr) seconds->push_back(took);
  }
  return results;
}

double Apart(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

absl::Status Compare(const char* name, const std::vector<trainer::StepResult>& expected,
                     const std::vector<trainer::StepResult>& found, double tolerance) {
  double loss = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    loss = std::max(loss, Apart(expected[i].loss, found[i].loss));
    norm = std::max(norm, Apart(expected[i].gradient_norm, found[i].gradient_norm));
  }
  Print(name, "loss_error_fraction", loss, "1");
  Print(name, "gradient_norm_error_fraction", norm, "1");
  if (loss <= tolerance && norm <= 5 * tolerance) return absl::OkStatus();
  return Failed(fmt::format("{}: expected losses within {} and gradient norms within {}, found {:.2g} and {:.2g}", name,
                            tolerance, 5 * tolerance, loss, norm));
}

absl::Status CompareWithCpu(const char* name, const std::string& compute, bool split, double tolerance,
                            const std::string& device = "cuda") {
  constexpr int kSteps = 10;
  ATOLL_RETURN_IF_ERROR(model::OpenDevices(device).status());
  const trainer::TrainerOptions on_cpu = SmallModel("cpu");
  const trainer::TrainerOptions on_device = SmallModel(device);
  ATOLL_ASSIGN_OR_RETURN(const auto cpu_plan, OneRankPlan(on_cpu, 4, "float32", false));
  ATOLL_ASSIGN_OR_RETURN(const auto device_plan, OneRankPlan(on_device, 4, compute, split));
  ATOLL_ASSIGN_OR_RETURN(const auto expected, Train(on_cpu, cpu_plan, kSteps));
  ATOLL_ASSIGN_OR_RETURN(const auto found, Train(on_device, device_plan, kSteps));
  return Compare(name, expected, found, tolerance);
}

// --- devices of ranks

// Ranks 0, 1, … of one host, each of which may have every device.
absl::StatusOr<std::vector<worker::DeviceSeeker>> SeekersOf(int ranks) {
  std::vector<worker::DeviceSeeker> seekers;
  for (int rank = 0; rank < ranks; ++rank) {
    ATOLL_ASSIGN_OR_RETURN(const auto devices, model::OpenDevices("cuda"));
    worker::DeviceSeeker seeker{.rank = rank, .where = "this machine"};
    for (const model::DeviceInfo& device : devices) seeker.devices.push_back({device.label, device.uuid});
    seekers.push_back(std::move(seeker));
  }
  return seekers;
}

// As many ranks as there are devices, each a thread: it trains on the device that it was given, and adds a number over
// NCCL. Everything that the thread leaves current is that device.
absl::Status CheckDevicePerRank() {
  ATOLL_ASSIGN_OR_RETURN(const auto devices, model::OpenDevices("cuda"));
  const int ranks = static_cast<int>(devices.size());
  if (ranks < 2) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                     "expected at least two CUDA devices, found one");
  }
  ATOLL_ASSIGN_OR_RETURN(const auto seekers, SeekersOf(ranks));
  ATOLL_ASSIGN_OR_RETURN(const auto given, worker::AssignDevices(seekers));
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < ranks; ++rank) {
    if (given[rank].label != devices[rank].label) return Failed("expected the devices in rank order");
    ATOLL_ASSIGN_OR_RETURN(auto made, transport::MakeNcclTransport({.device = rank, .api = RealNcclApi()}, rank, ranks,
                                                                   {.attempt = 1, .secret = "s"}));
    addresses.push_back(made->Address());
    transports.push_back(std::move(made));
  }
  std::vector<absl::Status> ends(ranks);
  std::vector<double> losses(ranks);
  const auto run = [&](int rank) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(transports[rank]->Connect(addresses, {}, kPatience));
    const trainer::TrainerOptions options = SmallModel(given[rank].label);
    ATOLL_ASSIGN_OR_RETURN(const auto plan, OneRankPlan(options, 4, "float32", false));
    ATOLL_ASSIGN_OR_RETURN(const auto steps, Train(options, plan, 3));
    losses[rank] = steps.back().loss;
    double value = rank + 1;
    ATOLL_RETURN_IF_ERROR(transports[rank]->AllReduceSum({&value, 1}, kPatience));
    if (value != ranks * (ranks + 1) / 2) return Failed(fmt::format("rank {}: found a sum of {}", rank, value));
    int current = -1;
    ATOLL_RETURN_IF_ERROR(Cuda(cudaGetDevice(&current), "cudaGetDevice"));
    return current == rank ? absl::OkStatus() : Failed(fmt::format("rank {}: found device {}", rank, current));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { ends[rank] = run(rank); });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    ATOLL_RETURN_IF_ERROR(ends[rank]);
    if (Apart(losses[rank], losses[0]) > 1e-5) return Failed("the devices' losses differ");
  }
  return absl::OkStatus();
}

// One rank more than there are devices is refused, with the UUID of the device that it would share.
absl::Status CheckSharedDevice() {
  ATOLL_ASSIGN_OR_RETURN(const auto devices, model::OpenDevices("cuda"));
  ATOLL_ASSIGN_OR_RETURN(const auto seekers, SeekersOf(static_cast<int>(devices.size()) + 1));
  const absl::Status refused = worker::AssignDevices(seekers).status();
  if (ErrorReason(refused) == "DEVICE_TAKEN" && devices[0].uuid.starts_with("GPU-") &&
      refused.message().find(devices[0].uuid) != absl::string_view::npos) {
    return absl::OkStatus();
  }
  return Failed(fmt::format("{} ranks on {} devices: expected DEVICE_TAKEN and {}, found {}", seekers.size(),
                            devices.size(), devices[0].uuid, refused.ToString()));
}

// Multiply-adds count twice; the backward pass costs twice the forward.
double FlopsPerStep(const trainer::TrainerOptions& options) {
  const double tokens =
      static_cast<double>(options.height / options.model.patch) * (options.width / options.model.patch);
  const double width = options.model.width;
  const double pixels = static_cast<double>(options.channels) * options.model.patch * options.model.patch;
  const double hidden = width * options.model.mlp_ratio;
  const double attention = tokens * width * 4 * width + 2 * tokens * tokens * width;
  const double block = attention + tokens * width * hidden * 2 + 6 * width * width;
  const double ends = 2 * tokens * width * pixels + 256 * width + width * width + 2 * width * width;
  return 2 * 3 * (options.model.depth * block + ends) * options.training.batch_size;
}

// Dense peak by the product's name; 0: unknown.
double PeakFlops(const std::string& device, bool bf16) {
  struct Peak {
    const char* name;
    double bf16;
    double fp32;
  };
  // If names share a prefix, the longer name comes first.
  for (const Peak& peak :
       {Peak{"H200", 989e12, 67e12}, Peak{"H100 PCIe", 756e12, 51e12}, Peak{"H100 NVL", 835e12, 60e12},
        Peak{"H100", 989e12, 67e12}, Peak{"A100", 312e12, 19.5e12}, Peak{"L40S", 362e12, 91.6e12}}) {
    if (device.find(peak.name) != std::string::npos) return bf16 ? peak.bf16 : peak.fp32;
  }
  return 0;
}

absl::Status MeasureDit(const char* name, const std::string& compute, int steps) {
  const trainer::TrainerOptions options = DitB2();
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, OneRankPlan(options, 1, compute, false));
  constexpr int kWarmUp = 5;
  std::vector<double> seconds;
  ATOLL_ASSIGN_OR_RETURN(const auto results, Train(options, plan, kWarmUp + steps, &seconds));
  seconds.erase(seconds.begin(), seconds.begin() + kWarmUp);
  const double step = Median(seconds);
  Print(name, "step", step, "s");
  Print(name, "images_per_second", options.training.batch_size / step, "1/s");
  Print(name, "flops_per_second", FlopsPerStep(options) / step, "1/s");
  cudaDeviceProp device;
  ATOLL_RETURN_IF_ERROR(Cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties"));
  const double peak = PeakFlops(device.name, compute == "bfloat16");
  if (peak > 0) {
    Print(name, "model_flops_utilisation", FlopsPerStep(options) / step / peak, "1");
  } else {
    std::fprintf(stderr, "gpu_checks: no utilisation: the peak of '%s' is not known here\n", device.name);
  }
  return results.back().loss < results.front().loss ? absl::OkStatus()
                                                    : Failed("the loss did not fall while the step was measured");
}

// --- serving

// A small published version, and its networks on the processor to compare with.
class Serving {
 public:
  static absl::StatusOr<std::unique_ptr<Serving>> Make() {
    auto serving = std::make_unique<Serving>();
    const std::string uri = storage::ModelFolderUri(*serving->store_.get(), "tiny", "v1");
    router::PublishTinyModel(serving->store_.get(), uri);
    ATOLL_ASSIGN_OR_RETURN(serving->files_, router::OpenVersion(serving->store_.get(), uri, /*digest=*/""));
    ATOLL_ASSIGN_OR_RETURN(serving->processor_, router::LocalExperts::Create({}, Clock::Real()));
    ATOLL_ASSIGN_OR_RETURN(serving->on_processor_, serving->processor_->Host(serving->files_));
    return serving;
  }

  const std::shared_ptr<const router::VersionFiles>& files() const { return files_; }

  static absl::StatusOr<std::vector<float>> Answer(router::ExpertLane& lane, router::Evaluation evaluation) {
    absl::StatusOr<router::EvaluationAnswer> result;
    absl::Notification done;
    lane.Start(std::make_shared<router::Evaluation>(std::move(evaluation)),
               [&](absl::StatusOr<router::EvaluationAnswer> answer) {
                 result = std::move(answer);
                 done.Notify();
               });
    done.WaitForNotification();
    ATOLL_RETURN_IF_ERROR(result.status());
    return std::move(result->values);
  }

  // `rows` rows of noise, at other times and of other classes.
  router::Evaluation Of(int32_t expert, int64_t rows, bool reproducible = false) const {
    const storage::ModelIndex& index = files_->index;
    const int64_t pixels = int64_t{index.channels} * index.height * index.width;
    router::Rows noise{.count = rows, .x = std::vector<float>(static_cast<size_t>(rows * pixels))};
    CounterRandom(1, RandomPurpose::kSampleNoise, 0, 0).Normal(noise.x);
    for (int64_t row = 0; row < rows; ++row) {
      noise.t.push_back(1.0f / static_cast<float>(1 + row));
      noise.classes.push_back(row % static_cast<int64_t>(index.classes.size()));
    }
    return {.network = files_->network(expert),
            .channels = index.channels,
            .height = index.height,
            .width = index.width,
            .rows = std::move(noise),
            .reproducible = reproducible};
  }

  // Every network's answers on the lane equal the processor's to `tolerance` of the largest.
  absl::Status Compare(const char* name, router::ExpertLane& lane, double tolerance) const {
    double worst = 0;
    for (int32_t expert = kRouterNetwork; expert < files_->index.experts; ++expert) {
      for (const int64_t rows : {1, 5, 64}) {
        ATOLL_ASSIGN_OR_RETURN(const std::vector<float> expected, Answer(*processor_->lanes()[0], Of(expert, rows)));
        ATOLL_ASSIGN_OR_RETURN(const std::vector<float> found, Answer(lane, Of(expert, rows)));
        if (found.size() != expected.size()) return Failed("answers of another size than the processor's");
        double largest = 0;
        double difference = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
          difference = std::max(difference, std::abs(static_cast<double>(found[i]) - expected[i]));
        }
        worst = std::max(worst, difference / largest);
      }
    }
    Print(name, "largest_difference", worst, "1");
    if (worst <= tolerance) return absl::OkStatus();
    return Failed(fmt::format("expected answers within {} of the processor's on {}, found {}", tolerance,
                              lane.info().name, worst));
  }

 private:
  storage::TemporaryStore store_;
  std::shared_ptr<const router::VersionFiles> files_;
  std::unique_ptr<router::LocalExperts> processor_;
  std::shared_ptr<const router::VersionFiles> on_processor_;
};

absl::Status CheckServing(const char* name, const std::string& devices) {
  ATOLL_ASSIGN_OR_RETURN(const auto serving, Serving::Make());
  ATOLL_ASSIGN_OR_RETURN(const auto experts, router::LocalExperts::Create({.device = devices}, Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const auto served, experts->Host(serving->files()));
  std::vector<std::vector<float>> fixed;
  for (const auto& lane : experts->lanes()) {
    ATOLL_RETURN_IF_ERROR(serving->Compare(name, *lane, 2e-4));
    ATOLL_ASSIGN_OR_RETURN(const auto values, Serving::Answer(*lane, serving->Of(0, 5, /*reproducible=*/true)));
    fixed.push_back(values);
  }
  for (size_t i = 1; i < fixed.size(); ++i) {
    const bool alike = experts->lanes()[i]->info().fingerprint == experts->lanes()[0]->info().fingerprint;
    if (alike && fixed[i] != fixed[0]) return Failed("devices of one arithmetic differ in a reproducible answer");
  }
  return absl::OkStatus();
}

struct Check {
  const char* name;
  std::function<absl::Status(int steps)> run;
};

const std::vector<Check>& Checks() {
  static const auto* const checks = new std::vector<Check>{
      {"nccl-one-rank", [](int) { return CheckOneRank(); }},
      {"nccl-self-lane", [](int) { return CheckSelfLane(); }},
      {"nccl-collectives", [](int) { return CheckNcclCollectives(); }},
      {"streams", [](int) { return CheckStreams(); }},
      {"step-fp32", [](int) { return CompareWithCpu("step-fp32", "float32", false, 2e-4); }},
      {"step-split-backward", [](int) { return CompareWithCpu("step-split-backward", "float32", true, 2e-4); }},
      {"step-second-device",
       [](int) { return CompareWithCpu("step-second-device", "float32", false, 2e-4, "cuda:1"); }},
      {"device-per-rank", [](int) { return CheckDevicePerRank(); }},
      {"device-shared", [](int) { return CheckSharedDevice(); }},
      {"step-bf16", [](int) { return CompareWithCpu("step-bf16", "bfloat16", false, 2e-2); }},
      {"serving", [](int) { return CheckServing("serving", "cuda:0"); }},
      {"serving-two-devices", [](int) { return CheckServing("serving-two-devices", "cuda:0,cuda:1"); }},
      {"dit-b2-fp32", [](int steps) { return MeasureDit("dit-b2-fp32", "float32", steps); }},
      {"dit-b2-bf16", [](int steps) { return MeasureDit("dit-b2-bf16", "bfloat16", steps); }},
  };
  return *checks;
}

// Accepts no argument, or "--steps N" with N from 1; nullopt for anything else.
std::optional<int> ParseSteps(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return 30;
  int steps = 0;
  if (arguments.size() != 2 || arguments[0] != "--steps") return std::nullopt;
  const char* const end = arguments[1].data() + arguments[1].size();
  const auto [parsed, error] = std::from_chars(arguments[1].data(), end, steps);
  return error == std::errc() && parsed == end && steps >= 1 ? std::optional(steps) : std::nullopt;
}

int Skipped(const std::string& name, const absl::Status& why) {
  std::fprintf(stderr, "SKIPPED %s: %s\n", name.c_str(), std::string(why.message()).c_str());
  return 77;
}

int Main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const std::vector<std::string> others(argv + std::min(argc, 2), argv + argc);
  if (name == "--list" && others.empty()) {
    for (const Check& check : Checks()) std::printf("%s\n", check.name);
    return 0;
  }
  const std::optional<int> steps = ParseSteps(others);
  if (!steps.has_value()) {
    std::fprintf(stderr, "gpu_checks: error: expected a name and at most --steps N with N from 1, found '%s'\n",
                 fmt::format("{}", fmt::join(argv + 1, argv + argc, " ")).c_str());
    return 2;
  }
  const auto check = std::find_if(Checks().begin(), Checks().end(), [&](const Check& c) { return name == c.name; });
  if (check == Checks().end()) {
    std::fprintf(stderr, "gpu_checks: error: expected a name that --list prints, found '%s'\n", name.c_str());
    return 2;
  }
  if (const absl::Status opened = model::OpenDevices("cuda").status(); !opened.ok()) return Skipped(name, opened);
  bench::KeepStandardOutputForFigures();
  absl::Status status;
  try {
    status = check->run(*steps);
  } catch (const std::exception& error) {  // LibTorch's
    status = Failed(error.what());
  }
  if (ErrorReason(status) == "DEVICE_UNAVAILABLE") return Skipped(name, status);  // there are fewer than it needs
  std::fprintf(stderr, "%s %s%s%s\n", status.ok() ? "PASSED" : "FAILED", name.c_str(), status.ok() ? "" : ": ",
               std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace atl::gpu

int main(int argc, char** argv) {
  return atl::gpu::Main(argc, argv);
}
