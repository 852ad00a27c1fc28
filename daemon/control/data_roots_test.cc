#include "daemon/control/data_roots.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DataRootsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = fs::canonical(::testing::TempDir()) / "data_roots";
    fs::remove_all(base_);
    fs::create_directories(base_ / "root/model");
    fs::create_directories(base_ / "rootless");
    std::ofstream(base_ / "root/text.bin") << "x";
    std::ofstream(base_ / "secret") << "x";
    fs::create_symlink(base_ / "secret", base_ / "root/leak");
    fs::create_symlink(base_, base_ / "root/up");
    fs::create_symlink(base_ / "root", base_ / "alias");
    ASSERT_EQ(mkfifo((base_ / "root/pipe").c_str(), 0600), 0);
    absl::StatusOr<DataRoots> roots = DataRoots::Make({(base_ / "alias").string()});
    ASSERT_TRUE(roots.ok()) << roots.status();
    roots_ = *roots;
  }
  void TearDown() override { fs::remove_all(base_); }

  std::string At(const std::string& path) const { return (base_ / path).string(); }

  fs::path base_;
  DataRoots roots_;
};

TEST_F(DataRootsTest, Resolve_UnderTheRoot_IsItsRealPath) {
  EXPECT_EQ(*roots_.ResolveFile("--data", At("root/text.bin")), At("root/text.bin"));
  EXPECT_EQ(*roots_.ResolveFile("--data", At("alias/text.bin")), At("root/text.bin"));
  EXPECT_EQ(*roots_.ResolveFile("--data", At("root/model/../text.bin")), At("root/text.bin"));
  EXPECT_EQ(*roots_.ResolveFolder("--model", At("root/model/")), At("root/model"));
}

TEST_F(DataRootsTest, Resolve_Escapes_AreRefusedNamingTheRoot) {
  for (const char* path : {"secret", "root/leak", "root/../secret", "root/up/secret", "rootless",
                           "root/../nosuch", "rootless/nosuch"}) {
    const absl::Status status = roots_.ResolveFile("--data", At(path)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(status.message(), HasSubstr("--data=" + At(path)));
    EXPECT_THAT(status.message(), HasSubstr("a path under " + At("root")));
  }
}

TEST_F(DataRootsTest, Resolve_WrongForms_AreRefused) {
  for (const std::string& path : {std::string(), std::string("text.bin"), std::string("../x"),
                                  std::string("/\0x", 3), std::string(5000, '/')}) {
    EXPECT_EQ(roots_.ResolveFile("--data", path).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(roots_.ResolveFile("--data", At("root/nosuch")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(roots_.ResolveFile("--data", At("alias/nosuch")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(roots_.ResolveFile("--data", At("root/model")).status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(roots_.ResolveFile("--data", At("root/pipe")).status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(roots_.ResolveFolder("--model", At("root/text.bin")).status().message(),
              HasSubstr("not a folder"));
}

TEST_F(DataRootsTest, ResolveNewFolder_ChecksTheParentAndWhatExists) {
  EXPECT_EQ(*roots_.ResolveNewFolder("DIR", At("alias/new")), At("root/new"));
  EXPECT_EQ(*roots_.ResolveNewFolder("DIR", At("root/new/")), At("root/new"));
  EXPECT_EQ(*roots_.ResolveNewFolder("DIR", At("root/model")), At("root/model"));
  for (const char* path :
       {"new", "root/../new", "root/up/new", "root/up", "root/..", "root", "alias", "root/."}) {
    EXPECT_EQ(roots_.ResolveNewFolder("DIR", At(path)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << path;
  }
  EXPECT_EQ(roots_.ResolveNewFolder("DIR", At("root/no/new")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DataRootsTest, ResolveModel_FilesLeadOut_IsRefused) {
  EXPECT_EQ(*roots_.ResolveModel("--model", At("alias/model")), At("root/model"));
  std::ofstream(base_ / "root/blob") << "x";
  fs::create_symlink("../blob", base_ / "root/model/model.safetensors");  // as caches do
  fs::create_symlink(base_ / "secret", base_ / "root/model/notes.txt");   // nobody reads it
  EXPECT_TRUE(roots_.ResolveModel("--model", At("root/model")).ok());
  fs::create_symlink(base_ / "secret", base_ / "root/model/config.json");
  const absl::Status status = roots_.ResolveModel("--model", At("root/model")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("--model=" + At("root/model/config.json")));
}

TEST_F(DataRootsTest, None_RefusesEveryPathAndSaysWhy) {
  EXPECT_THAT(DataRoots().ResolveFile("--data", At("root/text.bin")).status().message(),
              HasSubstr("without --data-root"));
}

TEST_F(DataRootsTest, Make_NoFolder_IsNamed) {
  EXPECT_THAT(DataRoots::Make({At("nosuch")}).status().message(),
              HasSubstr("--data-root=" + At("nosuch")));
  EXPECT_THAT(DataRoots::Make({At("secret")}).status().message(), HasSubstr("not a folder"));
}

}  // namespace
}  // namespace regroup
