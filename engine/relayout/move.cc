#include "engine/relayout/move.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"
#include "engine/relayout/loss_scale_agreement.h"
#include "engine/relayout/peer_memory.h"

namespace regroup {
namespace {

// All members meet after this many staging bounds of one rank's traffic (1 GiB by default), so that
// who has nothing left to do never waits for longer than that takes: the time limit of a wait does
// not depend on the size of the model.
constexpr int64_t kStagingsInSegment = 16;

// So many copies fit into the staging bound, half of them on their way out and half on their way
// in.
constexpr int64_t kCopiesInStaging = 4;

// Slots are what a unit's state consists of: weights, then moments, last the master copy.
std::string SlotName(const MoveOptions& options, size_t slot) {
  if (slot == 0) return "weights";
  if (slot > static_cast<size_t>(options.num_moments)) return "master weights";
  return absl::StrCat("optimizer moment ", slot);
}

int FloatSlots(const MoveOptions& options) {
  return options.num_moments + (options.has_master ? 1 : 0);
}

int64_t DigestOf(const at::Tensor& part) {
  return static_cast<int64_t>(XXH3_64bits(part.data_ptr(), part.nbytes()));
}

class PlannedMove : public Move {
 public:
  PlannedMove(const ParamTable& table, const MoveOptions& options, int rank,
              const EngineState* source)
      : table_(table),
        options_(options),
        rank_(rank),
        source_(source),
        slots_(1 + static_cast<size_t>(FloatSlots(options))),
        bytes_per_element_(DTypeBytes(table.dtype()) + int64_t{4} * FloatSlots(options)) {
    const int64_t elements = options.staging_bytes / kCopiesInStaging / bytes_per_element_;
    plan_ = PlanMove(table, options.source, options.destination,
                     std::max(elements / kShardAlignment * kShardAlignment, kShardAlignment));
    if (options.destination.Contains(rank)) {
      destination_ = MakeUnfilledState(table, options.destination, rank, options.num_moments,
                                       options.has_master);
      destination_->step = options.step;
      destination_->data_position = options.data_position;
      destination_->weights_version = options.weights_version;
    }
    for (const Copy& copy : plan_.copies) {
      if (copy.to == rank) total_bytes_ += BytesOf(copy);
    }
  }

  absl::Status Agree(std::unique_ptr<Group> group) override {
    std::vector<std::string> values = table_.Describe();
    values.push_back(absl::StrCat("from ", options_.source.ToString()));
    values.push_back(absl::StrCat("to ", options_.destination.ToString()));
    values.push_back(absl::StrFormat("plan %016x", plan_.Digest()));
    // A source rank says what it really holds.
    const bool sends = source_ != nullptr;
    values.push_back(absl::StrCat("step ", sends ? source_->step : options_.step));
    values.push_back(
        absl::StrCat("data position ", sends ? source_->data_position : options_.data_position));
    values.push_back(absl::StrCat("weights version ",
                                  sends ? source_->weights_version : options_.weights_version));
    values.push_back(absl::StrCat("moments ", options_.num_moments, ", master ",
                                  static_cast<int>(options_.has_master)));
    values.push_back(absl::StrCat("reads memory ", static_cast<int>(options_.reads_memory)));
    Group* used = group.get();
    {
      absl::MutexLock lock(&mutex_);
      group_ = std::move(group);
      if (!aborted_.ok()) used->Abort(aborted_);
    }
    for (int index = 0; index < used->size(); ++index) {
      index_of_[used->options().ranks[index]] = index;
    }
    absl::Status status = ::regroup::Agree(*used, "agree", values);
    if (!status.ok()) return status;
    if (options_.reads_memory) {
      absl::StatusOr<PeerMemory> memory = PeerMemory::Meet(*used);
      if (!memory.ok()) return memory.status();
      memory_ = *std::move(memory);
    }
    if (!options_.has_master || table_.dtype() != DType::kFp16) return absl::OkStatus();
    absl::StatusOr<std::optional<LossScale>> scale =
        AgreeOnLossScale(*used, sends ? source_->loss_scale : std::optional<LossScale>());
    if (!scale.ok()) return scale.status();
    if (destination_.has_value()) destination_->loss_scale = *scale;
    return absl::OkStatus();
  }

  absl::StatusOr<MoveResult> Run(const std::function<void(int64_t, int64_t)>& progress) override {
    if (index_of_.empty()) return absl::FailedPreconditionError("a move runs after its agreement");
    const std::vector<size_t> cuts = Segments();
    size_t begin = 0;
    for (size_t cut : cuts) {
      if (absl::Status status = RunSegment(begin, cut, progress); !status.ok()) {
        group()->Abort(status);
        return status;
      }
      // Only together do the members know that nothing was lost on the way.
      absl::Status status =
          ::regroup::Agree(*group(), cut == plan_.copies.size() ? "verify" : "move", {}, damage_);
      if (!status.ok()) return status;
      begin = cut;
    }
    complete_ = true;
    return result_;
  }

  std::optional<EngineState> TakeState() override {
    if (!complete_) return std::nullopt;
    return std::exchange(destination_, std::nullopt);
  }

  void Abort(const absl::Status& reason) override {
    absl::MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = reason;
    if (group_ != nullptr) group_->Abort(reason);
  }

 private:
  // One copy on its way: the transfers of its slots (or of where they lie, for a receiver that
  // reads them there), and of their digests.
  struct Flight {
    const Copy* copy = nullptr;
    bool receives = false;
    std::vector<std::unique_ptr<Pending>> data;
    // int64 [slots], where they lie; defined if the receiver reads them there.
    at::Tensor addresses;
    std::unique_ptr<Pending> digests_transfer;
    at::Tensor digests;  // int64 [slots]
  };

  // One direction of this rank's traffic: what is still to be issued, in plan order.
  struct Queue {
    bool receives = false;
    std::vector<const Copy*> copies;
    size_t next = 0;
    int64_t in_flight_bytes = 0;
  };

  Group* group() {
    absl::MutexLock lock(&mutex_);
    return group_.get();
  }

  // The elements of a unit's flat buffer as they lie in this rank's tensor of the slot.
  at::Tensor Part(const UnitState& unit, size_t slot, const Interval& interval) const {
    const auto moments = static_cast<size_t>(options_.num_moments);
    const at::Tensor& whole = slot == 0         ? unit.weights
                              : slot <= moments ? unit.moments[slot - 1]
                                                : unit.master;
    return whole.narrow(0, interval.begin - unit.interval.begin, interval.size());
  }

  int64_t BytesOf(const Copy& copy) const { return copy.interval.size() * bytes_per_element_; }

  // Ends of pieces of the plan after which all members meet; the same on all of them.
  std::vector<size_t> Segments() const {
    std::vector<size_t> cuts;
    absl::flat_hash_map<int, int64_t> traffic;  // by rank, since the last cut
    for (size_t i = 0; i < plan_.copies.size(); ++i) {
      const Copy& copy = plan_.copies[i];
      const int64_t received = traffic[copy.to] += BytesOf(copy);
      const int64_t sent = copy.from == copy.to ? 0 : traffic[copy.from] += BytesOf(copy);
      if (std::max(received, sent) >= kStagingsInSegment * options_.staging_bytes &&
          i + 1 < plan_.copies.size()) {
        cuts.push_back(i + 1);
        traffic.clear();
      }
    }
    cuts.push_back(plan_.copies.size());
    return cuts;
  }

  // [Note: no deadlock] Each rank issues its sends and its receives in plan order, each direction
  // within half of the staging bound (one copy always fits), and waits for the oldest of what it
  // issued. Take the first copy of the plan that is not complete: on both of its ranks everything
  // older is complete, so both have issued it, and it completes.
  absl::Status RunSegment(size_t begin, size_t end,
                          const std::function<void(int64_t, int64_t)>& progress) {
    Queue receives;
    receives.receives = true;
    Queue sends;
    std::vector<const Copy*> kept;
    for (size_t i = begin; i < end; ++i) {
      const Copy* copy = &plan_.copies[i];
      if (copy->from == rank_ && copy->to == rank_) {
        kept.push_back(copy);
      } else if (copy->to == rank_) {
        receives.copies.push_back(copy);
      } else if (copy->from == rank_) {
        sends.copies.push_back(copy);
      }
    }
    std::deque<Flight> flights;  // in plan order
    size_t next_kept = 0;
    while (true) {
      Issue(&receives, &flights);
      Issue(&sends, &flights);
      // Local placing fills the time that the first transfers need.
      if (next_kept < kept.size()) {
        Place(*kept[next_kept++]);
      } else if (!flights.empty()) {
        Flight flight = std::move(flights.front());
        flights.pop_front();
        if (absl::Status status = Finish(&flight); !status.ok()) {
          group()->Abort(status);  // before the transfers that are under way are dropped
          return status;
        }
        (flight.receives ? receives : sends).in_flight_bytes -= BytesOf(*flight.copy);
      } else {
        return absl::OkStatus();
      }
      if (progress) progress(result_.bytes_received + result_.bytes_kept, total_bytes_);
    }
  }

  void Issue(Queue* queue, std::deque<Flight>* flights) {
    while (queue->next < queue->copies.size()) {
      const Copy& copy = *queue->copies[queue->next];
      const int64_t bytes = BytesOf(copy);
      if (queue->in_flight_bytes > 0 &&
          queue->in_flight_bytes + bytes > options_.staging_bytes / 2) {
        return;
      }
      Flight flight = queue->receives ? Receive(copy) : Send(copy);
      const auto later = std::upper_bound(
          flights->begin(), flights->end(), flight.copy,
          [](const Copy* value, const Flight& other) { return value < other.copy; });
      flights->insert(later, std::move(flight));
      queue->in_flight_bytes += bytes;
      ++queue->next;
    }
  }

  std::string Describe(const Copy& copy) const {
    return absl::StrCat("move ", table_.unit(copy.unit).name, " elements ", copy.interval.begin,
                        " to ", copy.interval.end, " from rank ", copy.from, " to rank ", copy.to);
  }

  Flight MakeFlight(const Copy& copy, bool receives) const {
    Flight flight;
    flight.copy = &copy;
    flight.receives = receives;
    flight.digests = at::empty({static_cast<int64_t>(slots_)}, at::kLong);
    if (memory_.CanRead(index_of_.at(copy.to), index_of_.at(copy.from))) {
      flight.addresses = at::empty_like(flight.digests);
    }
    return flight;
  }

  Flight Receive(const Copy& copy) {
    Flight flight = MakeFlight(copy, true);
    const std::string what = Describe(copy);
    const int peer = index_of_.at(copy.from);
    if (flight.addresses.defined()) {
      flight.data.push_back(group()->Recv(flight.addresses, peer, what));
    } else {
      for (size_t slot = 0; slot < slots_; ++slot) {
        flight.data.push_back(
            group()->Recv(Part(destination_->units[copy.unit], slot, copy.interval), peer, what));
      }
    }
    flight.digests_transfer = group()->Recv(flight.digests, peer, what);
    return flight;
  }

  // What is read stays unchanged until all members have met after it.
  Flight Send(const Copy& copy) {
    Flight flight = MakeFlight(copy, false);
    const std::string what = Describe(copy);
    const int peer = index_of_.at(copy.to);
    std::vector<at::Tensor> parts;
    for (size_t slot = 0; slot < slots_; ++slot) {
      parts.push_back(Part(source_->units[copy.unit], slot, copy.interval));
      if (flight.addresses.defined()) {
        flight.addresses.data_ptr<int64_t>()[slot] =
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(parts.back().data_ptr()));
      } else {
        flight.data.push_back(group()->Send(parts.back(), peer, what));
      }
    }
    if (flight.addresses.defined())
      flight.data.push_back(group()->Send(flight.addresses, peer, what));
    auto* digests = flight.digests.data_ptr<int64_t>();
    for (size_t slot = 0; slot < slots_; ++slot) digests[slot] = DigestOf(parts[slot]);
    flight.digests_transfer = group()->Send(flight.digests, peer, what);
    return flight;
  }

  // Brings a slot of a received copy into place, if it is not there yet, and digests what is there.
  absl::StatusOr<int64_t> Arrive(const Flight& flight, size_t slot) {
    const Copy& copy = *flight.copy;
    const at::Tensor part = Part(destination_->units[copy.unit], slot, copy.interval);
    if (!flight.addresses.defined()) return DigestOf(part);
    // Small pieces are still in the cache when they are digested.
    constexpr size_t kPiece = 256 << 10;
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(),
                                                                          &XXH3_freeState);
    XXH3_64bits_reset(digest.get());
    const std::string what = Describe(copy);
    const int owner = index_of_.at(copy.from);
    const auto address = static_cast<uint64_t>(flight.addresses.data_ptr<int64_t>()[slot]);
    auto* to = static_cast<char*>(part.data_ptr());
    for (size_t done = 0; done < part.nbytes(); done += kPiece) {
      const size_t size = std::min(kPiece, part.nbytes() - done);
      absl::Status status = memory_.Read(owner, address + done, to + done, size, what);
      if (!status.ok()) return status;
      XXH3_64bits_update(digest.get(), to + done, size);
    }
    return static_cast<int64_t>(XXH3_64bits_digest(digest.get()));
  }

  absl::Status Finish(Flight* flight) {
    for (std::unique_ptr<Pending>& pending : flight->data) {
      if (absl::Status status = pending->Wait(); !status.ok()) return status;
    }
    const Copy& copy = *flight->copy;
    std::vector<int64_t> arrived;
    for (size_t slot = 0; flight->receives && slot < slots_; ++slot) {
      const absl::StatusOr<int64_t> digest = Arrive(*flight, slot);
      if (!digest.ok()) return digest.status();
      arrived.push_back(*digest);
    }
    if (absl::Status status = flight->digests_transfer->Wait(); !status.ok()) return status;
    (flight->receives ? result_.bytes_received : result_.bytes_sent) += BytesOf(copy);
    const auto* sent = flight->digests.data_ptr<int64_t>();
    for (size_t slot = 0; slot < arrived.size(); ++slot) {
      if (arrived[slot] == sent[slot] || !damage_.ok()) continue;
      // Kept until the members meet: who stopped here would let the others run into their time
      // limits.
      damage_ =
          WithReason(absl::DataLossError(absl::StrFormat(
                         "%s: the %s that arrived are not what was sent (digest %016x, sent %016x)",
                         Describe(copy), SlotName(options_, slot),
                         static_cast<uint64_t>(arrived[slot]), static_cast<uint64_t>(sent[slot]))),
                     "DATA");
    }
    return absl::OkStatus();
  }

  void Place(const Copy& copy) {
    for (size_t slot = 0; slot < slots_; ++slot) {
      const at::Tensor from = Part(source_->units[copy.unit], slot, copy.interval);
      const at::Tensor to = Part(destination_->units[copy.unit], slot, copy.interval);
      std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    }
    result_.bytes_kept += BytesOf(copy);
  }

  const ParamTable table_;
  const MoveOptions options_;
  const int rank_;
  const EngineState* const source_;  // null outside the source layout
  const size_t slots_;               // weights, moments, master copy
  const int64_t bytes_per_element_;  // of all slots
  MovePlan plan_;
  std::optional<EngineState> destination_;
  int64_t total_bytes_ = 0;                 // that this rank receives or places
  absl::flat_hash_map<int, int> index_of_;  // rank -> index in the move's group
  PeerMemory memory_;
  MoveResult result_;
  absl::Status damage_;  // the first copy that did not arrive as it was sent
  bool complete_ = false;

  absl::Mutex mutex_;
  std::unique_ptr<Group> group_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

absl::Status CheckOptions(const ParamTable& table, const MoveOptions& options, int rank,
                          const EngineState* source) {
  if (options.staging_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--staging-mb: ", options.staging_bytes, " bytes; allowed: more than 0"));
  }
  const bool sends = options.source.Contains(rank);
  if (!sends && !options.destination.Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " takes no part in a move from ",
                                                   options.source.ToString(), " to ",
                                                   options.destination.ToString()));
  }
  if (sends != (source != nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, sends ? " has no state of " : " has state, but is not of ",
                     options.source.ToString()));
  }
  if (!sends) return absl::OkStatus();
  if (!(source->layout == options.source) || source->units.size() != table.units().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " holds ", source->units.size(), " units on ", source->layout.ToString(),
        "; the move is of ", table.units().size(), " units from ", options.source.ToString()));
  }
  for (const UnitState& unit : source->units) {
    if (static_cast<int>(unit.moments.size()) < options.num_moments) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " holds ", unit.moments.size(),
                                                     " moments, the move is of ",
                                                     options.num_moments));
    }
    if (options.has_master && !unit.master.defined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " holds no master weights, the move is of them too"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Move>> Move::Prepare(const ParamTable& table,
                                                    const MoveOptions& options, int rank,
                                                    const EngineState* source) {
  if (absl::Status status = CheckOptions(table, options, rank, source); !status.ok()) {
    return status;
  }
  std::unique_ptr<Move> move;
  absl::Status status = CatchStatus(
      absl::StrCat("rank ", rank, " prepares a move to ", options.destination.ToString()), [&] {
        move = std::make_unique<PlannedMove>(table, options, rank, source);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return move;
}

}  // namespace regroup
