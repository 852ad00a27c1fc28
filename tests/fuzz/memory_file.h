// Bytes as a file with a name, for parsers that take a path; never on a disk.
#ifndef TESTS_FUZZ_MEMORY_FILE_H_
#define TESTS_FUZZ_MEMORY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace regroup {

class MemoryFile {
 public:
  // `ending` of the name: ".jsonl" and the like; "" for none. Aborts if there is no memory.
  MemoryFile(const uint8_t* data, size_t size, const std::string& ending);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
  std::string link_;  // "" if there is none
};

}  // namespace regroup

#endif  // TESTS_FUZZ_MEMORY_FILE_H_
