#include "common/auth/roles.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::rpc {
namespace {

// "/package.Service/Method" of every RPC in proto/.
std::set<std::string> MethodsOfProtos() {
  std::set<std::string> methods;
  const char* const root = std::getenv("ATOLL_SOURCE_DIR");
  if (root == nullptr) return methods;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::string(root) + "/proto")) {
    if (entry.path().extension() != ".proto") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    static const std::regex kWords(R"((?:^|\n)\s*(package|service|rpc)\s+([\w.]+))");
    std::string package;
    std::string service;
    for (std::sregex_iterator word(text.begin(), text.end(), kWords), end; word != end; ++word) {
      const std::string kind = (*word)[1];
      if (kind == "package") package = (*word)[2];
      if (kind == "service") service = (*word)[2];
      if (kind == "rpc") methods.insert("/" + package + "." + service + "/" + (*word)[2].str());
    }
  }
  return methods;
}

TEST(RolesTest, EveryRpcHasARowAndEveryRowAnRpc) {
  const std::set<std::string> methods = MethodsOfProtos();
  ASSERT_GT(methods.size(), 20u) << "ATOLL_SOURCE_DIR is not set";
  for (const std::string& method : methods) {
    EXPECT_NE(FindAccess(method), nullptr) << method << " has no row in common/auth/roles.cc: nobody may call it";
  }
  for (const Access& row : AccessTable()) {
    if (row.method.rfind("/atoll.", 0) != 0) continue;
    EXPECT_TRUE(methods.count(std::string(row.method)) == 1) << row.method << " is no RPC";
  }
}

TEST(RolesTest, OnlyProbesAreOpenAndTheyChangeNothing) {
  std::set<std::string> open;
  for (const Access& row : AccessTable()) {
    if (row.open) open.insert(std::string(row.method));
    EXPECT_FALSE(row.open && row.mutating) << row.method;
  }
  EXPECT_THAT(open, ::testing::ElementsAre("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/healthz"));
}

TEST(RolesTest, OnlyAnAdminMovesTasksAndDrainsIslands) {
  std::set<std::string> admins_alone;
  for (const Access& row : AccessTable()) {
    if (!row.open && row.roles.empty()) admins_alone.insert(std::string(row.method));
  }
  EXPECT_THAT(admins_alone, ::testing::ElementsAre("/atoll.admin.v1.AdminService/DrainIsland",
                                                   "/atoll.admin.v1.AdminService/MoveTask",
                                                   "/atoll.admin.v1.AdminService/UndrainIsland"));
}

TEST(RolesTest, AReaderChangesNothing) {
  for (const Access& row : AccessTable()) EXPECT_FALSE(row.mutating && row.roles.Has(Role::kReader)) << row.method;
}

TEST(RolesTest, RolesAreChecked) {
  struct Case {
    std::string_view method;
    RoleSet roles;
    std::string_view reason;  // "": may call
  };
  const Case cases[] = {
      {"/atoll.job.v1.JobService/SubmitJob", {Role::kSubmitter}, ""},
      {"/atoll.job.v1.JobService/SubmitJob", {Role::kAdmin}, ""},
      {"/atoll.job.v1.JobService/SubmitJob", {Role::kReader, Role::kSampler}, "ROLE_REQUIRED"},
      {"/atoll.job.v1.JobService/SubmitJob", {}, "ROLE_REQUIRED"},
      {"/atoll.job.v1.JobService/GetJob", {Role::kReader}, ""},
      {"/atoll.island.v1.IslandService/CommitCheckpoint", {Role::kIsland}, ""},
      {"/atoll.island.v1.IslandService/CommitCheckpoint", {Role::kSubmitter}, "ROLE_REQUIRED"},
      {"/atoll.sample.v1.SampleService/Sample", {Role::kRouter}, "ROLE_REQUIRED"},
      {"/grpc.health.v1.Health/Check", {}, ""},
      {"/atoll.job.v1.JobService/Nothing", RoleSet::All(), "METHOD_UNKNOWN"},
      {"/atoll.job.v1.JobService/", RoleSet::All(), "METHOD_UNKNOWN"},
      {"", RoleSet::All(), "METHOD_UNKNOWN"},
      {"/metrics", {Role::kReader}, ""},
      {"/metrics", {Role::kSampler}, "ROLE_REQUIRED"},
      {"/metricsx", RoleSet::All(), "METHOD_UNKNOWN"},
      {"/v1/images/generations", {Role::kSampler}, ""},
      {"/v1/images/generations", {Role::kReader}, "ROLE_REQUIRED"},
      {"/v1", RoleSet::All(), "METHOD_UNKNOWN"},
  };
  for (const Case& one : cases) {
    const absl::Status status = CheckAccess(one.method, "ann", one.roles);
    EXPECT_EQ(ErrorReason(status), one.reason) << one.method << ": " << status;
    EXPECT_EQ(status.code(), one.reason.empty()              ? absl::StatusCode::kOk
                             : one.reason == "ROLE_REQUIRED" ? absl::StatusCode::kPermissionDenied
                                                             : absl::StatusCode::kUnimplemented)
        << status;
  }
}

TEST(RolesTest, TheMessageNamesWhatWasExpectedAndFound) {
  EXPECT_EQ(CheckAccess("/atoll.job.v1.JobService/GetJob", "ann", {Role::kIsland}).message(),
            "/atoll.job.v1.JobService/GetJob: expected a caller with one of the roles admin, submitter, reader, found "
            "ann with island");
}

TEST(RolesTest, NamesAreReadBack) {
  for (const Role role :
       {Role::kAdmin, Role::kSubmitter, Role::kSampler, Role::kIsland, Role::kExpert, Role::kRouter, Role::kReader}) {
    EXPECT_EQ(ParseRole(RoleNames({role})), role);
  }
  EXPECT_EQ(ParseRole("root"), std::nullopt);
  EXPECT_EQ(RoleNames({Role::kReader, Role::kIsland}), "island, reader");
  EXPECT_EQ(RoleNames({}), "no role");
}

}  // namespace
}  // namespace atl::rpc
