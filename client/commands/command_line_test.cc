// The command line as a whole, in process, against services of the test.
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "client/cluster/cluster_file.h"
#include "client/commands/app.h"
#include "client/commands/command_line_testing.h"
#include "common/base/files.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/image_codec.h"
#include "common/formats/profile_file.h"
#include "common/planner/profile.h"
#include "common/schedule/generators.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CommandLineTest, WrongCommandLinesExitWithTwoAndOneLineOfReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "A subcommand is required"},
      {{"jobz"}, "unexpected argument 'jobz'; did you mean 'jobs'?"},
      {{"jobs", "wach", "j1"}, "did you mean 'watch'?"},
      {{"jobs", "list", "--ouput", "json"}, "did you mean '--output'?"},
      {{"jobs", "get"}, "JOB is required"},
      {{"jobs", "list", "--output", "xml"}, "xml not in {table,json}"},
      {{"jobs", "list", "--limit", "0"}, "--limit"},
      {{"submit"}, "FILE is required"},
      {{"sample", "--out", "x.png", "--solver", "rk4"}, "rk4 not in {euler,heun,multistep}"},
      {{"plan", "x"}, "--ranks is required"},
      {{"submit", SpecPath(), "--set", "training.steps"}, "expected FIELD=VALUE, found 'training.steps'"},
      {{"completion", "tcsh"}, "tcsh not in {bash,zsh}"},
      {{"datasets", "import", "--help"}, "unexpected argument 'datasets'; did you mean 'dataset'?"},
      {{"jobs", "wach", "--help"}, "did you mean 'watch'?"},
      {{"jobs", "list", "--timeout", "nan"}, "--timeout: expected a number from 0.1 to 86400, found nan"},
      {{"sample", "--out", "x.png", "--wait", "nan"}, "--wait: expected a number of at least 0, found nan"},
      {{"plan", "x", "--ranks", "2", "--device-memory", "nan"},
       "--device-memory: expected a number of at least 0, found nan"},
      {{"plan", "x", "--ranks", "2", "--transfer", "nan"}, "--transfer: expected a number of at least 0, found nan"},
      {{"plan", "x", "--ranks", "2", "--transfer", "-1"}, "--transfer: expected a number of at least 0, found -1\n"},
      {{"plan", SpecPath(), "--ranks", "2", "--image", "1x100000x100000"},
       "at most 65536 channels and 67108864 pixels"},
      {{"plan", SpecPath(), "--ranks", "2", "--format", "svg", "--output", "json"},
       "beside --output json, found 'svg'"},
      {{"profile", "x", "--micro-batch-sizes", "2,0"}, "expected a whole number from 1 to 1048576, found 0"},
      {{"profile", "x", "--micro-batch-sizes", "2,x"}, "expected a whole number from 1 to 1048576, found x"},
      {{"jobs", "trace", "j1", "--step", "abc"},
       "--step: expected a whole number from 1 to 9223372036854775807, found abc\n"},
      {{"jobs", "trace", "j1", "--step", "99999999999999999999"},
       "expected a whole number from 1 to 9223372036854775807"},
      {{"jobs", "trace", "j1", "--format", "svg", "--output", "json"}, "beside --output json, found 'svg'"},
      {{"sample", "--out", "x.png", "--threshold", "NaN"},
       "--threshold: expected a number above 0 and at most 1, found NaN"},
      {{"sample", "--out", "x.png", "--seed", "-1"}, "--seed"},
      {{"sample", "--out", "x.png", "--times", "1,nan,0"}, "expected a number from 0 to 1, found nan"},
      {{"sample", "--out", "x.png", "--times", "1,half"}, "--times"},
      {{"sample", "--out", "x.png", "--guidance-to", "2"}, "--guidance-to"},
      {{"sample", "--out", "x.png", "--strength", "nan"},
       "--strength: expected a number above 0 and at most 1, found nan"},
      {{"sample", "--out", "x.png", "--priority", "10"}, "--priority"},
      {{"sample", "--out", "x.png", "--temperature", "0"}, "--temperature"},
      {{"sample", "--out", "x.png", "--preview", "x.jpg"}, "--preview: expected FILE.png, and no --raw beside it"},
      {{"sample", "--out", "x", "--raw", "--preview", "x.png"}, "--preview: expected FILE.png, and no --raw beside it"},
      {{"jobs", "cancel", "x\xff"}, "expected arguments in UTF-8, found 'x\\xff'\n"},
      {{"jobs", "list", "--output", "j\xc3\x28"}, "expected arguments in UTF-8"},
      {{"sample", "--out", "x.jpg"}, "--out: expected FILE.png or a folder, found 'x.jpg'"},
      {{"sample", "--out", "x.png", "--raw"}, "--raw: expected a folder for --out, found 'x.png'"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.err, HasSubstr("atoll: error: "));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(CommandLineTest, HelpTeachesWithExamplesAndExitCodes) {
  const Outcome outcome = Run({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("atoll submit job.yaml --wait"));
  EXPECT_THAT(outcome.out, HasSubstr("Exit codes:"));
  for (const char* command : {"up", "down", "dataset", "submit", "jobs", "models", "sample", "plan", "report"}) {
    const Outcome help = Run({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: atoll")) << command;
  }
  EXPECT_EQ(Run({"--version"}).code, 0);
  const std::string profile = Run({"profile", "--help"}).out;
  for (const char* default_value : {"=1 ", "=10\n", "=expert\n", "=cpu ", "=text "}) {
    EXPECT_THAT(profile, HasSubstr(default_value));
  }
}

TEST_F(CommandLineTest, SubmitSendsEveryFieldAndPrintsTheId) {
  const Outcome outcome = Run({"submit", SpecPath(), "--set", "training.batch_size=32", "--set", "experts=3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "j1\n");
  absl::MutexLock lock(&jobs_.mutex_);
  ASSERT_EQ(jobs_.submitted_.size(), 1u);
  const auto& request = jobs_.submitted_[0];
  EXPECT_EQ(request.spec().experts(), 3);
  EXPECT_EQ(request.spec().training().batch_size(), 32);
  EXPECT_EQ(request.spec().router_training().steps(), 40);
  EXPECT_EQ(request.request_id().size(), 36u);
  EXPECT_FALSE(request.validate_only());
}

TEST_F(CommandLineTest, SubmitRetriesWithTheSameRequestIdWhileNobodyAnswers) {
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.refusals_ = 1;
  }
  const Outcome outcome = Run({"submit", SpecPath(), "--request-id", "abc"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  absl::MutexLock lock(&jobs_.mutex_);
  ASSERT_EQ(jobs_.submitted_.size(), 1u);
  EXPECT_EQ(jobs_.submitted_[0].request_id(), "abc");
}

TEST_F(CommandLineTest, DryRunStoresNothingAndShowsTheWholeSpec) {
  const Outcome outcome = Run({"submit", SpecPath(), "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("learning_rate: 0.001"));
  EXPECT_THAT(outcome.out, HasSubstr("nothing was stored"));
  absl::MutexLock lock(&jobs_.mutex_);
  EXPECT_TRUE(jobs_.submitted_.at(0).validate_only());
}

TEST_F(CommandLineTest, BadSpecsNameFileFieldAndLine) {
  ASSERT_TRUE(WriteFile(SpecPath(), std::string(kSpec) + "modle: {}\n").ok());
  Outcome outcome = Run({"submit", SpecPath()});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err,
            "atoll: error: modle: unknown field; did you mean 'model'? (" + SpecPath() + ", line 5) [UNKNOWN_FIELD]\n");
  ASSERT_TRUE(WriteFile(SpecPath(), std::string(kSpec) + "pipeline: {micro_batches: 7}\n").ok());
  outcome = Run({"submit", SpecPath()});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err,
              HasSubstr("training.batch_size: expected a multiple of pipeline.micro_batches (7), found 64"));
  EXPECT_EQ(Run({"submit", folder_ + "/none.yaml"}).code, 4);
}

TEST_F(CommandLineTest, WatchGoesOnAfterTheCoordinatorWasAway) {
  const Outcome outcome = Run({"jobs", "watch", "j1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("is away; waiting for it"));
  EXPECT_THAT(outcome.out, HasSubstr("job j1 succeeded"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST_F(CommandLineTest, AJobThatFailedGivesItsOwnExitCode) {
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.outcome_ = Job::STATE_FAILED;
  }
  const Outcome watched = Run({"jobs", "watch", "j1"});
  EXPECT_EQ(watched.code, 10);
  EXPECT_THAT(watched.out, HasSubstr("job j1 failed: no such labels"));
  EXPECT_EQ(watched.err, "atoll: error: job j1 failed\n") << "its message is told once";
  EXPECT_NO_THROW(nlohmann::json::parse(Run({"jobs", "watch", "j1", "--output", "json"}).out));
  EXPECT_EQ(Run({"submit", SpecPath(), "--wait"}).code, 10);
}

TEST_F(CommandLineTest, ListFollowsPagesAndJsonIsJson) {
  EXPECT_THAT(Run({"jobs", "list"}).out, HasSubstr("JOB  STATE    MODEL"));
  const auto json = nlohmann::json::parse(Run({"jobs", "list", "--output", "json"}).out);
  EXPECT_EQ(json.at("jobs").size(), 2u);
  EXPECT_EQ(json.at("jobs")[0].at("job_id"), "j1");
  EXPECT_EQ(nlohmann::json::parse(Run({"jobs", "get", "j1", "--output", "json"}).out).at("state"), "STATE_RUNNING");
  EXPECT_EQ(nlohmann::json::parse(Run({"models", "list", "--output", "json"}).out).at("models").size(), 1u);
}

TEST_F(CommandLineTest, ErrorsOfTheServiceKeepReasonAndClass) {
  Outcome outcome = Run({"jobs", "get", "x"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.err, "atoll: error: there is no job 'x' [JOB_UNKNOWN]\n");
  outcome = Run({"jobs", "cancel", "j1"});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, HasSubstr("[JOB_ENDED]"));
  EXPECT_EQ(Run({"jobs", "delete", "j1"}).out, "deleted j1\n");
}

TEST_F(CommandLineTest, AVersionIsChosenToBeServed) {
  EXPECT_THAT(Run({"models", "get", "digits"}).out, HasSubstr("v2 *"));
  EXPECT_THAT(Run({"models", "serve", "digits", "v1"}).out, HasSubstr("serving  v1"));
}

TEST_F(CommandLineTest, SampleWaitsSplitsAndWritesPictureAndFolder) {
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.not_yet_ = 2;
  }
  const Outcome outcome = Run({"sample", "--class", "all", "--count", "2", "--seed", "5", "--wait", "30", "--out",
                               folder_ + "/grid.png", "--out", folder_ + "/set", "--report"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("8 images of digits version v2"));
  EXPECT_THAT(outcome.out, HasSubstr("over 8 image-steps"));
  const auto png = ReadFile(folder_ + "/grid.png");
  ASSERT_TRUE(png.ok());
  std::vector<dataset::SheetRow> rows;
  for (const uint8_t label : {0, 1, 2, 3}) {
    const dataset::Image image{.channels = 1, .height = 2, .width = 2, .pixels = {label, 0, 0, 0}};
    rows.push_back({.label = std::vector{"cat", "dog", "frog", "newt"}[label], .images = {image, image}});
  }
  EXPECT_EQ(dataset::DecodeImage(*png, "grid.png")->pixels, dataset::DrawContactSheet(rows, {.columns = 20})->pixels)
      << "a row per class, by its name";
  const auto index = nlohmann::json::parse(*ReadFile(folder_ + "/set/samples.json"));
  ASSERT_EQ(index.at("images").size(), 8u);
  EXPECT_EQ(index.at("images")[7].at("class"), 3);
  EXPECT_EQ(index.at("images")[7].at("seed"), 12);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/set/00007-class3.png"));
}

TEST_F(CommandLineTest, SampleSendsWhatWasAskedFor) {
  const auto ask = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"sample", "--class", "1", "--out", folder_ + "/set"});
    const Outcome outcome = Run(flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    absl::MutexLock lock(&sampler_.mutex_);
    return sampler_.requests_.back();
  };
  const auto settings = [&] { return nlohmann::json::parse(*ReadFile(folder_ + "/set/samples.json")).at("settings"); };
  const auto mode = [&] { return nlohmann::json::parse(*ReadFile(folder_ + "/set/samples.json")).at("mode"); };
  EXPECT_EQ(ask({}).mode(), atlpb::sample::v1::SampleRequest::MODE_UNSPECIFIED);
  EXPECT_EQ(mode(), "MODE_NUCLEUS") << "the router's default";
  EXPECT_EQ(settings().at("steps"), 30);
  EXPECT_EQ(ask({"--mode", "top1"}).mode(), atlpb::sample::v1::SampleRequest::MODE_TOP_1);
  EXPECT_EQ(mode(), "MODE_TOP_1");
  const auto request = ask({"--times", "1,0.5,0", "--guidance-from", "0.1", "--guidance-to", "0.9", "--negative-class",
                            "frog", "--solver", "multistep", "--reproducible", "--priority", "9"});
  EXPECT_THAT(request.times(), ::testing::ElementsAre(1, 0.5, 0));
  EXPECT_EQ(request.guidance_from(), 0.1);
  EXPECT_EQ(request.guidance_to(), 0.9);
  EXPECT_EQ(request.negative_class(), 2);
  EXPECT_EQ(request.solver(), atlpb::sample::v1::SampleRequest::SOLVER_MULTISTEP);
  EXPECT_TRUE(request.reproducible());
  EXPECT_EQ(request.priority(), 9);

  const dataset::Image start{.channels = 1, .height = 4, .width = 4, .pixels = std::vector<uint8_t>(16, 9)};
  ASSERT_TRUE(WriteFile(folder_ + "/start.png", *dataset::EncodePng(start)).ok());
  const auto from_image = ask({"--init", folder_ + "/start.png", "--strength", "0.25"});
  ASSERT_EQ(from_image.init_images_size(), 1);
  EXPECT_EQ(dataset::DecodeImage(from_image.init_images(0), "x")->width, 2) << "scaled to the model's size";
  EXPECT_EQ(from_image.strength(), 0.25);
  EXPECT_EQ(Run({"sample", "--class", "1", "--out", folder_ + "/x", "--init", folder_ + "/none.png"}).code, 4);
}

TEST_F(CommandLineTest, SampleRefusesAFolderOfOtherFilesBeforeItDraws) {
  ASSERT_TRUE(WriteFile(folder_ + "/mine/notes.txt", "x").ok());
  const Outcome outcome = Run({"sample", "--class", "1", "--out", folder_ + "/x.png", "--out", folder_ + "/mine"});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, HasSubstr("[FOLDER_NOT_EMPTY]"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x.png"));
  absl::MutexLock lock(&sampler_.mutex_);
  EXPECT_TRUE(sampler_.requests_.empty());
}

TEST_F(CommandLineTest, SampleShowsItsProgressAndPreviews) {
  const std::string preview = folder_ + "/now.png";
  const Outcome outcome = Run({"sample", "--class", "0-1", "--out", folder_ + "/set", "--report", "--preview", preview},
                              /*terminal=*/true);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("0/2 images  step 1/2"));
  EXPECT_THAT(outcome.err, HasSubstr("2/2 images  step 1/2"));
  EXPECT_THAT(outcome.out, HasSubstr("1 image-steps had other experts than the step before"));
  const auto png = ReadFile(preview);
  ASSERT_TRUE(png.ok()) << png.status();
  EXPECT_TRUE(dataset::DecodeImage(*png, "now.png").ok());
  EXPECT_THAT(Run({"sample", "--class", "0-1", "--out", folder_ + "/set"}).err, Not(HasSubstr("step 1/2")));
}

TEST_F(CommandLineTest, ADrawThatHasBroughtImagesWaitsForRoom) {
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.taken_first_ = 1;
    sampler_.refusals_ = 1;
  }
  const Outcome outcome = Run({"sample", "--class", "all", "--out", folder_ + "/set"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the queue is full"));
  EXPECT_THAT(outcome.err, HasSubstr("asking again"));
  EXPECT_THAT(outcome.out, HasSubstr("4 images of digits"));
  {
    absl::MutexLock lock(&sampler_.mutex_);
    ASSERT_EQ(sampler_.requests_.size(), 3U);
    EXPECT_EQ(sampler_.requests_[1].SerializeAsString(), sampler_.requests_[2].SerializeAsString());
    sampler_.refusals_ = 1;
  }
  // Before the first sampled image the error is reported at once.
  EXPECT_EQ(Run({"sample", "--class", "all", "--out", folder_ + "/other"}).code, 7);
}

TEST_F(CommandLineTest, WrongValuesOfFlagsAreToldInTheirOwnWords) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--steps", "0"}, "--steps: expected a whole number from 1 to 2147483647, found 0"},
      {{"--steps", "010"}, "--steps: expected a whole number from 1 to 2147483647, found 010"},
      {{"--guidance=-1"}, "--guidance: expected a number of at least 0, found -1"},
      {{"--guidance", "inf"}, "--guidance: expected a number of at least 0, found inf"},
      {{"--threshold", "0"}, "--threshold: expected a number above 0 and at most 1, found 0"},
      {{"--strength", "0"}, "--strength: expected a number above 0 and at most 1, found 0"},
      {{"--seed=-1"}, "--seed: expected a whole number from 0 to 18446744073709551615, found -1"},
      {{"--seed", "18446744073709551616"}, "from 0 to 18446744073709551615, found 18446744073709551616"},
      {{"--priority", "10"}, "--priority: expected a whole number from 0 to 9, found 10"},
      {{"--class", "none", "--class", "3"}, "--class: expected once, found 2 times"},
      {{"--timeout", "nan"}, "--timeout: expected a number from 0.1 to 86400, found nan"},
  };
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> arguments = {"sample", "--out", folder_ + "/x"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(CommandLineTest, AServerOfAnotherKindIsNamed) {
  const auto other = rpc::Server::Start({.services = {{"jobs", &jobs_}}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(Run({"sample", "--router", (*other)->address(), "--out", folder_ + "/x"}).err,
              HasSubstr("expected the router at " + (*other)->address() + ", found a server of another kind"));
  EXPECT_THAT(Run({"models", "list", "--coordinator", (*other)->address()}).err, HasSubstr("expected the coordinator"));
}

TEST_F(CommandLineTest, SampleErrorsAreClear) {
  EXPECT_EQ(Run({"sample", "--class", "9", "--out", folder_ + "/x"}).code, 3);
  EXPECT_EQ(Run({"sample", "--raw", "--class", "1", "--out", folder_ + "/x.png"}).code, 2);
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.incomplete_ = true;
  }
  const Outcome outcome = Run({"sample", "--class", "1", "--out", folder_ + "/x"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x")) << "nothing half written";
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.latent_ = true;
  }
  EXPECT_THAT(Run({"sample", "--class", "1", "--out", folder_ + "/x"}).err,
              HasSubstr("--raw: expected raw, found PNG [LATENT_MODEL]"));
}

TEST_F(CommandLineTest, AddressesComeFromFlagsThenClusterThenEnvironment) {
  const std::string nobody = "127.0.0.1:1";
  ASSERT_TRUE(WriteClusterFile(folder_ + "/c", {.coordinator = server_->address()}).ok());
  const std::map<std::string, std::string> bad = {{"HOME", folder_}, {"ATOLL_COORDINATOR", nobody}};
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--cluster", folder_ + "/c"}, bad).code, 0);
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--coordinator", server_->address()}, bad).code, 0);
  EXPECT_EQ(RunWith({"jobs", "get", "j1"}, {{"HOME", folder_}, {"ATOLL_CLUSTER", folder_ + "/c"}}).code, 0);
  const Outcome unreachable = RunWith({"jobs", "get", "j1"}, bad);
  EXPECT_EQ(unreachable.code, 6);
  EXPECT_THAT(unreachable.err, HasSubstr("cannot reach the coordinator at 127.0.0.1:1; is it running?"));
  const Outcome nowhere = RunWith({"jobs", "get", "j1"}, {{"HOME", folder_}});
  EXPECT_EQ(nowhere.code, 5);
  EXPECT_THAT(nowhere.err, HasSubstr("[NO_ADDRESS]"));
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--cluster", folder_ + "/none"}, bad).code, 4);
}

TEST_F(CommandLineTest, WhatIsNoAddressIsRefusedHere) {
  for (const char* address :
       {"localhost:99999", "localhost:0", "localhost", ":4000", "host:40x", "a:b:4000", "host:", "[:4000", "[]:4000"}) {
    const Outcome outcome = Run({"jobs", "list", "--coordinator", address});
    EXPECT_EQ(outcome.code, 3) << address;
    EXPECT_THAT(outcome.err,
                HasSubstr(std::string("expected HOST:PORT with a port from 1 to 65535, found '") + address));
    EXPECT_EQ(Run({"sample", "--out", folder_ + "/x", "--router", address}).code, 3) << address;
  }
  EXPECT_EQ(Run({"jobs", "list", "--coordinator", "[::1]:1"}).code, 6) << "an address, where nobody answers";
}

TEST_F(CommandLineTest, AReaderThatHasGoneIsNoErrorAndAFullDiskIsOne) {
  std::ostream broken(nullptr);
  std::ostringstream err;
  Session session{.out = &broken, .err = &err, .env = [](const std::string&) { return std::string(); }};
  EXPECT_EQ(RunAtoll({"completion", "bash"}, session), 1);
  EXPECT_THAT(err.str(), HasSubstr("cannot write the output"));
  session.reader_gone = [] { return true; };
  EXPECT_EQ(RunAtoll({"completion", "bash"}, session), 0);
}

TEST_F(CommandLineTest, PlanComparesEverySchedule) {
  const Outcome text = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("1f1b *"));
  EXPECT_THAT(text.out, HasSubstr("gpipe"));
  EXPECT_THAT(text.out, HasSubstr("rank 1: 1F0,1B0"));
  const auto json =
      nlohmann::json::parse(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--output", "json"}).out);
  EXPECT_GE(json.at("schedules").size(), schedule::Generators().size());
  EXPECT_EQ(json.at("plan").at("schedule"), "1f1b");
  // The V schedules on as many ranks as the job's two stages have.
  const auto wide = nlohmann::json::parse(
      Run({"plan", SpecPath(), "--ranks", "4", "--image", "1x8x8", "--set", "pipeline.stages=2", "--format", "json"})
          .out);
  const auto has = [&](const nlohmann::json& expected) {
    return std::any_of(wide.at("schedules").begin(), wide.at("schedules").end(), [&](nlohmann::json candidate) {
      const nlohmann::json before = candidate;
      candidate.update(expected);
      return candidate == before;
    });
  };
  EXPECT_TRUE(has({{"schedule", "1f1b"}, {"chosen", true}, {"ranks", 2}, {"stages", 2}}));
  EXPECT_TRUE(has({{"schedule", "v-half"}, {"chosen", false}, {"ranks", 2}, {"stages", 4}}));
  const Outcome picture = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--format", "svg"});
  EXPECT_EQ(picture.code, 0) << picture.err;
  EXPECT_THAT(picture.out, HasSubstr("1f1b over 2 ranks"));
  EXPECT_THAT(picture.out, HasSubstr("Memory, each rank up to"));
  const std::string profile = folder_ + "/profile.json";
  std::ofstream(profile) << storage::ToJson(planner::CountedProfile(spec::ModelSpec{}, 16, 1));
  const Outcome measured = Run({"plan", SpecPath(), "--ranks", "2", "--profile", profile});
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, Not(HasSubstr("counted")));
  const Outcome other = Run({"plan", SpecPath(), "--ranks", "2", "--profile", profile, "--set", "model.depth=3"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("expected a profile of 5 layers"));
  EXPECT_THAT(other.err, HasSubstr("[PROFILE_MISMATCH]"));
  for (const char* change : {"model.width=128", "model.width=92", "model.mlp_ratio=3"}) {
    const Outcome of_another = Run({"plan", SpecPath(), "--ranks", "2", "--profile", profile, "--set", change});
    EXPECT_EQ(of_another.code, 3) << change;
    EXPECT_THAT(of_another.err, HasSubstr("expected a profile of blocks of ")) << change;
  }
  const Outcome filled =
      Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--set", "model.width=384", "--set",
           "frozen=[{name: e, output: latent, layers: [{kind: convolution, width: 2, stride: 2}, {kind: block}]}]"});
  EXPECT_EQ(filled.code, 0) << filled.err;
  EXPECT_THAT(filled.out, HasSubstr("of it in bubbles; frozen outputs are computed in every iteration"));
  EXPECT_THAT(filled.out, HasSubstr("E0"));
  const Outcome unknown = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--set",
                               "frozen=[{name: e, output: latent, torchscript: ['file:///e.pt'], shape: [2, 4, 4]}]"});
  EXPECT_EQ(unknown.code, 0) << unknown.err;
  EXPECT_THAT(unknown.out, HasSubstr("Frozen work is left out"));
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2", "--image", "8x8"}).code, 2);
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x7x7"}).code, 3);
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2"}).code, 4) << "the dataset is not there";
}

TEST_F(CommandLineTest, PlanSaysWhetherFrozenOutputsAreKept) {
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--set",
                               "frozen=[{name: e, output: latent, layers: [{kind: convolution, width: 64}, "
                               "{kind: convolution, width: 4, stride: 2}]}]"});
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(plan({}), HasSubstr("computed in every iteration: how many inputs there are is not known"));
  EXPECT_THAT(plan({"--samples", "10", "--set", "pipeline.fill=never"}), HasSubstr("computed once and kept: a pass"));
  EXPECT_THAT(plan({"--samples", "1000000000"}), HasSubstr("computed in every iteration: a pass over all inputs"));
  EXPECT_THAT(plan({"--set", "pipeline.frozen_cache=always"}), HasSubstr("computed once and kept, as asked for"));
}

TEST_F(CommandLineTest, PlanOfASelfConditionedModelShowsBothSteps) {
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"plan",    SpecPath(),
                                          "--ranks", "2",
                                          "--image", "1x8x8",
                                          "--set",   "model.self_conditioning=true",
                                          "--set",   "training.self_conditioning_rate=0.25"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  };
  const Outcome text = plan({});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("SELF-CONDITIONED"));
  EXPECT_THAT(text.out, HasSubstr("EXPECTED"));
  EXPECT_THAT(text.out, HasSubstr("In 25 % of steps, those whose model sees its own estimate:\n  rank 0: 0C0,0C1"));
  EXPECT_THAT(text.out, HasSubstr("where the model sees its own estimate (25 % of steps)"));
  const auto json = nlohmann::json::parse(plan({"--format", "json"}).out);
  const auto& chosen = json.at("plan");
  const double iteration = chosen.at("iteration_seconds");
  const double self_conditioned = chosen.at("self_conditioned_seconds");
  EXPECT_GT(self_conditioned, iteration);
  EXPECT_NEAR(chosen.at("expected_seconds"), 0.75 * iteration + 0.25 * self_conditioned, 1e-12);
  EXPECT_EQ(chosen.at("self_conditioning_rate"), 0.25);
  EXPECT_THAT(chosen.at("self_conditioned_actions").get<std::string>(), HasSubstr("1C0"));
  EXPECT_THAT(chosen.at("actions").get<std::string>(), Not(HasSubstr("C")));
  EXPECT_TRUE(json.at("schedules")[0].contains("self_conditioned_seconds"));
  const Outcome picture = plan({"--format", "svg", "--self-conditioned"});
  EXPECT_EQ(picture.code, 0) << picture.err;
  EXPECT_THAT(picture.out, HasSubstr("C self-conditioning"));
  EXPECT_THAT(picture.out, HasSubstr("Predicted where the model sees its own estimate: "));
  EXPECT_THAT(plan({"--format", "svg"}).out, Not(HasSubstr("C self-conditioning")));
  // Not of a router's network, and not of another model.
  EXPECT_THAT(plan({"--network", "router"}).out, Not(HasSubstr("SELF-CONDITIONED")));
  const Outcome other = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--self-conditioned"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("[NOT_SELF_CONDITIONED]"));
}

TEST_F(CommandLineTest, PlanAndProfileRefuseWhatASubmitRefuses) {
  const std::string frozen =
      "frozen=[{name: e, output: latent, shape: [4, 5, 5], layers: [{kind: convolution, width: 4, stride: 2}]}]";
  for (const char* command : {"plan", "profile"}) {
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {command, SpecPath(), "--ranks", "2", "--image"});
      return Run(more);
    };
    Outcome outcome = with({"1x8x8", "--set", frozen});
    EXPECT_EQ(outcome.code, 3) << command;
    EXPECT_THAT(outcome.err, HasSubstr("[4, 4, 4], which the layers make, found [4, 5, 5]")) << command;
    outcome =
        with({"1x8x8", "--set", "frozen=[{name: c, input: label, output: condition, torchscript: [a], shape: [47]}]"});
    EXPECT_EQ(outcome.code, 3) << command;
    EXPECT_THAT(outcome.err, HasSubstr("a condition as wide as the model, [96], found [47]")) << command;
    outcome = with({"1x7x7"});
    EXPECT_EQ(outcome.code, 3) << command;
    EXPECT_THAT(outcome.err, HasSubstr("[NOT_DIVISIBLE]")) << command;
  }
}

TEST_F(CommandLineTest, PlanHasAsManyStagesAsAJobWouldHave) {
  const Outcome outcome = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--format", "json", "--set",
                               "pipeline.stages=3", "--set", "pipeline.schedule=auto"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("pipeline.stages: 3 are too many for 2 ranks; planned with 2"));
  const auto plan = nlohmann::json::parse(outcome.out).at("plan");
  EXPECT_EQ(plan.at("stages").size(), 2u);
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--set", "pipeline.stages=2"}).err, "");
}

TEST_F(CommandLineTest, DatasetsAreImportedListedAndInspected) {
  const std::string source = folder_ + "/digits";
  for (uint8_t row = 0; row < 40; ++row) {
    const dataset::Image image{.channels = 1, .height = 8, .width = 8, .pixels = std::vector<uint8_t>(64, row)};
    ASSERT_TRUE(WriteFile(fmt::format("{}/{}/{}.png", source, row % 10, row), *dataset::EncodePng(image)).ok());
  }
  const Outcome imported = Run({"dataset", "import", source, "--name", "digits"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("images    1 x 8 x 8"));
  EXPECT_EQ(Run({"dataset", "import", source, "--name", "digits"}).code, 5);
  EXPECT_EQ(Run({"dataset", "import", folder_ + "/none", "--name", "other", "--format", "idx"}).code, 3);
  EXPECT_EQ(Run({"dataset", "import", folder_ + "/none", "--name", "other", "--format", "parquet"}).code, 4);
  EXPECT_EQ(Run({"dataset", "import", source, "--name", "../x"}).code, 3);
  EXPECT_EQ(Run({"dataset", "inspect", "digits", "--sheet", folder_ + "/sheet.png"}).code, 0);
  EXPECT_TRUE(dataset::DecodeImage(*ReadFile(folder_ + "/sheet.png"), "sheet.png").ok());
  const Outcome missing = Run({"dataset", "inspect", "nope"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("found digits"));
  EXPECT_EQ(nlohmann::json::parse(Run({"dataset", "list", "--output", "json"}).out).size(), 1u);
}

TEST_F(CommandLineTest, WhatOnlyReadsABlobStoreDoesNotMakeIt) {
  const std::vector<std::vector<std::string>> commands = {
      {"dataset", "list"},
      {"dataset", "inspect", "digits"},
      {"jobs", "trace", "j1"},
      {"report", "--job", "j1", "--out", folder_ + "/report"},
  };
  for (std::vector<std::string> arguments : commands) {
    arguments.insert(arguments.end(), {"--blob-store", "file://" + folder_ + "/typo"});
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 4) << arguments[1];
    EXPECT_THAT(outcome.err, HasSubstr("/typo [BLOB_STORE_NOT_FOUND]")) << arguments[1];
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/typo"));
}

TEST_F(CommandLineTest, ClassesOfADatasetMoveNoCursor) {
  int shade = 0;
  for (const char* name : {"cats", "dogs\x1b[2J"}) {
    for (int i = 0; i < 4; ++i) {
      const dataset::Image image{
          .channels = 1, .height = 4, .width = 4, .pixels = std::vector<uint8_t>(16, static_cast<uint8_t>(++shade))};
      const std::string path = folder_ + "/pets/" + name + "/" + std::to_string(i) + ".png";
      ASSERT_TRUE(WriteFile(path, *dataset::EncodePng(image)).ok());
    }
  }
  const Outcome imported =
      Run({"dataset", "import", folder_ + "/pets", "--name", "pets", "--format", "imagefolder", "--held-out", "0"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("classes   2: cats, dogs\\x1b[2J\n"));
}

TEST_F(CommandLineTest, CompletionKnowsEveryCommandAndFlag) {
  for (const char* shell : {"bash", "zsh"}) {
    const Outcome outcome = Run({"completion", shell});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("watch")) << shell;
    EXPECT_THAT(outcome.out, HasSubstr("limit-bad")) << shell;
  }
}

TEST_F(CommandLineTest, UpRefusesAFolderThatItsFileCannotName) {
  const Outcome outcome = RunWith({"up"}, {{"ATOLL_CLUSTER", folder_ + "/\xff"}});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--dir: expected a path in UTF-8, found '"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/\xff"));
}

TEST_F(CommandLineTest, DownWithoutAClusterSaysSo) {
  const Outcome outcome = Run({"down", "--dir", folder_ + "/c"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("[CLUSTER_NOT_FOUND]"));
}

}  // namespace
}  // namespace atl::client
