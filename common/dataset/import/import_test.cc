#include "common/dataset/import/import.h"

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arrow/array/builder_binary.h"
#include "arrow/array/builder_nested.h"
#include "arrow/array/builder_primitive.h"
#include "arrow/io/file.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "arrow/util/key_value_metadata.h"
#include "common/base/errors.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import_source.h"
#include "common/dataset/testing.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parquet/arrow/writer.h"

namespace atl::dataset {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void WriteFile(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string Gzip(const std::string& bytes, const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return path;
}

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

std::string Png(uint32_t seed, int32_t channels = 1, int32_t side = 8) {
  return EncodePng(PatternImage(channels, side, side, seed)).value();
}

std::string Tar(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string bytes(size_t{1} << 20, '\0');
  size_t used = 0;
  archive* writer = archive_write_new();
  archive_write_set_format_ustar(writer);
  archive_write_open_memory(writer, bytes.data(), bytes.size(), &used);
  for (const auto& [name, content] : members) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(writer, entry);
    archive_write_data(writer, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(writer);
  archive_write_free(writer);
  bytes.resize(used);
  return bytes;
}

class ImportTest : public ::testing::Test {
 protected:
  ImportOptions Options(SourceFormat format, std::vector<std::string> paths) const {
    return {.name = "set", .format = format, .paths = std::move(paths)};
  }

  absl::StatusOr<DatasetManifest> Import(const ImportOptions& options) { return ImportDataset(store_.get(), options); }

  // The import fails with this reason and these words, and leaves no file.
  void ExpectFailure(const ImportOptions& options, const std::string& reason, const std::vector<std::string>& words) {
    const auto manifest = Import(options);
    ASSERT_FALSE(manifest.ok());
    EXPECT_EQ(ErrorReason(manifest.status()), reason) << manifest.status();
    for (const std::string& word : words) EXPECT_THAT(std::string(manifest.status().message()), HasSubstr(word));
    EXPECT_TRUE(store_->List(store_->root()).value().empty());
  }

  std::map<std::string, Sample> SamplesOf(const DatasetManifest& manifest) {
    std::map<std::string, Sample> samples;
    const auto reader = SampleReader::Open(store_.get(), manifest.shards).value();
    for (int64_t i = 0; i < reader->size(); ++i) {
      Sample sample = reader->Read(i).value();
      const std::string path = sample.path;
      samples.emplace(path, std::move(sample));
    }
    return samples;
  }

  std::string File(const std::string& name) const { return folder_.File(name); }

  // Pattern images of seeds 0 to `count` - 1 in folders of ten classes: "7/17.png".
  std::string WriteImages(const std::string& folder, uint32_t count) const {
    for (uint32_t i = 0; i < count; ++i) WriteFile(File(fmt::format("{}/{}/{}.png", folder, i % 10, i)), Png(i));
    return File(folder);
  }

  storage::TemporaryFolder folder_;
  storage::TemporaryStore store_;
};

TEST_F(ImportTest, AFolderBecomesShardsAndAManifest) {
  ImportOptions options = Options(SourceFormat::kImageFolder, {WriteImages("d", 200)});
  options.shard_rows = 50;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->rows("train") + manifest->rows("held_out"), 200);
  EXPECT_EQ(manifest->channels, 1);
  EXPECT_EQ(manifest->height, 8);
  EXPECT_EQ(manifest->width, 8);
  EXPECT_EQ(manifest->classes.size(), 10U);
  EXPECT_EQ(manifest->shards.front().rows, 50);
  EXPECT_GE(ShardsOf(*manifest, "train").size(), 3U);
  EXPECT_EQ(ReadDatasetManifest(store_.get(), DatasetManifestUri(*store_.get(), "set")).value(), *manifest);
  const std::map<std::string, Sample> samples = SamplesOf(*manifest);
  EXPECT_EQ(samples.at("7/17.png").image.pixels, PatternImage(1, 8, 8, 17).pixels);
  EXPECT_EQ(samples.at("7/17.png").label, 7);
  for (const Shard& shard : manifest->shards) {
    const auto reader = SampleReader::Open(store_.get(), {shard}).value();
    for (int64_t i = 0; i < reader->size(); ++i) {
      EXPECT_EQ(IsHeldOut(reader->Read(i)->id, 0.1), shard.split == "held_out");
    }
  }
}

TEST_F(ImportTest, SameSourceGivesTheSameShardsUnderAnyName) {
  ImportOptions options = Options(SourceFormat::kImageFolder, {WriteImages("d", 60)});
  const auto first = Import(options);
  options.name = "other";
  const auto second = Import(options);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(first->shards.size(), second->shards.size());
  for (size_t i = 0; i < first->shards.size(); ++i) EXPECT_EQ(first->shards[i].sha256, second->shards[i].sha256);
}

TEST_F(ImportTest, BrokenRowsAreCountedNamedAndSkippedUpToTheLimit) {
  ImportOptions options = Options(SourceFormat::kImageFolder, {WriteImages("d", 40)});
  for (int i = 0; i < 5; ++i) WriteFile(File(fmt::format("d/9/x{}.png", i)), "hello");
  options.bad_row_limit = 4;
  ExpectFailure(options, "TOO_MANY_BAD_ROWS", {"/d: expected at most 4 bad rows, found 5", "9/x0.png", "expected"});
  options.bad_row_limit = 5;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->skipped_count, 5);
  ASSERT_EQ(manifest->skipped.size(), 5U);
  EXPECT_THAT(manifest->skipped[4].where, HasSubstr("9/x4.png"));
  EXPECT_EQ(manifest->rows("train") + manifest->rows("held_out"), 40);
}

TEST_F(ImportTest, DefaultLimitIsTenBadRows) {
  ImportOptions options = Options(SourceFormat::kImageFolder, {WriteImages("d", 3)});
  for (int i = 0; i < 11; ++i) WriteFile(File(fmt::format("d/2/x{}.png", i)), "x");
  options.held_out_fraction = 0;
  ExpectFailure(options, "TOO_MANY_BAD_ROWS", {"found 11 beside 3"});
  std::filesystem::remove(File("d/2/x0.png"));
  EXPECT_TRUE(Import(options).ok());
}

TEST_F(ImportTest, ExistingNameIsRefused) {
  ImportOptions options = Options(SourceFormat::kImageFolder, {WriteImages("d", 3)});
  options.held_out_fraction = 0;
  ASSERT_TRUE(Import(options).ok());
  const size_t files = store_->List(store_->root())->size();
  const auto again = Import(options);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrorReason(again.status()), "DATASET_EXISTS");
  EXPECT_EQ(store_->List(store_->root())->size(), files);
}

TEST_F(ImportTest, OptionsThatCanNeverWorkAreRefused) {
  const ImportOptions good = Options(SourceFormat::kImageFolder, {File("nowhere")});
  const auto expect = [&](auto spoil, const std::string& reason, const std::string& word) {
    ImportOptions options = good;
    spoil(options);
    ExpectFailure(options, reason, {word});
  };
  expect([](ImportOptions& o) { o.name = "../x"; }, "INVALID_NAME", "../x");
  expect([](ImportOptions& o) { o.size = -1; }, "IMPORT_OPTIONS", "size");
  expect([](ImportOptions& o) { o.size = 5000; }, "IMPORT_OPTIONS", "5000");
  expect([](ImportOptions& o) { o.held_out_fraction = 1; }, "IMPORT_OPTIONS", "held-out");
  expect([](ImportOptions& o) { o.shard_rows = 0; }, "IMPORT_OPTIONS", "shard rows");
  expect([](ImportOptions& o) { o.paths.clear(); }, "IMPORT_OPTIONS", "paths");
  expect([](ImportOptions& o) { o.columns = {"label"}; }, "IMPORT_OPTIONS", "label");
  expect([](ImportOptions& o) { o.columns = {"x"}; }, "IMPORT_OPTIONS", "columns");
  expect([](ImportOptions&) {}, "SOURCE_NOT_FOUND", "nowhere");
  for (const SourceFormat format :
       {SourceFormat::kIdx, SourceFormat::kImageFolder, SourceFormat::kWebDataset, SourceFormat::kParquet}) {
    ImportOptions options = Options(format, {File("images-idx3-nothing")});
    const auto manifest = Import(options);
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kNotFound) << manifest.status();
  }
}

class IdxImportTest : public ImportTest {
 protected:
  // Files of `count` images whose headers claim as many.
  ImportOptions Write(const std::string& images, const std::string& labels) {
    WriteFile(File("t-images-idx3-ubyte"), images);
    WriteFile(File("t-labels-idx1-ubyte"), labels);
    ImportOptions options = Options(SourceFormat::kIdx, {File("t-images-idx3-ubyte")});
    options.held_out_fraction = 0;
    return options;
  }
  static std::string Images(uint32_t claimed, int count, uint32_t side = 3) {
    std::string bytes = BigEndian(0x803) + BigEndian(claimed) + BigEndian(side) + BigEndian(side);
    for (int i = 0; i < count; ++i) bytes += std::string(size_t{side} * side, static_cast<char>(i));
    return bytes;
  }
  static std::string Labels(uint32_t claimed, int count) {
    std::string bytes = BigEndian(0x801) + BigEndian(claimed);
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 3));
    return bytes;
  }
};

TEST_F(IdxImportTest, PlainAndGzipFilesGiveTheirImages) {
  ImportOptions options = Write(Images(5, 5), Labels(5, 5));
  const auto plain = Import(options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::map<std::string, Sample> samples = SamplesOf(*plain);
  EXPECT_EQ(samples.at("image-4").image.pixels, std::vector<uint8_t>(9, 4));
  EXPECT_EQ(samples.at("image-4").label, 1);
  EXPECT_THAT(plain->classes, ElementsAre("0", "1", "2"));
  options.name = "zipped";
  options.paths = {Gzip(Images(5, 5), File("z-images.gz"))};
  options.labels_path = Gzip(Labels(5, 5), File("z-labels.gz"));
  const auto zipped = Import(options);
  ASSERT_TRUE(zipped.ok()) << zipped.status();
  EXPECT_EQ(zipped->shards[0].sha256, plain->shards[0].sha256);
}

TEST_F(IdxImportTest, FilesThatLieAreRefusedWithWhatWasExpectedAndFound) {
  ExpectFailure(Write(Images(5, 4), Labels(5, 5)), "SOURCE_MALFORMED",
                {"images-idx3", "expected 5 images of 9 bytes", "cut short in image 4 after 0"});
  ExpectFailure(Write(Images(5, 5).substr(0, 16 + 9 * 4 + 3), Labels(5, 5)), "SOURCE_MALFORMED",
                {"cut short in image 4 after 3"});
  ExpectFailure(Write(Images(5, 5), Labels(5, 2)), "SOURCE_MALFORMED", {"labels-idx1", "cut short in label 2"});
  ExpectFailure(Write(Images(5, 5), Labels(4, 4)), "SOURCE_MALFORMED", {"expected 5 labels", "found 4"});
  ExpectFailure(Write(Images(5, 6), Labels(5, 5)), "SOURCE_MALFORMED", {"expected the end after 5 rows"});
  ExpectFailure(Write(Labels(5, 5), Labels(5, 5)), "SOURCE_MALFORMED", {"expected 0x00000803", "found 0x00000801"});
  ExpectFailure(Write("\x08", Labels(5, 5)), "SOURCE_MALFORMED", {"magic number: expected 4 bytes, found 1"});
  ExpectFailure(Write("", Labels(5, 5)), "SOURCE_MALFORMED", {"magic number"});
  ExpectFailure(Write(Images(4'000'000'000U, 0, 100'000), Labels(5, 5)), "SOURCE_MALFORMED", {"100000 x 100000"});
  ExpectFailure(Write(Images(5, 5, 0), Labels(5, 5)), "SOURCE_MALFORMED", {"0 x 0"});
  ExpectFailure(Write(Images(0, 0), Labels(0, 0)), "SOURCE_EMPTY", {"expected samples"});

  const std::string zipped = File("cut-images-idx3.gz");
  Gzip(Images(500, 500, 30), zipped);
  std::filesystem::resize_file(zipped, std::filesystem::file_size(zipped) / 2);
  ImportOptions options = Write(Images(1, 1), Labels(500, 500));
  options.labels_path = File("t-labels-idx1-ubyte");
  options.paths = {zipped};
  ExpectFailure(options, "SOURCE_MALFORMED", {"cut-images-idx3.gz", "expected whole gzip data"});
}

TEST_F(ImportTest, ImageFolderNamesClassesByFolderAndSkipsWhatIsNoImage) {
  for (uint32_t i = 0; i < 6; ++i) WriteFile(File("pets/cat/" + std::to_string(i) + ".png"), Png(i, 3));
  for (uint32_t i = 0; i < 4; ++i) WriteFile(File("pets/ant/deep/" + std::to_string(i) + ".PNG"), Png(10 + i, 3));
  WriteFile(File("pets/ant/grey.png"), Png(20, 1));
  WriteFile(File("pets/ant/.DS_Store"), "clutter");
  WriteFile(File("pets/cat/notes.txt"), "not an image");
  WriteFile(File("pets/cat/broken.png"), Png(1).substr(0, 60));
  WriteFile(File("pets/cat/small.png"), Png(1, 3, 5));
  WriteFile(File("pets/stray.png"), Png(2));
  ImportOptions options = Options(SourceFormat::kImageFolder, {File("pets")});
  options.held_out_fraction = 0;
  options.channels = ChannelChoice::kColour;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->classes, ElementsAre("ant", "cat"));
  EXPECT_EQ(manifest->channels, 3);
  EXPECT_EQ(manifest->rows("train"), 11);
  ASSERT_EQ(manifest->skipped_count, 4);
  EXPECT_THAT(manifest->skipped[0].where, HasSubstr("cat/broken.png"));
  EXPECT_THAT(manifest->skipped[1].where, HasSubstr("cat/notes.txt"));
  EXPECT_THAT(manifest->skipped[2].reason, HasSubstr("expected 8 x 8 as the first, found 5 x 5"));
  EXPECT_THAT(manifest->skipped[3].reason, HasSubstr("class folder"));
  const std::map<std::string, Sample> samples = SamplesOf(*manifest);
  EXPECT_EQ(samples.at("cat/3.png").label, 1);
  EXPECT_EQ(samples.at("cat/3.png").image.pixels, PatternImage(3, 8, 8, 3).pixels);
  EXPECT_EQ(samples.at("ant/grey.png").image.channels, 3);
}

TEST_F(ImportTest, SizeCropsAndScalesEveryImage) {
  WriteFile(File("f/a/1.png"), EncodePng(PatternImage(1, 20, 30, 1)).value());
  WriteFile(File("f/a/2.png"), EncodePng(PatternImage(1, 6, 4, 2)).value());
  WriteFile(File("f/b/3.png"), EncodePng(PatternImage(1, 12, 12, 3)).value());
  ImportOptions options = Options(SourceFormat::kImageFolder, {File("f")});
  options.held_out_fraction = 0;
  options.size = 12;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->rows("train"), 3);
  EXPECT_EQ(manifest->height, 12);
  EXPECT_EQ(SamplesOf(*manifest).at("b/3.png").image.pixels, PatternImage(1, 12, 12, 3).pixels);
}

TEST_F(ImportTest, ColourAmongGreyIsABadRowUnlessAChoiceIsMade) {
  WriteFile(File("f/a/1.png"), Png(1, 1));
  WriteFile(File("f/a/2.png"), Png(2, 3));
  ImportOptions options = Options(SourceFormat::kImageFolder, {File("f")});
  options.held_out_fraction = 0;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->skipped_count, 1);
  EXPECT_THAT(manifest->skipped[0].reason, HasSubstr("expected grey as the first, found colour"));
  options.name = "grey";
  options.channels = ChannelChoice::kGrey;
  EXPECT_EQ(Import(options).value().rows("train"), 2);
}

TEST_F(ImportTest, FolderWithoutClassFoldersIsRefused) {
  WriteFile(File("f/1.png"), Png(1));
  ExpectFailure(Options(SourceFormat::kImageFolder, {File("f")}), "SOURCE_EMPTY", {"one for each class"});
  WriteFile(File("g/a/1.txt"), "x");
  ExpectFailure(Options(SourceFormat::kImageFolder, {File("g")}), "NO_GOOD_ROW",
                {"at least one good row, found 1 bad ones", "1.txt"});
}

TEST_F(ImportTest, WebDatasetGroupsMembersUpToTheFirstDot) {
  WriteFile(File("w/s-000000.tar"), Tar({{"a/0001.png", Png(1)},
                                         {"a/0001.cls", "7\n"},
                                         {"a/0002.JPG.png", "ignored"},
                                         {"a/0002.PNG", Png(2)},
                                         {"a/0002.txt", "a caption"},
                                         {"a/0002.json", R"({"label": 3, "width": 8})"},
                                         {"b/0001.png", Png(3)},
                                         {"b/0001.txt", "5"}}));
  WriteFile(File("w/s-000001.tar"), Tar({{"x.png", Png(4)}, {"x.cls", "0"}}));
  ImportOptions options = Options(SourceFormat::kWebDataset, {File("w")});
  options.held_out_fraction = 0;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->classes.size(), 8U);
  const std::map<std::string, Sample> samples = SamplesOf(*manifest);
  ASSERT_EQ(samples.size(), 4U);
  EXPECT_EQ(samples.at("a/0001").label, 7);
  EXPECT_EQ(samples.at("a/0002").label, 3);
  EXPECT_EQ(samples.at("b/0001").label, 5);
  EXPECT_EQ(samples.at("x").image.pixels, PatternImage(1, 8, 8, 4).pixels);
}

TEST_F(ImportTest, WebDatasetNamesThatAreNoNumbersBecomeSortedClasses) {
  WriteFile(File("a.tar"), Tar({{"1.png", Png(1)}, {"1.txt", "dog"}, {"2.png", Png(2)}, {"2.txt", "cat"}}));
  WriteFile(File("b.tar"), Tar({{"3.png", Png(3)}, {"3.txt", "bee\n"}}));
  ImportOptions options = Options(SourceFormat::kWebDataset, {File("a.tar"), File("b.tar")});
  options.held_out_fraction = 0;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->classes, ElementsAre("bee", "cat", "dog"));
  EXPECT_EQ(SamplesOf(*manifest).at("1").label, 2);
}

TEST_F(ImportTest, WebDatasetSamplesThatAreNotWholeAreNamed) {
  WriteFile(File("a.tar"), Tar({{"1.png", Png(1)},
                                {"2.png", Png(2)},
                                {"2.cls", "1"},
                                {"1.cls", "1"},
                                {"3.png", Png(3)},
                                {"3.png", Png(3)},
                                {"4.png", "no image"},
                                {"4.cls", "1"},
                                {"5.png", Png(5)},
                                {"5.cls", "cat"},
                                {"6.png", Png(6)},
                                {"6.jpg", "x"},
                                {"6.cls", "0"}}));
  ImportOptions options = Options(SourceFormat::kWebDataset, {File("a.tar")});
  options.held_out_fraction = 0;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->rows("train"), 1);
  std::vector<std::string> reasons;
  for (const Skipped& row : manifest->skipped)
    reasons.push_back(row.where.substr(row.where.rfind(' ') + 1) + row.reason);
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("1expected a label"), HasSubstr("stand together")),
                                   HasSubstr("1expected a .jpg"), HasSubstr("3expected each member once, found '.png'"),
                                   HasSubstr("4image: expected PNG"), HasSubstr("5label: expected an integer"),
                                   HasSubstr("6expected one image, found a second")));
}

TEST_F(ImportTest, FilesThatAreNoTarAreRefused) {
  WriteFile(File("text.tar"), std::string(5000, 'x'));
  ExpectFailure(Options(SourceFormat::kWebDataset, {File("text.tar")}), "SOURCE_MALFORMED",
                {"text.tar", "expected a whole tar"});
  WriteFile(File("empty.tar"), "");
  const auto empty = Import(Options(SourceFormat::kWebDataset, {File("empty.tar")}));
  EXPECT_EQ(empty.status().code(), absl::StatusCode::kInvalidArgument);
  std::string whole = Tar({{"1.png", Png(1, 3, 64)}, {"1.cls", "1"}, {"2.png", Png(2, 3, 64)}, {"2.cls", "2"}});
  WriteFile(File("cut.tar"), whole.substr(0, 8000));
  ExpectFailure(Options(SourceFormat::kWebDataset, {File("cut.tar")}), "SOURCE_MALFORMED",
                {"cut.tar", "expected a whole tar", "Truncated"});
  ExpectFailure(Options(SourceFormat::kWebDataset, {folder_.path() + "/."}), "SOURCE_MALFORMED", {".tar"});
}

class ParquetImportTest : public ImportTest {
 protected:
  // Hugging Face's layout: image struct {bytes, path}, label, and two more columns.
  std::string Write(const std::string& name, int rows, bool named_labels, const std::string& huggingface = "") {
    auto bytes = std::make_shared<arrow::BinaryBuilder>();
    auto paths = std::make_shared<arrow::StringBuilder>();
    const auto image_type =
        arrow::struct_({arrow::field("bytes", arrow::binary()), arrow::field("path", arrow::utf8())});
    arrow::StructBuilder images(image_type, arrow::default_memory_pool(), {bytes, paths});
    arrow::Int64Builder numbers;
    arrow::StringBuilder names;
    auto values = std::make_shared<arrow::DoubleBuilder>();
    arrow::ListBuilder lists(arrow::default_memory_pool(), values);
    arrow::Status status;
    for (int i = 0; i < rows; ++i) {
      status &= images.Append();
      status &= i == 3 ? bytes->AppendNull() : bytes->Append(Png(static_cast<uint32_t>(i)));
      status &= i == 4 ? paths->AppendNull() : paths->Append("p" + std::to_string(i));
      status &= i == 5 ? numbers.AppendNull() : numbers.Append(i % 3);
      status &= names.Append(i % 2 == 0 ? "zebra" : "ape");
      status &= lists.Append();
      status &= values->AppendValues({0.5 * i, 1.0});
    }
    const std::vector<std::shared_ptr<arrow::Array>> arrays = {
        images.Finish().ValueOrDie(), numbers.Finish().ValueOrDie(), names.Finish().ValueOrDie(),
        lists.Finish().ValueOrDie()};
    auto schema =
        arrow::schema({arrow::field("img", image_type), arrow::field(named_labels ? "number" : "label", arrow::int64()),
                       arrow::field(named_labels ? "label" : "name", arrow::utf8()),
                       arrow::field("clip", arrow::list(arrow::float64()))});
    if (!huggingface.empty()) schema = schema->WithMetadata(arrow::key_value_metadata({{"huggingface", huggingface}}));
    std::filesystem::create_directories(std::filesystem::path(File(name)).parent_path());
    auto sink = arrow::io::FileOutputStream::Open(File(name)).ValueOrDie();
    const auto table = arrow::Table::Make(schema, arrays);
    const auto properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    status &= parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), sink, 7,
                                         parquet::default_writer_properties(), properties);
    EXPECT_TRUE((status & sink->Close()).ok()) << status.ToString();
    return File(name);
  }
};

TEST_F(ParquetImportTest, HuggingFaceLayoutBecomesADatasetWithItsColumns) {
  Write("hf/train-0.parquet", 20, false,
        R"({"info": {"features": {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}}})");
  Write("hf/train-1.parquet", 2, false);
  ImportOptions options = Options(SourceFormat::kParquet, {File("hf")});
  options.held_out_fraction = 0;
  options.columns = {"clip", "label"};
  EXPECT_EQ(ErrorReason(Import(options).status()), "IMPORT_OPTIONS");
  options.columns = {"clip"};
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->classes, ElementsAre("cat", "dog", "owl"));
  EXPECT_THAT(manifest->columns, ElementsAre("clip"));
  EXPECT_EQ(manifest->rows("train"), 20);
  ASSERT_EQ(manifest->skipped_count, 2);
  EXPECT_THAT(manifest->skipped[0].where, HasSubstr("train-0.parquet: row 3"));
  EXPECT_THAT(manifest->skipped[0].reason, HasSubstr("expected an encoded image"));
  EXPECT_THAT(manifest->skipped[1].reason, HasSubstr("column 'label': expected an integer"));
  const auto reader = SampleReader::Open(store_.get(), manifest->shards).value();
  EXPECT_EQ(reader->Read(0)->path, "p0");
  EXPECT_EQ(reader->Read(3)->path, "row-4");
  EXPECT_EQ(reader->Read(7)->label, 0);
  EXPECT_THAT(reader->ReadColumn(7, "clip").value(), ElementsAre(4.5F, 1.0F));
}

TEST_F(ParquetImportTest, StringLabelsBecomeSortedClasses) {
  ImportOptions options = Options(SourceFormat::kParquet, {Write("x.parquet", 6, true)});
  options.held_out_fraction = 0;
  const auto manifest = Import(options);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->classes, ElementsAre("ape", "zebra"));
  EXPECT_EQ(SamplesOf(*manifest).at("p0").label, 1);
}

TEST_F(ParquetImportTest, FilesAndColumnsThatDoNotFitAreRefused) {
  const std::string good = Write("x.parquet", 6, false);
  ImportOptions options = Options(SourceFormat::kParquet, {good});
  options.label_column = "nothing";
  ExpectFailure(options, "SOURCE_MALFORMED", {"x.parquet", "'nothing'", "img, label, name, clip"});
  options.label_column = "clip";
  ExpectFailure(options, "SOURCE_MALFORMED", {"column 'clip': expected labels"});
  options.label_column = "";
  options.image_column = "name";
  ExpectFailure(options, "SOURCE_MALFORMED", {"column 'name': expected encoded images"});
  options.image_column = "";
  options.columns = {"name"};
  ExpectFailure(options, "SOURCE_MALFORMED", {"column 'name': expected numbers"});
  WriteFile(File("text.parquet"), "PAR1 this is not one PAR1");
  ExpectFailure(Options(SourceFormat::kParquet, {File("text.parquet")}), "SOURCE_MALFORMED",
                {"text.parquet", "expected a Parquet file"});
  std::filesystem::resize_file(good, std::filesystem::file_size(good) / 2);
  ExpectFailure(Options(SourceFormat::kParquet, {good}), "SOURCE_MALFORMED", {"x.parquet"});
}

TEST(SourceFormatTest, NamesReadBackAndFilesTellTheirFormat) {
  for (const SourceFormat format :
       {SourceFormat::kIdx, SourceFormat::kImageFolder, SourceFormat::kWebDataset, SourceFormat::kParquet}) {
    EXPECT_EQ(ParseSourceFormat(ToString(format)).value(), format);
  }
  EXPECT_THAT(std::string(ParseSourceFormat("zip").status().message()), HasSubstr("'zip': expected one of idx"));
  storage::TemporaryFolder folder;
  const std::pair<const char*, SourceFormat> cases[] = {{"b/t10k-images-idx3-ubyte.gz", SourceFormat::kIdx},
                                                        {"c/x-0.tar", SourceFormat::kWebDataset},
                                                        {"d/x.parquet", SourceFormat::kParquet}};
  for (const auto& [name, format] : cases) {
    WriteFile(folder.File(name), "");
    EXPECT_EQ(DetectSourceFormat(folder.File(name)).value(), format) << name;
  }
  EXPECT_EQ(DetectSourceFormat(folder.File("c")).value(), SourceFormat::kWebDataset);
  EXPECT_EQ(DetectSourceFormat(folder.File("d")).value(), SourceFormat::kParquet);
  EXPECT_EQ(DetectSourceFormat(folder.path()).value(), SourceFormat::kImageFolder);
  WriteFile(folder.File("what.bin"), "");
  EXPECT_EQ(DetectSourceFormat(folder.File("what.bin")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetectSourceFormat(folder.File("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace atl::dataset
