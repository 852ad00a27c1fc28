#include "engine/relayout/peer_memory.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/group/comm_status.h"

namespace regroup {
namespace {

// Of one boot of one machine.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// Of this process, `kind` as in namespaces(7); 0 if it cannot be told.
uint64_t Namespace(const char* kind) {
  struct stat info;
  return stat(absl::StrCat("/proc/self/ns/", kind).c_str(), &info) == 0 ? info.st_ino : 0;
}

// What a member tells the others about itself.
struct Card {
  char boot_id[40] = {};
  uint64_t pid_namespace = 0;      // process ids mean the same within one
  uint64_t network_namespace = 0;  // who is set apart on the network is not reached around it
  int64_t pid = 0;
  uint64_t probe_address = 0;
  uint64_t probe[2] = {};  // lies there
};

// Bytes that were read; -1 and errno on an error.
ssize_t ReadFrom(pid_t pid, uint64_t address, void* to, size_t size) {
  iovec local{to, size};
  iovec remote{reinterpret_cast<void*>(address), size};  // NOLINT(performance-no-int-to-ptr)
  return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

bool SameHost(const Card& a, const Card& b) {
  return a.boot_id[0] != '\0' && a.pid_namespace != 0 && a.pid_namespace == b.pid_namespace &&
         a.network_namespace != 0 && a.network_namespace == b.network_namespace &&
         std::memcmp(a.boot_id, b.boot_id, sizeof(a.boot_id)) == 0;
}

bool Readable(const Card& mine, const Card& owner) {
  if (!SameHost(mine, owner)) return false;
  uint64_t found[2] = {};
  return ReadFrom(static_cast<pid_t>(owner.pid), owner.probe_address, found, sizeof(found)) ==
             static_cast<ssize_t>(sizeof(found)) &&
         std::memcmp(found, owner.probe, sizeof(found)) == 0;
}

// After a read that brought `count` bytes, 0 or less.
absl::Status ReadError(ssize_t count, const std::string& what) {
  const int error = count == 0 ? EFAULT : errno;
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  if (error == ESRCH) return WithReason(absl::UnavailableError(message), "RANK_LOST");
  if (error == ENOMEM) return WithReason(absl::ResourceExhaustedError(message), "MEMORY");
  return absl::InternalError(message);
}

}  // namespace

absl::StatusOr<PeerMemory> PeerMemory::Meet(Group& group) {
  std::random_device random;
  uint64_t probe[2];
  for (uint64_t& word : probe) word = (static_cast<uint64_t>(random()) << 32) | random();
  Card mine;
  BootId().copy(mine.boot_id, sizeof(mine.boot_id) - 1);
  mine.pid_namespace = Namespace("pid");
  mine.network_namespace = Namespace("net");
  mine.pid = getpid();
  mine.probe_address = reinterpret_cast<uint64_t>(&probe);
  std::memcpy(mine.probe, probe, sizeof(probe));
  const absl::StatusOr<std::vector<std::string>> cards = group.Exchange(
      absl::string_view(reinterpret_cast<const char*>(&mine), sizeof(mine)), "who is on this host");
  if (!cards.ok()) return cards.status();

  PeerMemory memory;
  memory.members_.resize(cards->size());
  std::string reads(cards->size(), '0');
  for (size_t i = 0; i < cards->size(); ++i) {
    Card card;
    if ((*cards)[i].size() != sizeof(card)) {
      return absl::InternalError(absl::StrCat("rank ", group.options().ranks[i], " tells of ",
                                              (*cards)[i].size(), " bytes where its memory is"));
    }
    std::memcpy(&card, (*cards)[i].data(), sizeof(card));
    memory.members_[i].rank = group.options().ranks[i];
    memory.members_[i].pid = static_cast<pid_t>(card.pid);
    if (static_cast<int>(i) != group.index() && Readable(mine, card)) reads[i] = '1';
  }
  // The probe stays where it is until everybody has read it.
  const absl::StatusOr<std::vector<std::string>> all = group.Exchange(reads, "who reads whom");
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < all->size(); ++i) {
    for (const char read : (*all)[i]) memory.members_[i].reads.push_back(read == '1');
    memory.members_[i].reads.resize(memory.members_.size());
  }
  return memory;
}

bool PeerMemory::CanRead(int reader, int owner) const {
  return !members_.empty() && members_[reader].reads[owner];
}

absl::Status PeerMemory::Read(int owner, uint64_t address, void* to, size_t size,
                              absl::string_view what) const {
  const Member& member = members_[owner];
  auto* next = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t count = ReadFrom(member.pid, address, next, size);
    if (count <= 0) {
      return ReadError(count, absl::StrCat(what, ": the memory of rank ", member.rank, " (pid ",
                                           member.pid, ") cannot be read"));
    }
    address += count;
    next += count;
    size -= count;
  }
  return absl::OkStatus();
}

}  // namespace regroup
