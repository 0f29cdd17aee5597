// Training on outputs of frozen components that were computed before: shared by ranks, cut off, damaged.
#include "worker/trainer/frozen_cache.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/base/errors.h"
#include "common/planner/frozen_flow.h"
#include "gmock/gmock.h"
#include "worker/trainer/frozen_outputs.h"
#include "worker/trainer/frozen_testing.h"

namespace atl::trainer {
namespace {

using ::testing::HasSubstr;

// Counts what is read of it.
class CountedData : public StrokeData {
 public:
  CountedData() : StrokeData(160, 8, 5) {}
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    ++reads;
    return StrokeData::Read(position, pixels);
  }
  std::atomic<int> reads = 0;
};

// Files of 40 of the 320 rows (160 images, mirrored and not), and one of the six labels.
FrozenCacheOptions CacheOptions(const TrainerOptions& options, storage::TemporaryStore* store) {
  return {.trainer = options, .folder = store->get()->UriOf("frozen/key"), .file_bytes = 40 * 2 * 4 * 4 * 4};
}

planner::Plan ReadingPlan(const TrainerOptions& options, int32_t stages) {
  planner::Plan plan = PlanFor(options, stages);
  plan.reads_frozen_cache = true;
  return plan;
}

size_t FileCount(storage::TemporaryStore* store) {
  return store->get()->List(store->get()->UriOf("frozen")).value().size();
}

TEST(FrozenCacheTest, TrainingOnKeptOutputsIsTrainingOnComputedOnes) {
  storage::TemporaryStore store;
  TrainerOptions options = LatentOptions();
  options.training.class_dropout = 0.3;
  planner::Plan computing = PlanFor(options, 1);
  computing.components = planner::ComponentsOf(options.frozen);
  planner::AppendPieces(&computing);
  const Trained computed = Train(options, computing, 8, &store);
  CountedData data;
  const auto kept = ObtainFrozenCache(store.get(), &data, CacheOptions(options, &store));
  ASSERT_TRUE(kept.ok()) << kept.status();
  options.kept_outputs = *kept;
  const Trained read = Train(options, ReadingPlan(options, 1), 8, &store);
  ASSERT_EQ(read.results.size(), 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(read.results[i].loss, computed.results[i].loss, 1e-5) << i;
  for (const int32_t stages : {2, 4}) ExpectSameState(read, Train(options, ReadingPlan(options, stages), 8, &store));
  const Trained half = Train(options, ReadingPlan(options, 2), 3, &store);
  ExpectSameState(read, Train(options, ReadingPlan(options, 1), 8, &store, &half));
}

TEST(FrozenCacheTest, RanksShareThePassAndNobodyComputesAgain) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  constexpr int32_t kRanks = 3;
  std::barrier all(kRanks);
  std::vector<CountedData> data(kRanks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      FrozenCacheOptions mine = CacheOptions(options, &store);
      mine.rank = rank;
      mine.ranks = kRanks;
      mine.meet = [&all] {
        all.arrive_and_wait();
        return absl::OkStatus();
      };
      const auto kept = ObtainFrozenCache(store.get(), &data[static_cast<size_t>(rank)], mine);
      EXPECT_TRUE(kept.ok()) << kept.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(FileCount(&store), 8U + 1U);
  int sum = 0;
  for (const CountedData& of_rank : data) {
    EXPECT_GE(of_rank.reads, 2 * 40);
    sum += of_rank.reads;
  }
  // 48 rows of three batches of 16 for each file of 40; the last ends with the data.
  EXPECT_EQ(sum, 7 * 48 + 40);
  CountedData again;
  EXPECT_TRUE(ObtainFrozenCache(store.get(), &again, CacheOptions(options, &store)).ok());
  EXPECT_EQ(again.reads, 0);
}

TEST(FrozenCacheTest, ASmallCacheIsCutForRanksToShare) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  FrozenCacheOptions usual = CacheOptions(options, &store);
  usual.file_bytes = FrozenCacheOptions{}.file_bytes;
  CountedData data;
  ASSERT_TRUE(ObtainFrozenCache(store.get(), &data, usual).ok());
  EXPECT_EQ(FileCount(&store), 5U + 1U) << "of 64 rows, and the labels";
}

TEST(FrozenCacheTest, APassThatWasCutOffGoesOn) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  FrozenCacheOptions cut = CacheOptions(options, &store);
  int asked = 0;
  cut.interrupted = [&asked] { return ++asked > 8 ? absl::CancelledError("asked to stop") : absl::OkStatus(); };
  CountedData data;
  EXPECT_TRUE(absl::IsCancelled(ObtainFrozenCache(store.get(), &data, cut).status()));
  EXPECT_EQ(FileCount(&store), 2U);
  CountedData rest;
  EXPECT_TRUE(ObtainFrozenCache(store.get(), &rest, CacheOptions(options, &store)).ok());
  EXPECT_EQ(rest.reads, 5 * 48 + 40);
}

TEST(FrozenCacheTest, ARankThatOnlyChecksFilesIsInterruptedToo) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  CountedData data;
  ASSERT_TRUE(ObtainFrozenCache(store.get(), &data, CacheOptions(options, &store)).ok());
  FrozenCacheOptions cut = CacheOptions(options, &store);
  int asked = 0;
  cut.interrupted = [&asked] { return ++asked > 3 ? absl::CancelledError("asked to stop") : absl::OkStatus(); };
  CountedData again;
  EXPECT_TRUE(absl::IsCancelled(ObtainFrozenCache(store.get(), &again, cut).status()));
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(again.reads, 0);
}

TEST(FrozenCacheTest, ADamagedFileIsComputedAgain) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  CountedData data;
  ASSERT_TRUE(ObtainFrozenCache(store.get(), &data, CacheOptions(options, &store)).ok());
  const auto files = store.get()->List(store.get()->UriOf("frozen")).value();
  const std::string path = store.get()->LocalPath(files[3].uri).value();
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(2000).put('!');
  CountedData again;
  const auto kept = ObtainFrozenCache(store.get(), &again, CacheOptions(options, &store));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(again.reads, 48);
  // The same bits, and so the same name.
  const auto mended = store.get()->List(store.get()->UriOf("frozen")).value();
  ASSERT_EQ(mended.size(), files.size());
  EXPECT_EQ(mended[3].uri, files[3].uri);

  // The same for a file of other rows that has the hash of its name.
  const std::string name = mended[3].uri.substr(0, mended[3].uri.rfind('-') + 1);
  ASSERT_TRUE(store.get()->Delete(mended[3].uri).ok());
  const std::string label = store.get()->Read(mended[8].uri).value();
  ASSERT_TRUE(store.get()->Write(name + storage::Sha256(label) + ".safetensors", label).ok());
  CountedData once_more;
  ASSERT_TRUE(ObtainFrozenCache(store.get(), &once_more, CacheOptions(options, &store)).ok());
  EXPECT_EQ(once_more.reads, 48);
  EXPECT_EQ(store.get()->List(store.get()->UriOf("frozen")).value()[3].uri, files[3].uri);
  EXPECT_EQ(FileCount(&store), files.size());
}

TEST(FrozenCacheTest, FilesThatChangeWhileTheyAreReadGiveTheTaskBack) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  CountedData data;
  const auto kept = ObtainFrozenCache(store.get(), &data, CacheOptions(options, &store));
  ASSERT_TRUE(kept.ok()) << kept.status();
  const auto files = store.get()->List(store.get()->UriOf("frozen")).value();
  const SampleSource source(options, &data);
  const Samples samples = source.Read(0, 160).value();
  const auto latents = (*kept)->Latents(0, samples);
  ASSERT_TRUE(latents.ok()) << latents.status();
  // Another file of the same bytes, as where a copy was removed and fetched again.
  const std::string path = store.get()->LocalPath(files[3].uri).value();
  const auto age = [&path](int hours) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  age(1);
  const auto again = (*kept)->Latents(0, samples);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(at::equal(*again, *latents));
  // The same size, and rows that nobody could tell from others.
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(2000).put('!');
  age(2);
  absl::Status status = (*kept)->Latents(0, samples).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "FROZEN_CACHE_DAMAGED");
  EXPECT_THAT(std::string(status.message()), HasSubstr(files[3].uri));
  // Gone.
  ASSERT_TRUE(store.get()->Delete(files[3].uri).ok());
  status = (*kept)->Latents(0, samples).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "FROZEN_CACHE_DAMAGED");
  EXPECT_THAT(std::string(status.message()), HasSubstr(files[3].uri));
}

TEST(FrozenCacheTest, APlanThatReadsKeptOutputsNeedsThem) {
  StrokeData data(160, 8, 5);
  const TrainerOptions options = LatentOptions();
  const absl::Status status =
      Trainer::Create(options, ReadingPlan(options, 1), 0, &data, nullptr, Clock::Real()).status();
  EXPECT_EQ(ErrorReason(status), "PLAN_INVALID");
}

}  // namespace
}  // namespace atl::trainer
