#include "daemon/control/data_roots.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/field_error.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;

bool IsUnder(const std::string& path, const std::string& root) {
  return path == root || absl::StartsWith(path, root.back() == '/' ? root : root + "/");
}

absl::Status NotFound(absl::string_view flag, const std::string& path, const std::string& why) {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat(flag, "=", Printable(path, kMaxShownPath), ": ", why),
                   v1::ERROR_REASON_INVALID_FIELD);
}

}  // namespace

absl::StatusOr<DataRoots> DataRoots::Make(const std::vector<std::string>& folders) {
  DataRoots roots;
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path resolved = fs::canonical(folder, error);
    if (error || !fs::is_directory(resolved, error)) {
      return FieldError(
          "--data-root", folder,
          error ? absl::StrCat("cannot be used: ", error.message()) : "is not a folder",
          "an existing folder");
    }
    roots.given_.push_back(folder);
    roots.resolved_.push_back(resolved.string());
  }
  return roots;
}

DataRoots DataRoots::Elsewhere() {
  DataRoots roots;
  roots.elsewhere_ = true;
  return roots;
}

bool DataRoots::Contains(const std::string& path) const {
  for (const std::string& root : resolved_) {
    if (IsUnder(path, root)) return true;
  }
  return false;
}

absl::Status DataRoots::CheckForm(absl::string_view flag, const std::string& path) const {
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos ||
      path.size() >= PATH_MAX) {
    return FieldError(flag, path, "is not an absolute path",
                      "an absolute path under a --data-root");
  }
  return absl::OkStatus();
}

absl::Status DataRoots::Outside(absl::string_view flag, const std::string& path) const {
  return FieldError(flag, path, "does not lie under a --data-root of the daemon",
                    resolved_.empty()
                        ? "no path at all: regroupd runs without --data-root"
                        : absl::StrCat("a path under ", absl::StrJoin(resolved_, ", ")));
}

absl::StatusOr<std::string> DataRoots::Resolve(absl::string_view flag,
                                               const std::string& path) const {
  if (absl::Status status = CheckForm(flag, path); !status.ok()) return status;
  if (elsewhere_) return path;
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  if (!error)
    return Contains(resolved.string()) ? resolved.string()
                                       : absl::StatusOr<std::string>(Outside(flag, path));
  // What does not exist outside the roots is none of the caller's business.
  const std::string normal = fs::path(path).lexically_normal().string();
  bool inside = Contains(normal);
  for (const std::string& root : given_) inside = inside || IsUnder(normal, root);
  if (!inside) return Outside(flag, path);
  return NotFound(flag, path, error.message());
}

absl::StatusOr<std::string> DataRoots::ResolveFile(absl::string_view flag,
                                                   const std::string& path) const {
  absl::StatusOr<std::string> resolved = Resolve(flag, path);
  if (!resolved.ok() || elsewhere_) return resolved;
  std::error_code error;
  // A pipe or a device would hold up whoever opens it.
  if (!fs::is_regular_file(*resolved, error)) {
    return FieldError(flag, path, "is not a regular file", "a file");
  }
  return resolved;
}

absl::StatusOr<std::string> DataRoots::ResolveFolder(absl::string_view flag,
                                                     const std::string& path) const {
  absl::StatusOr<std::string> resolved = Resolve(flag, path);
  if (!resolved.ok() || elsewhere_) return resolved;
  std::error_code error;
  if (!fs::is_directory(*resolved, error))
    return FieldError(flag, path, "is not a folder", "a folder");
  return resolved;
}

absl::StatusOr<std::string> DataRoots::ResolveModel(absl::string_view flag,
                                                    const std::string& path) const {
  absl::StatusOr<std::string> folder = ResolveFolder(flag, path);
  if (!folder.ok() || elsewhere_) return folder;
  std::error_code error;
  fs::directory_iterator entry(*folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& file = entry->path();
    if (file.extension() != ".json" && file.extension() != ".safetensors") continue;
    if (absl::Status status = ResolveFile(flag, file.string()).status(); !status.ok()) {
      return status;
    }
  }
  if (error) return NotFound(flag, path, error.message());
  return folder;
}

absl::StatusOr<std::string> DataRoots::ResolveNewFolder(absl::string_view flag,
                                                        const std::string& path) const {
  if (absl::Status status = CheckForm(flag, path); !status.ok()) return status;
  if (elsewhere_) return path;
  std::error_code error;
  // One that exists, as whatever a link makes of it.
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found && !error) {
    absl::StatusOr<std::string> resolved = ResolveFolder(flag, path);
    if (resolved.ok() && !Contains(fs::path(*resolved).parent_path().string())) {
      return FieldError(flag, path, "is a --data-root itself", "a folder in it");
    }
    return resolved;
  }
  fs::path name = path;
  while (!name.has_filename() && name.has_relative_path()) name = name.parent_path();
  const std::string parent = name.parent_path().string();
  const absl::StatusOr<std::string> resolved = ResolveFolder(flag, parent);
  if (resolved.ok()) return (fs::path(*resolved) / name.filename()).string();
  if (!absl::IsNotFound(resolved.status())) return Outside(flag, path);
  return NotFound(
      flag, path,
      absl::StrCat("there is no folder ", Printable(parent, kMaxShownPath), " to make it in"));
}

}  // namespace regroup
