#include "daemon/agent/path_guard.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/node/private_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PathGuardTest : public ::testing::Test {
 protected:
  PathGuardTest() : folder_(*PrivateDir::Make()), roots_(*DataRoots::Make({folder_.path()})) {
    fs::create_directory(path("model"));
    std::ofstream(path("model/config.json")) << "{}";
    std::ofstream(path("rows.jsonl")) << "[]";
    fs::create_symlink("model", path("link"));
    fs::create_symlink("/etc", path("out"));
  }
  ~PathGuardTest() override {
    for (const char* name : {"model", "link", "out"}) fs::remove_all(path(name));
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  absl::Status Guard(v1::Command* command, int rank = 4) const {
    return GuardPaths("b", roots_, rank, command);
  }

  const PrivateDir folder_;
  const DataRoots roots_;
};

v1::Command Prepare(const std::string& model) {
  v1::Command command;
  command.mutable_prepare_engine()->mutable_spec()->set_model(model);
  return command;
}

TEST_F(PathGuardTest, Inside_IsResolved) {
  v1::Command command = Prepare(path("link"));
  EXPECT_TRUE(Guard(&command).ok());
  EXPECT_EQ(command.prepare_engine().spec().model(), path("model"));
  command = Prepare("random:" + path("link"));
  EXPECT_TRUE(Guard(&command).ok());
  EXPECT_EQ(command.prepare_engine().spec().model(), "random:" + path("model"));
  command = Prepare("mlp:in=1,hidden=1,layers=1,out=1");
  EXPECT_TRUE(Guard(&command).ok());
  command.mutable_check_training()->set_data(path("rows.jsonl"));
  EXPECT_TRUE(Guard(&command).ok());
  command.mutable_export_engine()->set_directory(path("link/new"));
  EXPECT_TRUE(Guard(&command).ok());
  EXPECT_EQ(command.export_engine().directory(), path("model/new"));
  command.mutable_export_engine()->set_directory("");  // of a member that does not write
  EXPECT_TRUE(Guard(&command).ok());
}

TEST_F(PathGuardTest, Outside_IsRefusedByNodeAndFlag) {
  std::vector<v1::Command> commands = {Prepare("/etc"), Prepare("random:" + path("out")),
                                       Prepare(path("../x"))};
  commands.emplace_back().mutable_check_training()->set_data("/etc/passwd");
  commands.emplace_back().mutable_export_engine()->set_directory(path("out/new"));
  const char* const flags[] = {"--model=/etc", "--model=", "--model=", "--data=/etc/passwd",
                               "DIR="};
  for (size_t i = 0; i < commands.size(); ++i) {
    EXPECT_TRUE(HasPaths(commands[i]));
    const absl::Status status = Guard(&commands[i]);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("node b: "));
    EXPECT_THAT(status.message(), HasSubstr(flags[i]));
    EXPECT_TRUE(DetailOf(status).has_value()) << "else it would look like a broken connection";
  }
}

// Who holds the engine opens nothing: its folder may be gone by then.
TEST_F(PathGuardTest, Move_OnlyWhoComesNewIsChecked) {
  v1::Command command;
  v1::PrepareMove& move = *command.mutable_prepare_move();
  move.set_kind(v1::PrepareMove::KIND_RELAYOUT);
  move.mutable_source()->set_model("/gone");
  move.mutable_source()->mutable_layout()->add_ranks(4);
  EXPECT_TRUE(Guard(&command, 4).ok());
  EXPECT_FALSE(Guard(&command, 5).ok());
  move.set_kind(v1::PrepareMove::KIND_SYNC);
  EXPECT_TRUE(Guard(&command, 5).ok());
}

TEST_F(PathGuardTest, OtherCommands_HaveNoPaths) {
  v1::Command command;
  command.mutable_train_step();
  EXPECT_FALSE(HasPaths(command));
  EXPECT_TRUE(Guard(&command).ok());
}

}  // namespace
}  // namespace regroup
