#include "worker/trainer/frozen_cache.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/flow_matching.h"
#include "common/model/frozen.h"
#include "common/model/weights.h"
#include "common/spec/frozen.h"
#include "common/storage/safetensors.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"
#include "worker/engine/activity.h"
#include "worker/trainer/frozen_outputs.h"
#include "worker/trainer/tensor_errors.h"
#include "worker/trainer/trainer_setup.h"

namespace atl::trainer {
namespace {

// Most inputs that are computed at once.
constexpr int64_t kLargestBatch = 64;
// Files that a table is cut into at least, where that leaves them a batch: ranks share them, and a pass that is cut off
// keeps those that are done.
constexpr int64_t kFiles = 64;
constexpr absl::Duration kProgressInterval = absl::Seconds(10);

// All that components with one kind of input ("image" or "label") make of it: row i of each table is of input i.
struct Table {
  std::string input;
  std::vector<int32_t> components;  // that stages read
  std::vector<int32_t> chain;       // those, and what they need, in order
  int64_t rows = 0;
  int64_t file_rows = 0;

  int64_t files() const { return (rows + file_rows - 1) / file_rows; }
  int64_t end(int64_t file) const { return std::min(rows, (file + 1) * file_rows); }
};

absl::Status Damaged(const std::string& uri, const std::string& why) {
  return MakeError(absl::StatusCode::kUnavailable, "FROZEN_CACHE_DAMAGED",
                   fmt::format("{}: {}; the next attempt computes it again", uri, why));
}

std::string NameOf(const Table& table, int64_t file, std::string_view sha256) {
  return fmt::format("{}-{:010}-{:010}-{}.safetensors", table.input, file * table.file_rows, table.end(file), sha256);
}

// The files of a table that are there: by number, URI and hash. Of several for the same rows, the first by name.
struct KeptFile {
  std::string uri;
  std::string sha256;
};

absl::StatusOr<std::map<int64_t, KeptFile>> ListFiles(storage::BlobStore* store, const std::string& folder,
                                                      const Table& table) {
  constexpr size_t kHash = 64;
  const std::string_view end = ".safetensors";
  std::map<std::string, int64_t, std::less<>> numbers;  // by what comes before the hash
  for (int64_t file = 0; file < table.files(); ++file) {
    const std::string name = NameOf(table, file, "");
    numbers[fmt::format("{}/{}", folder, name.substr(0, name.size() - end.size()))] = file;
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> found, store->List(folder));
  std::map<int64_t, KeptFile> files;
  for (const storage::FileInfo& info : found) {
    const std::string_view uri = info.uri;
    if (!uri.ends_with(end) || uri.size() < kHash + end.size()) continue;
    const size_t hash_at = uri.size() - end.size() - kHash;
    const auto number = numbers.find(uri.substr(0, hash_at));
    if (number == numbers.end()) continue;
    files.try_emplace(number->second, KeptFile{info.uri, std::string(uri.substr(hash_at, kHash))});
  }
  return files;
}

int64_t RowBytes(const model::FrozenComponent& component) {
  return component.OutputOf(component.layer_count() - 1).bytes;
}

// Where a component's rows begin in the bytes of file `file` of the table. DATA_LOSS for a file of other rows.
absl::StatusOr<int64_t> FindRows(const std::string& bytes, const std::string& uri, const std::string& component,
                                 int64_t rows, int64_t row_bytes) {
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors parsed, storage::ParseSafetensors(bytes, uri));
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView view, parsed.Find(component));
  if (static_cast<int64_t>(view.bytes.size()) != rows * row_bytes) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: expected {} bytes of {} ({} rows of {}), found {}", uri, rows * row_bytes,
                                 component, rows, row_bytes, view.bytes.size()));
  }
  return view.bytes.data() - bytes.data();
}

std::vector<Table> TablesOf(const TrainerOptions& options, const std::vector<model::FrozenComponent>& components,
                            int64_t samples, int64_t file_bytes) {
  std::vector<Table> tables;
  for (const char* input : {"image", "label"}) {
    Table table{.input = input};
    const bool images = table.input == "image";
    table.rows = images ? samples * (options.training.flip ? 2 : 1) : options.classes + 1;
    int64_t row_bytes = 0;
    for (const char* output : {"latent", "condition"}) {
      const std::optional<int32_t> component = spec::FrozenWithOutput(options.frozen, output);
      if (!component.has_value()) continue;
      const std::vector<int32_t> chain = spec::FrozenChain(options.frozen, *component);
      if (options.frozen[static_cast<size_t>(chain.front())].input != input) continue;
      table.components.push_back(*component);
      row_bytes += RowBytes(components[static_cast<size_t>(*component)]);
      table.chain.insert(table.chain.end(), chain.begin(), chain.end());
    }
    if (table.components.empty()) continue;
    std::sort(table.chain.begin(), table.chain.end());
    table.chain.erase(std::unique(table.chain.begin(), table.chain.end()), table.chain.end());
    // Independent of the number of ranks, so that another number finds the same files.
    const int64_t batches = (table.rows + kFiles * kLargestBatch - 1) / (kFiles * kLargestBatch);
    table.file_rows = std::max<int64_t>(1, std::min((file_bytes + row_bytes - 1) / row_bytes, batches * kLargestBatch));
    tables.push_back(std::move(table));
  }
  return tables;
}

// One rank's part of a pass.
class Pass {
 public:
  Pass(storage::BlobStore* store, TrainingData* data, const FrozenCacheOptions& options,
       const std::vector<model::FrozenComponent>& components)
      : store_(store), data_(data), options_(options), components_(components), source_(options_.trainer, data) {}

  absl::Status Run(const std::vector<Table>& tables) {
    int64_t number = 0;
    for (const Table& table : tables) {
      ATOLL_ASSIGN_OR_RETURN(const auto there, ListFiles(store_, options_.folder, table));
      for (int64_t file = 0; file < table.files(); ++file) {
        if (number++ % options_.ranks != options_.rank) continue;
        ATOLL_RETURN_IF_ERROR(options_.interrupted());
        const auto kept = there.find(file);
        if (kept != there.end() && IsWhole(table, file, kept->second)) continue;
        ATOLL_RETURN_IF_ERROR(Write(table, file));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Returns whether the file is usable. Deletes a file that is damaged or does not match its name. If the store only
  // fails to return a file now, the file may be whole, and others may be reading it.
  bool IsWhole(const Table& table, int64_t number, const KeptFile& file) {
    const absl::Status whole = Check(table, number, file);
    if (whole.ok()) return true;
    spdlog::warn("computed again: {}", whole.ToString());
    if (!absl::IsDataLoss(whole) && !absl::IsNotFound(whole)) return false;
    if (const absl::Status gone = store_->Delete(file.uri); !gone.ok()) spdlog::warn("{}", gone.ToString());
    return false;
  }

  absl::Status Check(const Table& table, int64_t number, const KeptFile& file) {
    ATOLL_ASSIGN_OR_RETURN(const std::string bytes, store_->ReadVerified(file.uri, file.sha256));
    for (const int32_t c : table.components) {
      const std::string& name = options_.trainer.frozen[static_cast<size_t>(c)].name;
      ATOLL_RETURN_IF_ERROR(FindRows(bytes, file.uri, name, table.end(number) - number * table.file_rows,
                                     RowBytes(components_[static_cast<size_t>(c)]))
                                .status());
    }
    return absl::OkStatus();
  }

  absl::Status Write(const Table& table, int64_t file) {
    std::map<int32_t, std::vector<at::Tensor>> parts;
    for (int64_t first = file * table.file_rows; first < table.end(file); first += BatchRows()) {
      ATOLL_RETURN_IF_ERROR(options_.interrupted());
      Tell(table, first);
      ATOLL_RETURN_IF_ERROR(Compute(table, first, std::min(BatchRows(), table.end(file) - first), &parts));
    }
    std::vector<at::Tensor> whole;  // outlives its views
    std::vector<storage::TensorView> views;
    for (const int32_t c : table.components) {
      whole.push_back(at::cat(parts[c]));
      views.push_back(model::ToView(options_.trainer.frozen[static_cast<size_t>(c)].name, whole.back()));
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string bytes, storage::SerializeSafetensors(std::move(views), {}));
    const std::string uri = fmt::format("{}/{}", options_.folder, NameOf(table, file, storage::Sha256(bytes)));
    return store_->Write(uri, bytes).status();
  }

  // Where a pass of some length is.
  void Tell(const Table& table, int64_t row) {
    const absl::Duration now = Clock::Real()->Monotonic();
    if (now < next_word_) return;
    next_word_ = now + kProgressInterval;
    spdlog::info("frozen outputs: computing row {} of {} by {}, rank {} of {}", row, table.rows, table.input,
                 options_.rank, options_.ranks);
  }

  int64_t BatchRows() const { return std::min<int64_t>(kLargestBatch, options_.trainer.training.batch_size); }

  absl::Status Compute(const Table& table, int64_t first, int64_t n,
                       std::map<int32_t, std::vector<at::Tensor>>* parts) {
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor input, table.input == "image" ? Images(first) : Labels(first));
    std::map<int32_t, at::Tensor> outputs;
    for (const int32_t c : table.chain) {
      const spec::FrozenSpec& spec = options_.trainer.frozen[static_cast<size_t>(c)];
      const std::optional<int32_t> reads = spec::FindFrozen(options_.trainer.frozen, spec.input);
      const model::FrozenComponent& component = components_[static_cast<size_t>(c)];
      ATOLL_ASSIGN_OR_RETURN(outputs[c],
                             component.Run(reads.has_value() ? outputs[*reads] : input, 0, component.layer_count()));
    }
    for (const int32_t c : table.components) (*parts)[c].push_back(outputs[c].narrow(0, 0, n).cpu().contiguous());
    return absl::OkStatus();
  }

  // Always a whole batch: what is past the end is of no use, but gives the batch its shape.
  absl::StatusOr<at::Tensor> Images(int64_t first) const {
    const TrainerOptions& trainer = options_.trainer;
    at::Tensor images = at::zeros({BatchRows(), trainer.channels, trainer.height, trainer.width}, at::kFloat);
    const auto pixels = static_cast<size_t>(images[0].numel());
    const int64_t variants = trainer.training.flip ? 2 : 1;
    for (int64_t i = 0; i < BatchRows() && (first + i) / variants < data_->size(); ++i) {
      const std::span<float> row(images.mutable_data_ptr<float>() + static_cast<size_t>(i) * pixels, pixels);
      ATOLL_RETURN_IF_ERROR(source_.ReadImage((first + i) / variants, (first + i) % variants == 1, row).status());
    }
    return images.to(at::Device(trainer.device));
  }

  absl::StatusOr<at::Tensor> Labels(int64_t first) const {
    return at::arange(first, first + BatchRows(), at::kLong)
        .clamp_max(options_.trainer.classes)
        .to(at::Device(options_.trainer.device));
  }

  storage::BlobStore* const store_;
  TrainingData* const data_;
  const FrozenCacheOptions& options_;
  const std::vector<model::FrozenComponent>& components_;
  const SampleSource source_;
  absl::Duration next_word_ = -absl::InfiniteDuration();
};

// A file on this machine, open.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // Changes when the file is written to or replaced.
  std::string Version() const {
    struct stat info = {};
    if (fstat(descriptor_, &info) != 0) return "";
    return fmt::format("{} {} {}.{}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }

  bool Read(int64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), offset);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(got));
      offset += got;
    }
    return true;
  }

 private:
  const int descriptor_;
};

// The rows of one component, out of the files of its table. Files are fetched when first asked for.
class Rows {
 public:
  Rows(storage::BlobStore* store, const Table& table, std::map<int64_t, KeptFile> files, std::string component,
       model::FrozenComponent::Output output)
      : store_(store),
        table_(table),
        files_(std::move(files)),
        component_(std::move(component)),
        output_(std::move(output)),
        local_(static_cast<size_t>(table.files())) {}

  const std::string& input() const { return table_.input; }

  absl::StatusOr<at::Tensor> Read(const std::vector<int64_t>& rows, const std::string& device) {
    std::vector<int64_t> shape{static_cast<int64_t>(rows.size())};
    shape.insert(shape.end(), output_.shape.begin(), output_.shape.end());
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(output_.dtype));
    auto* const bytes = static_cast<std::byte*>(tensor.mutable_data_ptr());
    const auto row_bytes = static_cast<size_t>(output_.bytes);
    for (size_t i = 0; i < rows.size(); ++i) {
      ATOLL_RETURN_IF_ERROR(ReadRow(rows[i], {bytes + i * row_bytes, row_bytes}));
    }
    return tensor.to(at::Device(device)).to(at::kFloat);
  }

 private:
  struct LocalFile {
    std::string path;
    std::string version;
    int64_t data = 0;  // where the component's rows begin
  };

  // A copy of a file may go at any time, for the store keeps its copies small: then the file is fetched again.
  absl::Status ReadRow(int64_t row, std::span<std::byte> bytes) {
    const int64_t number = row / table_.file_rows;
    for (const bool again : {false, true}) {
      ATOLL_ASSIGN_OR_RETURN(const LocalFile file, Fetch(number, again));
      const OpenFile open(file.path);
      const int64_t offset = file.data + (row - number * table_.file_rows) * output_.bytes;
      if (open.Read(offset, bytes) && open.Version() == file.version) return absl::OkStatus();
    }
    return Damaged(files_.at(number).uri, fmt::format("row {} has gone or changed since it was checked", row));
  }

  absl::StatusOr<LocalFile> Find(int64_t number, const KeptFile& file) {
    LocalFile local;
    ATOLL_ASSIGN_OR_RETURN(local.path, store_->LocalPath(file.uri, file.sha256));
    local.version = OpenFile(local.path).Version();  // first: what changes while it is checked is noticed
    ATOLL_ASSIGN_OR_RETURN(const std::string bytes, store_->ReadVerified(file.uri, file.sha256));
    ATOLL_ASSIGN_OR_RETURN(local.data, FindRows(bytes, file.uri, component_,
                                                table_.end(number) - number * table_.file_rows, output_.bytes));
    return local;
  }

  // With `again`, also where it is known already.
  absl::StatusOr<LocalFile> Fetch(int64_t number, bool again) {
    absl::MutexLock lock(&mutex_);
    std::optional<LocalFile>& local = local_[static_cast<size_t>(number)];
    if (local.has_value() && !again) return *local;
    const KeptFile& file = files_.at(number);
    absl::StatusOr<LocalFile> found = Find(number, file);
    if (!found.ok()) return Damaged(file.uri, std::string(found.status().message()));
    local = *std::move(found);
    return *local;
  }

  storage::BlobStore* const store_;
  const Table table_;
  const std::map<int64_t, KeptFile> files_;
  const std::string component_;
  const model::FrozenComponent::Output output_;
  absl::Mutex mutex_;
  std::vector<std::optional<LocalFile>> local_ ABSL_GUARDED_BY(mutex_);  // by number
};

class FrozenCache : public FrozenOutputs {
 public:
  FrozenCache(const TrainerOptions& options, std::unique_ptr<Rows> latents, std::unique_ptr<Rows> conditions)
      : device_(options.device),
        activity_(options.activity),
        flip_(options.training.flip),
        seed_(options.seed),
        classes_(options.classes),
        class_dropout_(options.training.class_dropout),
        latents_(std::move(latents)),
        conditions_(std::move(conditions)) {}

  bool has_latents() const override { return latents_ != nullptr; }
  absl::StatusOr<at::Tensor> Latents(int64_t /*first*/, const Samples& samples) const override {
    return Read(latents_.get(), samples);
  }
  absl::StatusOr<at::Tensor> Conditions(int64_t /*first*/, const Samples& samples) const override {
    return Read(conditions_.get(), samples);
  }

 private:
  absl::StatusOr<at::Tensor> Read(Rows* rows, const Samples& samples) const {
    if (rows == nullptr) return at::Tensor();
    return CatchTensorErrors("kept frozen outputs", [&]() -> absl::StatusOr<at::Tensor> {
      std::vector<int64_t> wanted;
      if (rows->input() == "image") {
        for (size_t i = 0; i < samples.positions.size(); ++i) {
          wanted.push_back(flip_ ? samples.positions[i] * 2 + (samples.flipped[i] ? 1 : 0) : samples.positions[i]);
        }
      } else {
        const at::Tensor classes =
            model::DropClasses(samples.classes, samples.sequence, seed_, classes_, class_dropout_);
        wanted.assign(classes.data_ptr<int64_t>(), classes.data_ptr<int64_t>() + classes.numel());
      }
      const engine::ReadingScope reading(activity_);
      return rows->Read(wanted, device_);
    });
  }

  const std::string device_;
  engine::Activity* const activity_;
  const bool flip_;
  const uint64_t seed_;
  const int32_t classes_;
  const double class_dropout_;
  const std::unique_ptr<Rows> latents_;  // null where the job has none
  const std::unique_ptr<Rows> conditions_;
};

// Every file of each table, after the pass.
absl::StatusOr<std::shared_ptr<const FrozenOutputs>> Open(storage::BlobStore* store, const FrozenCacheOptions& options,
                                                          const std::vector<model::FrozenComponent>& components,
                                                          const std::vector<Table>& tables) {
  std::map<std::string, std::unique_ptr<Rows>> by_output;
  for (const Table& table : tables) {
    ATOLL_ASSIGN_OR_RETURN(const auto files, ListFiles(store, options.folder, table));
    if (static_cast<int64_t>(files.size()) != table.files()) {
      return Damaged(options.folder, fmt::format("expected {} files of outputs by {} after the pass, found {}",
                                                 table.files(), table.input, files.size()));
    }
    for (const int32_t c : table.components) {
      const model::FrozenComponent& component = components[static_cast<size_t>(c)];
      by_output[component.spec().output] = std::make_unique<Rows>(store, table, files, component.spec().name,
                                                                  component.OutputOf(component.layer_count() - 1));
    }
  }
  return std::make_shared<const FrozenCache>(options.trainer, std::move(by_output["latent"]),
                                             std::move(by_output["condition"]));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const FrozenOutputs>> ObtainFrozenCache(storage::BlobStore* store, TrainingData* data,
                                                                       const FrozenCacheOptions& options) {
  return CatchTensorErrors("frozen pass", [&]() -> absl::StatusOr<std::shared_ptr<const FrozenOutputs>> {
    const TrainerOptions& trainer = options.trainer;
    ATOLL_RETURN_IF_ERROR(ValidateOptions(trainer, *data));
    TuneProcess(trainer.threads, trainer.device);
    ATOLL_ASSIGN_OR_RETURN(const std::vector<model::FrozenComponent> components,
                           model::LoadFrozen({.components = trainer.frozen,
                                              .image = {trainer.channels, trainer.height, trainer.width},
                                              .classes = trainer.classes,
                                              .seed = trainer.frozen_seed,
                                              .files = trainer.frozen_files,
                                              .device = trainer.device}));
    const std::vector<Table> tables = TablesOf(trainer, components, data->size(), options.file_bytes);
    ATOLL_RETURN_IF_ERROR(Pass(store, data, options, components).Run(tables));
    ATOLL_RETURN_IF_ERROR(options.meet());
    return Open(store, options, components, tables);
  });
}

}  // namespace atl::trainer
