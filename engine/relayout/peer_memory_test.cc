#include "engine/relayout/peer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "engine/group/thread_ranks.h"
#include "engine/relayout/own_memory.h"

namespace regroup {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// Threads of one process stand for processes of one host: the system call is the same.
TEST(PeerMemoryTest, Meet_OnOneHost_EachReadsTheOthers) {
  if (!CanReadOwnMemory()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  RunInGroup({5, 2, 7}, kTimeout, [](int, std::unique_ptr<Group> group) {
    const auto memory = PeerMemory::Meet(*group);
    ASSERT_TRUE(memory.ok()) << memory.status();
    for (int reader = 0; reader < 3; ++reader) {
      for (int owner = 0; owner < 3; ++owner) {
        EXPECT_EQ(memory->CanRead(reader, owner), reader != owner) << reader << " " << owner;
      }
    }
    std::array<int, 1000> from;
    for (int i = 0; i < 1000; ++i) from[i] = i * i;
    std::array<int, 1000> to = {};
    const int owner = (group->index() + 1) % 3;
    const absl::Status status = memory->Read(owner, reinterpret_cast<uint64_t>(from.data()),
                                             to.data(), sizeof(to), "reads squares");
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(to, from);
  });
}

TEST(PeerMemoryTest, Read_NothingThere_NamesTheRank) {
  if (!CanReadOwnMemory()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  RunInGroup({5, 2}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    const auto memory = PeerMemory::Meet(*group);
    ASSERT_TRUE(memory.ok()) << memory.status();
    char byte = 0;
    const absl::Status status = memory->Read(1 - group->index(), 8, &byte, 1, "reads a byte");
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << "it lives: " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("reads a byte"), HasSubstr(rank == 5 ? "rank 2" : "rank 5"),
                      HasSubstr("Bad address")));
  });
}

TEST(PeerMemoryTest, CanRead_BeforeAnyMeeting_IsFalse) { EXPECT_FALSE(PeerMemory().CanRead(0, 1)); }

}  // namespace
}  // namespace regroup
