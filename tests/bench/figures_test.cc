#include "tests/bench/figures.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace atl::bench {
namespace {

struct BenchRun {
  std::vector<std::string> lines;  // of standard output
  int exit_code = -1;
};

// A bench as a process of its own.
BenchRun RunBench(const std::function<int()>& bench) {
  std::array<int, 2> pipe_ends{};
  EXPECT_EQ(pipe(pipe_ends.data()), 0);
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    const int code = bench();
    std::fflush(stdout);
    _exit(code);
  }
  close(pipe_ends[1]);
  std::string bytes;
  std::array<char, 1024> buffer{};
  for (ssize_t n = 0; (n = read(pipe_ends[0], buffer.data(), buffer.size())) > 0;) {
    bytes.append(buffer.data(), static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  BenchRun run;
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  std::istringstream stream(bytes);
  for (std::string line; std::getline(stream, line);) run.lines.push_back(line);
  return run;
}

TEST(Figures, NothingElseReachesStandardOutput) {
  const BenchRun run = RunBench([] {
    KeepStandardOutputForFigures();
    std::printf("a library's log line\n");
    PrintFigure("case", "metric", 1.5, "s");
    if (std::system("echo a line of a program that the bench starts") != 0) return 2;
    const std::string direct = "a write to the descriptor\n";
    if (write(STDOUT_FILENO, direct.data(), direct.size()) < 0) return 2;
    return EndBench("bench", absl::OkStatus());
  });
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.lines, std::vector<std::string>{R"({"case":"case","metric":"metric","value":1.5,"unit":"s"})"});
}

TEST(Figures, AMissedTargetIsMarkedAndFailsTheBench) {
  const auto print = [](double value, Target target) {
    return RunBench([=] {
      KeepStandardOutputForFigures();
      PrintFigure("case", "metric", value, "s", target);
      return EndBench("bench", absl::OkStatus());
    });
  };
  for (const auto& [value, target, met] : {std::tuple(0.97, AtMost(0.98), true), std::tuple(0.99, AtMost(0.98), false),
                                           std::tuple(0.95, AtLeast(0.9), true), std::tuple(0.85, AtLeast(0.9), false),
                                           std::tuple(std::nan(""), AtLeast(0.9), false)}) {
    const BenchRun run = print(value, target);
    EXPECT_EQ(run.exit_code, met ? 0 : 1) << value;
    ASSERT_EQ(run.lines.size(), 1U);
    const auto line = nlohmann::json::parse(run.lines[0]);
    EXPECT_EQ(line.at("target_met"), met) << value;
    EXPECT_EQ(line.at(target.at_least ? "at_least" : "at_most"), target.value);
  }
}

TEST(Figures, AnErrorFailsTheBench) {
  const BenchRun run = RunBench([] {
    KeepStandardOutputForFigures();
    return EndBench("bench", absl::InternalError("broken"));
  });
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(run.lines.empty());
}

}  // namespace
}  // namespace atl::bench
