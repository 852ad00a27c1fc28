#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/layout/human_text.h"
#include "engine/model/input_file.h"
#include "engine/model/load.h"
#include "engine/model/safetensors.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

constexpr char kConfigName[] = "config.json";
constexpr char kWeightsName[] = "model.safetensors";

// For messages.
std::string Named(const std::string& path) {
  return absl::StrCat("DIR=", Printable(path, kMaxShownPath));
}

absl::Status WriteError(int error, const std::string& path) {
  const std::string message = absl::StrCat(Named(path), ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(message);
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(
          absl::StrCat(message, "; allowed: names of up to 255 bytes"));
    case ELOOP:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

const char* FileDType(DType dtype) {
  return dtype == DType::kFp32 ? "F32" : dtype == DType::kBf16 ? "BF16" : "F16";
}

const char* ConfigDType(DType dtype) {
  return dtype == DType::kFp32 ? "float32" : dtype == DType::kBf16 ? "bfloat16" : "float16";
}

// The text itself unless it names another dtype.
std::string AdaptConfig(const std::string& text, DType dtype) {
  // It was parsed when the model was loaded; the ordered form keeps the fields where they were.
  nlohmann::ordered_json config =
      nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;
  bool changed = false;
  for (const char* field : {"torch_dtype", "dtype"}) {
    const auto it = config.find(field);
    if (it == config.end() || *it == ConfigDType(dtype)) continue;
    *it = ConfigDType(dtype);
    changed = true;
  }
  return changed ? config.dump(2) + "\n" : text;
}

std::vector<TensorEntry> Entries(const ParamTable& table) {
  std::vector<TensorEntry> entries;
  int64_t cursor = 0;
  for (const Parameter& parameter : table.parameters()) {
    TensorEntry entry;
    entry.name = parameter.name;
    entry.dtype = FileDType(table.dtype());
    entry.shape = parameter.shape;
    entry.begin = cursor;
    cursor += parameter.numel * DTypeBytes(table.dtype());
    entry.end = cursor;
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min<size_t>(bytes.size(), 64 << 20));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(errno, path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return WriteError(errno, path);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  return result == 0 ? absl::OkStatus() : WriteError(error, path);
}

// Whether `path` is a folder without entries.
absl::Status CheckEmptyFolder(const std::string& path) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) {
    if (errno != ENOTDIR) return WriteError(errno, path);
    return absl::AlreadyExistsError(
        absl::StrCat(Named(path), " exists and is not a folder; allowed: a new or empty folder"));
  }
  bool empty = true;
  while (const dirent* entry = readdir(folder)) {
    const absl::string_view name = entry->d_name;
    empty = empty && (name == "." || name == "..");
  }
  closedir(folder);
  if (empty) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(Named(path), " is not empty; allowed: a new or empty folder"));
}

std::string RealPath(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string out = resolved;
  std::free(resolved);
  return out;
}

// Where the folder will stand, without symbolic links; parents must exist.
absl::StatusOr<std::string> ResolveTarget(std::string directory) {
  if (directory == "/") {
    return absl::InvalidArgumentError(absl::StrCat("DIR=\"", directory, "\" is no folder to make"));
  }
  const absl::Status usable = CheckPath(directory);
  if (!usable.ok()) return absl::InvalidArgumentError(absl::StrCat("DIR: ", usable.message()));
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  struct stat info = {};
  if (stat(directory.c_str(), &info) == 0) {
    const absl::Status empty = CheckEmptyFolder(directory);
    if (!empty.ok()) return empty;
    return RealPath(directory);
  }
  if (errno != ENOENT) return WriteError(errno, directory);
  if (lstat(directory.c_str(), &info) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(Named(directory), " is a link that leads nowhere"));
  }
  const size_t slash = directory.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : directory.substr(0, slash + 1);
  const std::string name = directory.substr(slash == std::string::npos ? 0 : slash + 1);
  const std::string resolved = RealPath(parent);
  if (resolved.empty() || name.empty() || name == "." || name == "..") {
    return absl::NotFoundError(
        absl::StrCat(Named(directory), ": no folder ", Printable(parent, kMaxShownPath)));
  }
  return absl::StrCat(resolved == "/" ? "" : resolved, "/", name);
}

class FolderWriter : public ExportWriter {
 public:
  FolderWriter(std::string target, const ParamTable& table)
      : target_(std::move(target)), table_(table) {
    const size_t slash = target_.rfind('/');
    parent_ = slash == 0 ? "/" : target_.substr(0, slash);
    name_ = target_.substr(slash + 1);
  }

  ~FolderWriter() override {
    if (fd_ >= 0) close(fd_);
    if (aside_.empty()) return;
    unlink(absl::StrCat(aside_, "/", kConfigName).c_str());
    unlink(absl::StrCat(aside_, "/", kWeightsName).c_str());
    rmdir(aside_.c_str());
  }

  absl::Status Open(const std::string& config_json) {
    const std::vector<TensorEntry> entries = Entries(table_);
    const absl::StatusOr<std::string> header = MakeSafetensorsHeader(entries);
    if (!header.ok()) return header.status();
    absl::Status status = MakeAside();
    if (!status.ok()) return status;
    status = WriteConfig(AdaptConfig(config_json, table_.dtype()));
    if (!status.ok()) return status;

    path_ = absl::StrCat(aside_, "/", kWeightsName);
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) return WriteError(errno, path_);
    const auto size =
        static_cast<off_t>(header->size()) + (entries.empty() ? 0 : entries.back().end);
    // A full disk is noticed before anything is gathered. File systems without it notice later.
    if (fallocate(fd_, 0, 0, size) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      return WriteError(errno, path_);
    }
    bytes_ += size;
    return WriteAll(fd_, *header, path_);
  }

  absl::Status Write(int id, const at::Tensor& value) override {
    if (id != next_ || id >= static_cast<int>(table_.parameters().size())) {
      return absl::InternalError(
          absl::StrCat("export: ", path_, ": parameter ", id, " out of order; next is ", next_));
    }
    const Parameter& parameter = table_.parameter(id);
    if (value.sizes().vec() != parameter.shape ||
        value.scalar_type() != ToScalarType(table_.dtype()) || !value.is_cpu()) {
      return absl::InternalError(
          absl::StrCat("export: ", path_, ": ", parameter.name, " has another shape or dtype"));
    }
    const at::Tensor whole = value.contiguous();
    absl::Status written =
        WriteAll(fd_, {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()}, path_);
    if (written.ok()) ++next_;
    return written;
  }

  absl::StatusOr<int64_t> Commit() override {
    if (next_ != static_cast<int>(table_.parameters().size())) {
      return absl::InternalError(absl::StrCat("export: ", path_, ": ", next_, " of ",
                                              table_.parameters().size(), " parameters written"));
    }
    if (fsync(fd_) != 0) return WriteError(errno, path_);
    const int closed = close(std::exchange(fd_, -1));
    if (closed != 0) return WriteError(errno, path_);
    absl::Status status = SyncFolder(aside_);
    if (!status.ok()) return status;
    // The empty folder that it replaces, if any, decides who may read the result.
    struct stat replaced {};
    if (stat(target_.c_str(), &replaced) == 0 &&
        (chmod(aside_.c_str(), replaced.st_mode & 07777) != 0 ||
         chown(aside_.c_str(), replaced.st_uid, replaced.st_gid) != 0)) {
      return WriteError(errno, aside_);
    }
    // Replaces an empty folder, and nothing else.
    if (rename(aside_.c_str(), target_.c_str()) != 0) return WriteError(errno, target_);
    aside_.clear();
    status = SyncFolder(parent_);
    if (!status.ok()) return status;
    return bytes_;
  }

 private:
  // A folder beside the target, so that the rename stays on one file system.
  absl::Status MakeAside() {
    std::random_device random;
    // The name leaves room for the ending in the 255 bytes that a file name may have.
    const std::string stem =
        absl::StrCat(parent_ == "/" ? "" : parent_, "/.", name_.substr(0, 200));
    for (;;) {
      std::string path = absl::StrFormat("%s.export-%08x", stem, random());
      if (mkdir(path.c_str(), 0777) == 0) {
        aside_ = std::move(path);
        return absl::OkStatus();
      }
      if (errno != EEXIST) return WriteError(errno, path);
    }
  }

  absl::Status WriteConfig(const std::string& text) {
    const std::string path = absl::StrCat(aside_, "/", kConfigName);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return WriteError(errno, path);
    absl::Status status = WriteAll(fd, text, path);
    if (status.ok() && fsync(fd) != 0) status = WriteError(errno, path);
    if (close(fd) != 0 && status.ok()) status = WriteError(errno, path);
    bytes_ += static_cast<int64_t>(text.size());
    return status;
  }

  const std::string target_;
  const ParamTable table_;
  std::string parent_;
  std::string name_;
  std::string aside_;  // "" once it was renamed
  std::string path_;   // of the weights, aside
  int fd_ = -1;
  int next_ = 0;  // parameter
  int64_t bytes_ = 0;
};

}  // namespace

absl::Status ExportWriter::Check(const std::string& directory) {
  return ResolveTarget(directory).status();
}

absl::StatusOr<std::unique_ptr<ExportWriter>> ExportWriter::Start(const std::string& directory,
                                                                  const std::string& config_json,
                                                                  const ParamTable& table) {
  absl::StatusOr<std::string> target = ResolveTarget(directory);
  if (!target.ok()) return target.status();
  auto writer = std::make_unique<FolderWriter>(*std::move(target), table);
  const absl::Status open = writer->Open(config_json);
  if (!open.ok()) return open;
  return writer;
}

}  // namespace regroup
