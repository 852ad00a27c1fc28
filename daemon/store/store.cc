#include "daemon/store/store.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

constexpr int kApplicationId = 0x52475031;  // marks the file as ours

constexpr char kTables[] =
    "CREATE TABLE nodes(name TEXT PRIMARY KEY, address TEXT NOT NULL, first_rank INTEGER NOT NULL,"
    " ranks INTEGER NOT NULL, self INTEGER NOT NULL) STRICT;"
    "CREATE TABLE engines(uid INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;"
    "CREATE TABLE operations(number INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;"
    "CREATE TABLE requests(id TEXT PRIMARY KEY, accepted INTEGER NOT NULL,"
    " digest INTEGER NOT NULL, answer BLOB NOT NULL) STRICT;"
    "CREATE INDEX requests_by_age ON requests(accepted);"
    "CREATE TABLE numbers(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;";

}  // namespace

// One prepared statement. The store's mutex is held as long as it lives.
class Store::Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    result_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int64_t value) {
    Note(sqlite3_bind_int64(statement_, ++bound_, value));
    return *this;
  }
  Statement& Text(const std::string& value) {
    Note(sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT,
                             SQLITE_UTF8));
    return *this;
  }
  Statement& Blob(const std::string& value) {
    Note(sqlite3_bind_blob64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT));
    return *this;
  }

  // True while there is a row. False at the end, or after an error: see ok().
  bool Next() {
    if (result_ != SQLITE_OK && result_ != SQLITE_ROW) return false;
    result_ = sqlite3_step(statement_);
    return result_ == SQLITE_ROW;
  }
  bool ok() const {
    return result_ == SQLITE_OK || result_ == SQLITE_ROW || result_ == SQLITE_DONE;
  }

  int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? "" : std::string(static_cast<const char*>(data), size);
  }

 private:
  void Note(int result) {
    if (result_ == SQLITE_OK) result_ = result;
  }

  sqlite3_stmt* statement_ = nullptr;
  int result_ = SQLITE_OK;
  int bound_ = 0;
};

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& folder) {
  const std::string path = folder + "/regroup.db";
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
  std::unique_ptr<Store> store(new Store(path, database));
  if (result != SQLITE_OK) {
    return absl::InternalError(
        absl::StrCat("state store ", path, " cannot be opened: ", sqlite3_errstr(result)));
  }
  chmod(path.c_str(), S_IRUSR | S_IWUSR);
  absl::MutexLock lock(&store->mutex_);
  if (absl::Status status = store->Check(); !status.ok()) return status;
  return store;
}

Store::~Store() { sqlite3_close(database_); }

absl::Status Store::Error(const std::string& what) const {
  const int code = sqlite3_errcode(database_);
  const std::string message =
      absl::StrCat("state store ", path_, " ", what, ": ", sqlite3_errmsg(database_));
  if (code == SQLITE_FULL) return absl::ResourceExhaustedError(message);
  if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT) {
    return absl::DataLossError(absl::StrCat(
        message, "; it is left as it is; allowed: a whole one, or none (move it away)"));
  }
  return absl::InternalError(message);
}

absl::Status Store::FrozenError() const {
  return absl::UnavailableError(
      absl::StrCat("state store ", path_, " is not written any more: the daemon is stopping"));
}

absl::Status Store::Run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return Error("cannot be used");
}

absl::StatusOr<int64_t> Store::ReadNumber(const char* sql) const {
  Statement statement(database_, sql);
  if (statement.Next()) return statement.Number(0);
  return Error("cannot be read");
}

// Nothing is written before it is known that the file is ours.
absl::Status Store::Check() {
  const absl::StatusOr<int64_t> tables = ReadNumber("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  const absl::StatusOr<int64_t> owner = ReadNumber("PRAGMA application_id");
  if (!owner.ok()) return owner.status();
  const absl::StatusOr<int64_t> schema = ReadNumber("PRAGMA user_version");
  if (!schema.ok()) return schema.status();
  const bool is_new = *tables == 0 && *owner == 0 && *schema == 0;
  if (!is_new && *owner != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state store ", path_, " is another program's database; allowed: another --state-dir"));
  }
  if (*schema > kSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat("state store ", path_, " was written by a newer version (schema ", *schema,
                     "); allowed: schema ", kSchema, ", or another --state-dir"));
  }
  if (!is_new) {
    Statement check(database_, "PRAGMA quick_check(1)");
    if (!check.Next()) return Error("cannot be checked");
    if (check.Bytes(0) != "ok") {
      return absl::DataLossError(
          absl::StrCat("state store ", path_, " is damaged: ", check.Bytes(0),
                       "; it is left as it is; allowed: a whole one, or none (move it away)"));
    }
  }
  absl::Status status = Run("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL");
  if (status.ok() && is_new) status = MakeTables();
  if (status.ok()) {
    status =
        Run("INSERT OR IGNORE INTO numbers(name, value) VALUES('cluster', 1 + abs(random() / 2))");
  }
  return status;
}

absl::Status Store::MakeTables() {
  return Run(absl::StrCat("BEGIN IMMEDIATE;", kTables, "PRAGMA application_id=", kApplicationId,
                          ";PRAGMA user_version=", kSchema, ";COMMIT")
                 .c_str());
}

absl::StatusOr<uint64_t> Store::ClusterId() const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<int64_t> id = ReadNumber("SELECT value FROM numbers WHERE name='cluster'");
  if (!id.ok()) return id.status();
  return static_cast<uint64_t>(*id);
}

absl::StatusOr<std::vector<StoredNode>> Store::Nodes() const {
  absl::MutexLock lock(&mutex_);
  Statement rows(database_,
                 "SELECT name, address, first_rank, ranks, self FROM nodes ORDER BY rowid");
  std::vector<StoredNode> nodes;
  while (rows.Next()) {
    nodes.push_back({rows.Bytes(0), rows.Bytes(1), static_cast<int>(rows.Number(2)),
                     static_cast<int>(rows.Number(3)), rows.Number(4) != 0});
  }
  if (!rows.ok()) return Error("cannot be read");
  return nodes;
}

absl::Status Store::PutNode(const StoredNode& node) {
  absl::MutexLock lock(&mutex_);
  if (frozen_) return FrozenError();
  Statement put(database_,
                "INSERT INTO nodes VALUES(?,?,?,?,?) ON CONFLICT(name) DO UPDATE SET "
                "address=excluded.address, first_rank=excluded.first_rank, ranks=excluded.ranks, "
                "self=excluded.self");
  put.Text(node.name).Text(node.address).Bind(node.first_rank).Bind(node.ranks).Bind(node.self);
  put.Next();
  return put.ok() ? absl::OkStatus() : Error("cannot be written");
}

absl::StatusOr<std::vector<v1::StoredEngine>> Store::Engines() const {
  absl::MutexLock lock(&mutex_);
  Statement rows(database_, "SELECT record FROM engines ORDER BY uid");
  std::vector<v1::StoredEngine> engines;
  while (rows.Next()) {
    if (!engines.emplace_back().ParseFromString(rows.Bytes(0))) {
      return absl::DataLossError(
          absl::StrCat("state store ", path_, ": an engine's row is damaged"));
    }
  }
  if (!rows.ok()) return Error("cannot be read");
  return engines;
}

absl::Status Store::PutEngine(const v1::StoredEngine& engine) {
  absl::MutexLock lock(&mutex_);
  if (frozen_) return FrozenError();
  const auto uid = static_cast<int64_t>(engine.uid());
  if (absl::Status status = Run("BEGIN IMMEDIATE"); !status.ok()) return status;
  absl::Status status;
  {
    Statement put(database_, "INSERT OR REPLACE INTO engines VALUES(?,?)");
    put.Bind(uid).Blob(engine.SerializeAsString());
    put.Next();
    if (!put.ok()) status = Error("cannot be written");
  }
  if (status.ok()) {
    Statement last(database_,
                   "INSERT INTO numbers VALUES('last_uid',?) ON CONFLICT(name) DO UPDATE SET "
                   "value=max(value, excluded.value)");
    last.Bind(uid);
    last.Next();
    if (!last.ok()) status = Error("cannot be written");
  }
  if (status.ok()) status = Run("COMMIT");
  if (!status.ok()) Run("ROLLBACK").IgnoreError();
  return status;
}

absl::Status Store::RemoveEngine(uint64_t uid) {
  absl::MutexLock lock(&mutex_);
  if (frozen_) return FrozenError();
  Statement remove(database_, "DELETE FROM engines WHERE uid=?");
  remove.Bind(static_cast<int64_t>(uid));
  remove.Next();
  return remove.ok() ? absl::OkStatus() : Error("cannot be written");
}

absl::StatusOr<uint64_t> Store::LastUid() const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<int64_t> last =
      ReadNumber("SELECT coalesce(max(value), 0) FROM numbers WHERE name='last_uid'");
  if (!last.ok()) return last.status();
  return static_cast<uint64_t>(*last);
}

absl::StatusOr<std::vector<v1::Operation>> Store::Operations() const {
  absl::MutexLock lock(&mutex_);
  Statement rows(database_, "SELECT record FROM operations ORDER BY number");
  std::vector<v1::Operation> operations;
  while (rows.Next()) {
    if (!operations.emplace_back().ParseFromString(rows.Bytes(0))) {
      return absl::DataLossError(
          absl::StrCat("state store ", path_, ": an operation's row is damaged"));
    }
  }
  if (!rows.ok()) return Error("cannot be read");
  return operations;
}

absl::Status Store::PutOperation(int64_t number, const v1::Operation& operation, int64_t forget) {
  absl::MutexLock lock(&mutex_);
  if (frozen_) return FrozenError();
  Statement put(database_, "INSERT OR REPLACE INTO operations VALUES(?,?)");
  put.Bind(number).Blob(operation.SerializeAsString());
  put.Next();
  if (!put.ok()) return Error("cannot be written");
  if (forget <= 0) return absl::OkStatus();
  Statement remove(database_, "DELETE FROM operations WHERE number<=?");
  remove.Bind(forget);
  remove.Next();
  return remove.ok() ? absl::OkStatus() : Error("cannot be written");
}

absl::StatusOr<std::vector<StoredRequest>> Store::Requests() const {
  absl::MutexLock lock(&mutex_);
  Statement rows(database_, "SELECT id, accepted, digest, answer FROM requests ORDER BY accepted");
  std::vector<StoredRequest> requests;
  while (rows.Next()) {
    StoredRequest& request = requests.emplace_back();
    request.id = rows.Bytes(0);
    request.accepted_micros = rows.Number(1);
    request.digest = static_cast<uint64_t>(rows.Number(2));
    if (!request.answer.ParseFromString(rows.Bytes(3))) {
      return absl::DataLossError(
          absl::StrCat("state store ", path_, ": a request's row is damaged"));
    }
  }
  if (!rows.ok()) return Error("cannot be read");
  return requests;
}

absl::Status Store::PutRequest(const StoredRequest& request, int64_t forget_before_micros) {
  absl::MutexLock lock(&mutex_);
  if (frozen_) return FrozenError();
  Statement put(database_, "INSERT OR REPLACE INTO requests VALUES(?,?,?,?)");
  put.Text(request.id)
      .Bind(request.accepted_micros)
      .Bind(static_cast<int64_t>(request.digest))
      .Blob(request.answer.SerializeAsString());
  put.Next();
  if (!put.ok()) return Error("cannot be written");
  Statement remove(database_, "DELETE FROM requests WHERE accepted<?");
  remove.Bind(forget_before_micros);
  remove.Next();
  return remove.ok() ? absl::OkStatus() : Error("cannot be written");
}

void Store::RefuseWritesForTest() {
  absl::MutexLock lock(&mutex_);
  Run("PRAGMA query_only=1").IgnoreError();
}

void Store::Freeze() {
  absl::MutexLock lock(&mutex_);
  frozen_ = true;
}

}  // namespace regroup
