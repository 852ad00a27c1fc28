#include "tests/fuzz/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/fuzz/fuzz_target.h"

namespace regroup {
namespace {

// A folder for links, as long as this process lives.
class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TEST_TMPDIR");
    path_ = std::string(parent == nullptr ? "/tmp" : parent) + "/fuzz-XXXXXX";
    Require(mkdtemp(path_.data()) != nullptr, "a temporary folder");
  }
  ~Folder() { rmdir(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

MemoryFile::MemoryFile(const uint8_t* data, size_t size, const std::string& ending)
    : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  Require(fd_ >= 0, "memfd_create");
  Require(write(fd_, data, size) == static_cast<ssize_t>(size), "the input fits into memory");
  path_ = "/proc/self/fd/" + std::to_string(fd_);
  if (ending.empty()) return;
  // A name with an ending: a link that lives as long as this.
  static const Folder folder;
  link_ = folder.path() + "/input" + ending;
  Require(symlink(path_.c_str(), link_.c_str()) == 0, "a link");
  path_ = link_;
}

MemoryFile::~MemoryFile() {
  if (!link_.empty()) unlink(link_.c_str());
  close(fd_);
}

}  // namespace regroup
