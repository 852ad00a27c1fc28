// The folders of this machine that requests may name files in.
#ifndef DAEMON_CONTROL_DATA_ROOTS_H_
#define DAEMON_CONTROL_DATA_ROOTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace regroup {

// Const after Make; thread safe. Paths are resolved before they are judged, so neither ".." nor a
// symbolic link leads outside; what is resolved is what workers are given. That holds for what lies
// there when it is asked: who may write under a root may change it later.
class DataRoots {
 public:
  DataRoots() = default;  // none: every path is refused

  // Errors: INVALID_ARGUMENT naming --data-root, the value and what is allowed (an existing
  // folder).
  static absl::StatusOr<DataRoots> Make(const std::vector<std::string>& folders);

  // For paths that are opened on other machines only: they must be absolute, and stay as they are.
  static DataRoots Elsewhere();

  // `flag` is what the user gave the path with. Errors, each naming flag, value and what is
  // allowed: INVALID_ARGUMENT (not absolute, not under a root, not of the kind asked for),
  // NOT_FOUND.
  absl::StatusOr<std::string> ResolveFile(absl::string_view flag, const std::string& path) const;
  absl::StatusOr<std::string> ResolveFolder(absl::string_view flag, const std::string& path) const;

  // A folder whose config.json, other *.json and *.safetensors, themselves or through links, are
  // regular files under a root as well.
  absl::StatusOr<std::string> ResolveModel(absl::string_view flag, const std::string& path) const;

  // A folder that need not exist yet; the one that it lies in does, and is under a root, too:
  // so the folder is no root itself.
  absl::StatusOr<std::string> ResolveNewFolder(absl::string_view flag,
                                               const std::string& path) const;

 private:
  absl::Status CheckForm(absl::string_view flag, const std::string& path) const;
  absl::Status Outside(absl::string_view flag, const std::string& path) const;
  bool Contains(const std::string& path) const;
  // realpath of an existing path, under a root.
  absl::StatusOr<std::string> Resolve(absl::string_view flag, const std::string& path) const;

  bool elsewhere_ = false;
  std::vector<std::string> given_;
  std::vector<std::string> resolved_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_DATA_ROOTS_H_
