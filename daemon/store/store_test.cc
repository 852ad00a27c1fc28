#include "daemon/store/store.h"

#include <sqlite3.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "daemon/node/private_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : folder_(*PrivateDir::Make()) {}

  std::string path() const { return folder_.path() + "/regroup.db"; }
  std::unique_ptr<Store> Open() {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(folder_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string Bytes() const {
    std::ostringstream bytes;
    bytes << std::ifstream(path(), std::ios::binary).rdbuf();
    return bytes.str();
  }
  void Run(const std::string& sql) const {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }
  void ExpectRefused(absl::StatusCode code, const std::string& words) const {
    const std::string before = Bytes();
    const absl::Status status = Store::Open(folder_.path()).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(path()));
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_EQ(Bytes(), before) << "it must be left as it is";
  }

  const PrivateDir folder_;
};

v1::StoredEngine Engine(uint64_t uid, const std::string& name) {
  v1::StoredEngine engine;
  engine.set_uid(uid);
  engine.mutable_spec()->set_name(name);
  return engine;
}

TEST_F(StoreTest, Rows_AreThereAgainAfterOpening) {
  const uint64_t high = (uint64_t{1} << 62) + 5;
  {
    const auto store = Open();
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(store->PutNode({"a", "h:1", 0, 2, true}).ok());
    EXPECT_TRUE(store->PutNode({"b", "h:2", 2, 2, false}).ok());
    EXPECT_TRUE(store->PutNode({"b", "h:3", 2, 2, false}).ok());
    EXPECT_TRUE(store->PutEngine(Engine(high, "e")).ok());
    EXPECT_TRUE(store->PutEngine(Engine(high + 1, "gone")).ok());
    EXPECT_TRUE(store->RemoveEngine(high + 1).ok());
    v1::Operation operation;
    for (int number = 1; number <= 3; ++number) {
      operation.set_id(absl::StrCat("op-", number));
      EXPECT_TRUE(store->PutOperation(number, operation, number - 2).ok());
    }
    StoredRequest request;
    request.id = "r1";
    request.accepted_micros = 1000;
    EXPECT_TRUE(store->PutRequest(request, 0).ok());
    request.id = "r2";
    request.accepted_micros = 2000;
    request.digest = UINT64_MAX - 3;
    request.answer = operation;
    EXPECT_TRUE(store->PutRequest(request, 1500).ok());
  }
  const auto store = Open();
  ASSERT_NE(store, nullptr);
  const auto nodes = *store->Nodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_TRUE(nodes[0].self);
  EXPECT_EQ(nodes[1].address, "h:3");
  EXPECT_EQ(nodes[1].first_rank, 2);
  const auto engines = *store->Engines();
  ASSERT_EQ(engines.size(), 1u);
  EXPECT_EQ(engines[0].uid(), high);
  EXPECT_EQ(engines[0].spec().name(), "e");
  EXPECT_EQ(*store->LastUid(), high + 1) << "uids of deleted engines are not used again";
  const auto operations = *store->Operations();
  ASSERT_EQ(operations.size(), 2u);
  EXPECT_EQ(operations[0].id(), "op-2");
  const auto requests = *store->Requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].id, "r2");
  EXPECT_EQ(requests[0].digest, UINT64_MAX - 3);
  EXPECT_EQ(requests[0].answer.id(), "op-3");
}

// What it would not keep is not taken for kept.
TEST_F(StoreTest, Frozen_RefusesEveryWrite) {
  const auto store = Open();
  ASSERT_TRUE(store->PutEngine(Engine(1, "e")).ok());
  store->Freeze();
  EXPECT_THAT(store->RemoveEngine(1).message(), HasSubstr(path()));
  EXPECT_TRUE(absl::IsUnavailable(store->RemoveEngine(1)));
  EXPECT_TRUE(absl::IsUnavailable(store->PutEngine(Engine(2, "f"))));
  EXPECT_TRUE(absl::IsUnavailable(store->PutNode({"a", "h:1", 0, 2, true})));
  EXPECT_TRUE(absl::IsUnavailable(store->PutOperation(1, v1::Operation(), 0)));
  EXPECT_TRUE(absl::IsUnavailable(store->PutRequest(StoredRequest(), 0)));
  EXPECT_EQ(store->Engines()->size(), 1u);
  EXPECT_TRUE(store->Nodes()->empty());
  EXPECT_TRUE(store->Operations()->empty());
  EXPECT_TRUE(store->Requests()->empty());
}

TEST_F(StoreTest, PutEngine_ThatFails_SaysWhyAndChangesNothing) {
  const auto store = Open();
  ASSERT_TRUE(store->PutEngine(Engine(1, "e")).ok());
  Run("CREATE TRIGGER t BEFORE INSERT ON numbers BEGIN SELECT RAISE(FAIL, 'no room'); END");
  const absl::Status status = store->PutEngine(Engine(2, "f"));
  EXPECT_THAT(status.message(), HasSubstr("cannot be written: no room"));
  EXPECT_EQ(store->Engines()->size(), 1u);
  EXPECT_EQ(*store->LastUid(), 1u);
  Run("DROP TRIGGER t");
  EXPECT_TRUE(store->PutEngine(Engine(2, "f")).ok());
}

TEST_F(StoreTest, Newer_IsRefused) {
  ASSERT_NE(Open(), nullptr);
  Run("PRAGMA user_version=2");
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "newer version (schema 2)");
}

TEST_F(StoreTest, AnotherProgramsDatabase_IsRefused) {
  Run("CREATE TABLE t(x)");
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "another program's");
}

TEST_F(StoreTest, Damaged_IsRefusedAndNotDeleted) {
  std::ofstream(path()) << std::string(5000, 'x');
  ExpectRefused(absl::StatusCode::kDataLoss, "left as it is");
}

TEST_F(StoreTest, DamagedInTheMiddle_IsRefused) {
  {
    const auto store = Open();
    for (int uid = 1; uid <= 200; ++uid) {
      ASSERT_TRUE(store->PutEngine(Engine(uid, std::string(200, 'n'))).ok());
    }
  }
  std::string bytes = Bytes();
  ASSERT_GT(bytes.size(), 30000u);
  for (size_t at = 8192; at < bytes.size(); at += 4096) bytes.replace(at, 64, 64, '\xff');
  std::ofstream(path(), std::ios::binary) << bytes;
  ExpectRefused(absl::StatusCode::kDataLoss, path());
}

TEST_F(StoreTest, Folder_ThatCannotBeUsed_IsNamed) {
  const absl::Status status = Store::Open("/nosuch").status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("/nosuch/regroup.db"));
}

}  // namespace
}  // namespace regroup
