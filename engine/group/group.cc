#include "engine/group/group.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "engine/group/comm_status.h"
#include "engine/layout/rank_list.h"

namespace regroup {
namespace {

std::atomic<int64_t> issued_by_process{0};

// [Note: tags] gloo matches a send and a receive of one pair by their tag. The tag of a collective
// is its number in the group and a digest of what it is, so that members that issue different
// operations never exchange data: they wait, and their deadlines tell. Point-to-point transfers
// count per pair and direction, in a range of their own. Both sides count alike because all members
// issue in the same order.
constexpr uint32_t kPairTag = 1U << 30;
constexpr uint32_t kDigestBits = 10;

int CollectiveTag(uint32_t number, absl::string_view what) {
  const auto digest = static_cast<uint32_t>(XXH3_64bits(what.data(), what.size()));
  const uint32_t tag = (number << kDigestBits) | (digest & ((1U << kDigestBits) - 1));
  return static_cast<int>(tag & (kPairTag - 1));
}

int PairTag(uint32_t number) { return static_cast<int>(kPairTag | (number & (kPairTag - 1))); }

// An Exchange sends this many bytes at once: the length and as much of the value as fits. Longer
// values follow in a second round.
constexpr int64_t kExchangeBytes = 512;
constexpr int64_t kMaxExchangeBytes = 64 << 20;

c10::intrusive_ptr<c10d::Work> NoWork() { return {}; }

class GlooGroup;

// One operation of the group: its transfers, each with the peer it is about.
class GlooPending : public Pending {
 public:
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    int peer = 0;  // group index
  };

  GlooPending(GlooGroup* group, std::string what) : group_(group), what_(std::move(what)) {}
  ~GlooPending() override;

  absl::Status Wait() override;

  void Add(c10::intrusive_ptr<c10d::Work> work, int peer) { transfers_.push_back({work, peer}); }
  void Then(std::function<void()> finish) { finish_ = std::move(finish); }
  void Fail(absl::Status failure) { failure_ = std::move(failure); }
  const std::vector<Transfer>& transfers() const { return transfers_; }
  const std::string& what() const { return what_; }

 private:
  GlooGroup* group_;
  std::string what_;
  absl::Status failure_;  // why it could not be issued
  std::vector<Transfer> transfers_;
  std::function<void()> finish_;  // runs once all data is here
  bool waited_ = false;
};

class GlooGroup : public Group {
 public:
  GlooGroup(GroupOptions options, c10::intrusive_ptr<c10d::ProcessGroupGloo> backend)
      : options_(std::move(options)),
        backend_(std::move(backend)),
        sent_(options_.ranks.size(), 0),
        received_(options_.ranks.size(), 0) {
    index_ =
        static_cast<int>(std::find(options_.ranks.begin(), options_.ranks.end(), options_.rank) -
                         options_.ranks.begin());
  }

  const GroupOptions& options() const override { return options_; }
  int64_t operations_issued() const override { return issued_; }

  std::unique_ptr<Pending> AllGather(const at::Tensor& shard, const at::Tensor& full,
                                     absl::string_view what) override {
    const int64_t n = shard.numel();
    TORCH_CHECK(full.numel() == n * size(), "all-gather of ", n, " elements into ", full.numel());
    return Issue(what, [&](GlooPending* pending) {
      const int tag = CollectiveTag(next_number_++, what);
      ForEachPeer([&](int to, int from) {
        pending->Add(Receive(full.narrow(0, from * n, n), from, tag), from);
        pending->Add(Send(shard, to, tag), to);
      });
      const at::Tensor own = full.narrow(0, index_ * n, n);
      if (own.data_ptr() != shard.data_ptr()) {
        std::memcpy(own.data_ptr(), shard.data_ptr(), shard.nbytes());
      }
    });
  }

  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& full, const at::Tensor& shard,
                                         absl::string_view what) override {
    const int64_t n = shard.numel();
    TORCH_CHECK(full.numel() == n * size(), "reduce-scatter of ", full.numel(), " into ", n);
    return Issue(what, [&](GlooPending* pending) {
      const int tag = CollectiveTag(next_number_++, what);
      at::Tensor parts = at::empty({std::max(size() - 1, 0), n}, full.options());
      std::vector<at::Tensor> by_member(size());
      by_member[index_] = full.narrow(0, index_ * n, n);
      int next = 0;
      ForEachPeer([&](int to, int from) {
        by_member[from] = parts.select(0, next++);
        pending->Add(Receive(by_member[from], from, tag), from);
        pending->Add(Send(full.narrow(0, to * n, n), to, tag), to);
      });
      // `full` is held by by_member and by the sends' works until the wait. Summing in group order
      // gives every rank of a layout the same bits in every run.
      pending->Then([by_member, shard] {
        if (by_member.size() == 1) {
          std::memcpy(shard.data_ptr(), by_member[0].data_ptr(), shard.nbytes());
          return;
        }
        at::Tensor sum = shard;
        at::add_out(sum, by_member[0], by_member[1]);
        for (size_t i = 2; i < by_member.size(); ++i) sum.add_(by_member[i]);
      });
    });
  }

  std::unique_ptr<Pending> Send(const at::Tensor& tensor, int peer,
                                absl::string_view what) override {
    return Issue(what, [&](GlooPending* pending) {
      pending->Add(Send(tensor, peer, PairTag(sent_[peer]++)), peer);
    });
  }

  std::unique_ptr<Pending> Recv(const at::Tensor& tensor, int peer,
                                absl::string_view what) override {
    return Issue(what, [&](GlooPending* pending) {
      pending->Add(Receive(tensor, peer, PairTag(received_[peer]++)), peer);
    });
  }

  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view mine,
                                                    absl::string_view what) override {
    if (static_cast<int64_t>(mine.size()) > kMaxExchangeBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": ", mine.size(), " bytes are more than an exchange may carry"));
    }
    const auto length = static_cast<int64_t>(mine.size());
    constexpr int64_t kInline = kExchangeBytes - static_cast<int64_t>(sizeof(int64_t));
    at::Tensor own = at::zeros({kExchangeBytes}, at::kByte);
    at::Tensor heads = at::empty({kExchangeBytes * size()}, at::kByte);
    auto* head = static_cast<char*>(own.data_ptr());
    std::memcpy(head, &length, sizeof(length));
    std::memcpy(head + sizeof(length), mine.data(), std::min(length, kInline));
    if (absl::Status status = AllGather(own, heads, what)->Wait(); !status.ok()) return status;

    std::vector<std::string> all(size());
    int64_t longest = 0;
    for (int i = 0; i < size(); ++i) {
      const char* from = static_cast<char*>(heads.data_ptr()) + i * kExchangeBytes;
      int64_t n = 0;
      std::memcpy(&n, from, sizeof(n));
      if (n < 0 || n > kMaxExchangeBytes) {
        return absl::InternalError(
            absl::StrCat(what, ": rank ", options_.ranks[i], " announced ", n, " bytes"));
      }
      all[i].assign(from + sizeof(n), std::min(n, kInline));
      all[i].resize(n);
      longest = std::max(longest, n);
    }
    if (longest <= kInline) return all;

    at::Tensor rest = at::zeros({longest - kInline}, at::kByte);
    if (length > kInline) std::memcpy(rest.data_ptr(), mine.data() + kInline, length - kInline);
    at::Tensor rests = at::empty({(longest - kInline) * size()}, at::kByte);
    if (absl::Status status = AllGather(rest, rests, what)->Wait(); !status.ok()) return status;
    for (int i = 0; i < size(); ++i) {
      const auto n = static_cast<int64_t>(all[i].size());
      if (n > kInline) {
        std::memcpy(all[i].data() + kInline,
                    static_cast<char*>(rests.data_ptr()) + i * (longest - kInline), n - kInline);
      }
    }
    return all;
  }

  void Abort(const absl::Status& reason) override {
    absl::MutexLock lock(&mutex_);
    AbortLocked(reason);
  }

  void SetTimeout(absl::Duration timeout) override { timeout_ = timeout; }

  absl::Status failure() const override {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

  // Waits for one operation; the first that fails fails the group.
  absl::Status Wait(GlooPending* pending) {
    const absl::Time deadline = absl::Now() + timeout_;
    for (const GlooPending::Transfer& transfer : pending->transfers()) {
      const absl::Status status = WaitTransfer(*pending, transfer, deadline);
      if (!status.ok()) {
        absl::MutexLock lock(&mutex_);
        AbortLocked(status);
        return failure_;
      }
    }
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

  void Forget(GlooPending* pending) {
    absl::MutexLock lock(&mutex_);
    outstanding_.remove(pending);
  }

 private:
  template <typename Body>
  void ForEachPeer(const Body& body) {
    for (int k = 1; k < size(); ++k) body((index_ + k) % size(), (index_ - k + size()) % size());
  }

  c10::intrusive_ptr<c10d::Work> Send(const at::Tensor& tensor, int peer, int tag) {
    if (tensor.numel() == 0) return NoWork();
    std::vector<at::Tensor> tensors{tensor};
    return backend_->send(tensors, peer, tag);
  }

  c10::intrusive_ptr<c10d::Work> Receive(const at::Tensor& tensor, int peer, int tag) {
    if (tensor.numel() == 0) return NoWork();
    std::vector<at::Tensor> tensors{tensor};
    return backend_->recv(tensors, peer, tag);
  }

  template <typename Body>
  std::unique_ptr<Pending> Issue(absl::string_view what, const Body& body) {
    auto pending = std::make_unique<GlooPending>(this, std::string(what));
    {
      absl::MutexLock lock(&mutex_);
      if (!failure_.ok()) {
        pending->Fail(failure_);
        return pending;
      }
    }
    ++issued_;
    ++issued_by_process;
    absl::Status status = CatchStatus(Who(*pending), [&] {
      body(pending.get());
      return absl::OkStatus();
    });
    absl::MutexLock lock(&mutex_);
    outstanding_.push_back(pending.get());  // from here on other threads see its transfers
    if (!status.ok()) AbortLocked(status);
    if (!failure_.ok()) AbortLocked(failure_);  // also after another thread's Abort meanwhile
    return pending;
  }

  std::string Who(const GlooPending& pending) const {
    return absl::StrCat("engine ", options_.engine, ", group ", options_.name, " of ranks ",
                        FormatRankList(options_.ranks), ", rank ", options_.rank, ": ",
                        pending.what());
  }

  absl::Status WaitTransfer(const GlooPending& pending, const GlooPending::Transfer& transfer,
                            absl::Time deadline) {
    if (transfer.work == nullptr) return absl::OkStatus();
    const absl::Duration left = std::max(deadline - absl::Now(), absl::Milliseconds(1));
    const std::string who =
        absl::StrCat(Who(pending), ", waiting for rank ", options_.ranks[transfer.peer]);
    return CatchStatus(who, [&] {
      if (transfer.work->wait(absl::ToChronoMilliseconds(left))) return absl::OkStatus();
      absl::MutexLock lock(&mutex_);
      return failure_.ok() ? absl::CancelledError(absl::StrCat(who, ": aborted")) : failure_;
    });
  }

  void AbortLocked(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failure_.ok()) failure_ = reason;
    for (GlooPending* pending : outstanding_) {
      for (const GlooPending::Transfer& transfer : pending->transfers()) {
        if (transfer.work != nullptr) transfer.work->abort();
      }
    }
  }

  const GroupOptions options_;
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;  // null for a group of one
  absl::Duration timeout_ = options_.timeout;
  uint32_t next_number_ = 0;        // of collectives
  std::vector<uint32_t> sent_;      // by peer
  std::vector<uint32_t> received_;  // by peer
  std::atomic<int64_t> issued_{0};

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first; final
  std::list<GlooPending*> outstanding_ ABSL_GUARDED_BY(mutex_);
};

GlooPending::~GlooPending() { group_->Forget(this); }

absl::Status GlooPending::Wait() {
  TORCH_INTERNAL_ASSERT(!waited_, "an operation is waited for once");
  waited_ = true;
  if (!failure_.ok()) return failure_;
  absl::Status status = group_->Wait(this);
  group_->Forget(this);
  if (status.ok() && finish_) finish_();
  return status;
}

}  // namespace

int64_t CollectivesIssued() { return issued_by_process; }

absl::StatusOr<std::unique_ptr<Group>> Group::Form(const GroupOptions& options,
                                                   const RendezvousAddress& rendezvous) {
  const auto position = std::find(options.ranks.begin(), options.ranks.end(), options.rank);
  if (position == options.ranks.end()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " is not in group ",
                                                   options.name, " of ranks ",
                                                   FormatRankList(options.ranks)));
  }
  const std::string what =
      absl::StrCat("engine ", options.engine, ": rank ", options.rank, " forms group ",
                   options.name, " of ranks ", FormatRankList(options.ranks));
  std::unique_ptr<Group> group;
  absl::Status status = CatchStatus(what, [&] {
    c10::intrusive_ptr<c10d::ProcessGroupGloo> backend;
    if (options.ranks.size() > 1) {
      c10d::TCPStoreOptions store_options;
      store_options.port = static_cast<std::uint16_t>(rendezvous.port);
      store_options.waitWorkers = false;
      store_options.timeout = absl::ToChronoMilliseconds(options.timeout);
      store_options.useLibUV = false;
      auto store = c10::make_intrusive<c10d::PrefixStore>(
          absl::StrCat(rendezvous.prefix, "/", options.name),
          c10::make_intrusive<c10d::TCPStore>(rendezvous.host, store_options));
      auto backend_options =
          c10d::ProcessGroupGloo::Options::create(absl::ToChronoMilliseconds(options.timeout));
      backend_options->threads = 1;  // they serve gloo's own collectives, which are not used
      backend_options->devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
      backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
          store, static_cast<int>(position - options.ranks.begin()),
          static_cast<int>(options.ranks.size()), backend_options);
    }
    group = std::make_unique<GlooGroup>(options, std::move(backend));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return group;
}

}  // namespace regroup
