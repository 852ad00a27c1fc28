#include "daemon/agent/path_guard.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr char kRandom[] = "random:";

bool IsFolder(const std::string& model) { return !absl::StartsWith(model, "mlp:"); }

absl::StatusOr<std::string> ResolveModel(const DataRoots& roots, const std::string& model) {
  absl::string_view folder = model;
  const bool random = absl::ConsumePrefix(&folder, kRandom);
  absl::StatusOr<std::string> resolved = roots.ResolveModel("--model", std::string(folder));
  if (!resolved.ok()) return resolved;
  return absl::StrCat(random ? kRandom : "", *resolved);
}

absl::StatusOr<std::string> ResolveExport(const DataRoots& roots, const std::string& path) {
  return roots.ResolveNewFolder("DIR", path);
}

// Of the commands that open something: the field, and what it resolves to.
struct Path {
  std::string* field = nullptr;
  absl::StatusOr<std::string> (*resolve)(const DataRoots& roots, const std::string& path) = nullptr;
};

Path PathOf(int rank, v1::Command* command) {
  switch (command->command_case()) {
    case v1::Command::kPrepareEngine: {
      std::string* model = command->mutable_prepare_engine()->mutable_spec()->mutable_model();
      if (IsFolder(*model)) return {model, ResolveModel};
      break;
    }
    case v1::Command::kPrepareMove: {
      v1::PrepareMove* move = command->mutable_prepare_move();
      const auto& holders = move->source().layout().ranks();
      // Who holds the engine has its model, and a sync brings none.
      const bool opens = move->kind() != v1::PrepareMove::KIND_SYNC &&
                         std::find(holders.begin(), holders.end(), rank) == holders.end();
      std::string* model = move->mutable_source()->mutable_model();
      if (opens && IsFolder(*model)) return {model, ResolveModel};
      break;
    }
    case v1::Command::kCheckTraining:
      return {command->mutable_check_training()->mutable_data(),
              [](const DataRoots& roots, const std::string& path) {
                return roots.ResolveFile("--data", path);
              }};
    case v1::Command::kCheckExport:
      return {command->mutable_check_export()->mutable_directory(), ResolveExport};
    case v1::Command::kExportEngine: {
      std::string* directory = command->mutable_export_engine()->mutable_directory();
      if (!directory->empty()) return {directory, ResolveExport};
      break;
    }
    default:
      break;
  }
  return {};
}

}  // namespace

bool HasPaths(const v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kPrepareEngine:
      return IsFolder(command.prepare_engine().spec().model());
    case v1::Command::kPrepareMove:
      return IsFolder(command.prepare_move().source().model());
    case v1::Command::kCheckTraining:
    case v1::Command::kCheckExport:
    case v1::Command::kExportEngine:
      return true;
    default:
      return false;
  }
}

absl::Status GuardPaths(const std::string& node, const DataRoots& roots, int rank,
                        v1::Command* command) {
  const Path path = PathOf(rank, command);
  if (path.field == nullptr) return absl::OkStatus();
  absl::StatusOr<std::string> resolved = path.resolve(roots, *path.field);
  if (resolved.ok()) {
    *path.field = *std::move(resolved);
    return absl::OkStatus();
  }
  v1::ErrorDetail detail = DetailOf(resolved.status()).value_or(v1::ErrorDetail());
  return MakeError(resolved.status().code(),
                   absl::StrCat("node ", node, ": ", resolved.status().message()), detail);
}

}  // namespace regroup
