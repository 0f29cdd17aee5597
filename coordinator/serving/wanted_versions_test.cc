#include "coordinator/serving/wanted_versions.h"

#include "gtest/gtest.h"

namespace atl::serving {
namespace {

const VersionName kV1{"m", "v1"};
const VersionName kV2{"m", "v2"};

using Roles = std::map<std::string, VersionRole>;

TEST(WantedVersions, Table) {
  constexpr VersionRole kStays = VersionRole::kStays;
  constexpr VersionRole kComes = VersionRole::kComes;
  constexpr VersionRole kLeaves = VersionRole::kLeaves;
  const PublishedModel model{
      .name = "m",
      .serving = "v2",
      .versions = {
          {.version = "v3", .digest = "d3"}, {.version = "v2", .digest = "d2"}, {.version = "v1", .digest = "d1"}}};
  struct Case {
    std::string name;
    VersionFacts facts;
    Roles roles;
  };
  const std::vector<Case> cases = {
      {.name = "the serving version is wanted before any router is there", .roles = {{"v2", kStays}}},
      {.name = "published and not served is not wanted", .facts = {.hosted = {"d2"}}, .roles = {{"v2", kStays}}},
      {.name = "routers serve it", .facts = {.in_use = {kV2}, .hosted = {"d2"}}, .roles = {{"v2", kStays}}},
      {.name = "routers still serve the one before",
       .facts = {.in_use = {kV1}, .hosted = {"d1"}},
       .roles = {{"v2", kComes}, {"v1", kLeaves}}},
      {.name = "some routers have switched",
       .facts = {.in_use = {kV1, kV2}, .hosted = {"d1", "d2"}},
       .roles = {{"v2", kStays}, {"v1", kLeaves}}},
      {.name = "used, though its servers are gone",
       .facts = {.in_use = {kV1}, .hosted = {"d2"}, .rolled = {"m"}},
       .roles = {{"v2", kComes}, {"v1", kLeaves}}},
      {.name = "no router reports: the old one stays until the new one is ready",
       .facts = {.hosted = {"d1", "d2"}},
       .roles = {{"v2", kComes}, {"v1", kLeaves}}},
      {.name = "no router reports: then it goes",
       .facts = {.hosted = {"d1", "d2"}, .rolled = {"m"}},
       .roles = {{"v2", kStays}}},
      {.name = "routers use the new one alone: the old one goes, though a part of the new one was lost",
       .facts = {.in_use = {kV2}, .hosted = {"d1", "d2"}},
       .roles = {{"v2", kStays}}},
      {.name = "pinned beside it",
       .facts = {.in_use = {kV2}, .pinned = {kV1}},
       .roles = {{"v2", kStays}, {"v1", kStays}}},
      {.name = "pinned, and still used by others while the new one comes",
       .facts = {.in_use = {kV1, {"m", "v3"}}, .pinned = {kV1}},
       .roles = {{"v3", kLeaves}, {"v2", kComes}, {"v1", kStays}}},
      {.name = "what routers say of unknown versions and models changes nothing",
       .facts = {.in_use = {{"m", "v9"}, {"other", "v1"}}, .hosted = {"d9"}},
       .roles = {{"v2", kStays}}},
  };
  for (const Case& c : cases) {
    Roles roles;
    for (const WantedVersion& wanted : DecideWanted({{model}}, c.facts)) {
      EXPECT_EQ(wanted.model, "m");
      roles[wanted.version.version] = wanted.role;
    }
    EXPECT_EQ(roles, c.roles) << c.name;
  }
}

TEST(WantedVersions, ModelsRollForThemselves) {
  const std::vector<PublishedModel> models = {
      {.name = "a", .serving = "v1", .versions = {{.version = "v1", .digest = "a1"}}},
      {.name = "b",
       .serving = "v2",
       .versions = {{.version = "v2", .digest = "b2"}, {.version = "v1", .digest = "b1"}}},
      {.name = "c", .serving = "", .versions = {{.version = "v1", .digest = "c1"}}},
  };
  const std::vector<WantedVersion> wanted = DecideWanted(models, {.in_use = {{"b", "v1"}}});
  ASSERT_EQ(wanted.size(), 3u);
  EXPECT_EQ(wanted[0].role, VersionRole::kStays) << "a: nothing of it leaves";
  EXPECT_EQ(wanted[1].role, VersionRole::kComes);
  EXPECT_EQ(wanted[2].role, VersionRole::kLeaves);
}

}  // namespace
}  // namespace atl::serving
