// Moves of state between layouts: a relayout of a trainer, or a sync of its weights into an
// inference engine.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/allocator.h"
#include "daemon/worker/commands.h"
#include "daemon/worker/memory.h"
#include "daemon/worker/proto_convert.h"
#include "daemon/worker/spec_terms.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"

namespace regroup {
namespace {

int64_t TotalBytes(const MemoryUse& memory) {
  return memory.weights_bytes + memory.optimizer_bytes + memory.buffers_bytes;
}

absl::Status NoMove(int rank, uint64_t uid) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, ": no move of engine ", uid, " is prepared"));
}

absl::Status MoveBegan(int rank, uint64_t uid) {
  return absl::FailedPreconditionError(absl::StrCat("rank ", rank, ": the move of engine ", uid,
                                                    " has run; allowed: its commit or roll-back"));
}

// The bytes that the destination needs on this rank beside what is there.
int64_t NeededBytes(const PendingMove& move, const ParamTable& table) {
  const Layout& layout = move.options.destination;
  if (move.is_sync) return StateBytes(table, layout, 0);
  return StateBytes(table, layout, move.options.num_moments + (move.options.has_master ? 1 : 0)) +
         TrainerBufferBytes(table, layout);
}

}  // namespace

// The engine that the move starts from, as this rank has it: held, or as a guest.
absl::StatusOr<std::shared_ptr<HeldEngine>> Commands::SourceOfMove(const EngineSpec& source,
                                                                   const v1::PrepareMove& request) {
  if (source.layout.Contains(identity_.rank)) {
    auto engine = FormedTrainer(source.uid);
    if (engine.ok() && !((*engine)->spec.layout == source.layout)) {
      return absl::FailedPreconditionError(
          absl::StrCat("engine ", source.name, " on rank ", identity_.rank, " lies on ",
                       (*engine)->spec.layout.ToString(), ", not on ", source.layout.ToString()));
    }
    return engine;
  }
  std::shared_ptr<LoadedModel> model;
  std::vector<std::string> terms;
  if (request.kind() == v1::PrepareMove::KIND_SYNC) {
    const auto destination = FormedInference(request.destination_uid());
    if (!destination.ok()) return destination.status();
    model = (*destination)->model;
  } else {
    absl::StatusOr<LoadedModel> loaded = LoadModel(source.model, source.dtype, source.seed);
    if (!loaded.ok()) return loaded.status();
    terms = loaded->weights->ContentTerms();
    loaded->weights = nullptr;  // the weights come from the ranks that train
    model = std::make_shared<LoadedModel>(*std::move(loaded));
  }
  return std::make_shared<HeldEngine>(source, std::move(model), std::move(terms),
                                      /*is_guest=*/true);
}

absl::Status Commands::PrepareMove(uint64_t uid, const v1::PrepareMove& request,
                                   v1::PrepareMoveResult* result) {
  absl::StatusOr<EngineSpec> source = SpecFromProto(request.source(), uid);
  if (!source.ok()) return source.status();
  auto pending = std::make_unique<PendingMove>();
  pending->is_sync = request.kind() == v1::PrepareMove::KIND_SYNC;
  pending->destination_uid = request.destination_uid();
  pending->generation = request.generation();
  absl::StatusOr<Layout> destination = LayoutFromProto(
      request.destination_layout(), pending->is_sync ? Placement::kReplicate : Placement::kShard);
  if (!destination.ok()) return destination.status();
  MoveOptions& options = pending->options;
  options.source = source->layout;
  options.destination = *std::move(destination);
  options.num_moments = pending->is_sync ? 0 : source->optimizer.num_moments();
  if (request.staging_bytes() != 0) options.staging_bytes = request.staging_bytes();
  options.step = request.step();
  options.data_position = request.data_position();
  options.weights_version = request.weights_version();

  absl::StatusOr<std::shared_ptr<HeldEngine>> engine = SourceOfMove(*source, request);
  if (!engine.ok()) return engine.status();
  const ParamTable& table = (*engine)->table();
  options.has_master = !pending->is_sync && NeedsMaster(table.dtype());
  if (options.destination.Contains(identity_.rank)) {
    if (pending->is_sync) {
      const auto infer = FormedInference(pending->destination_uid);
      if (!infer.ok()) return infer.status();
      if ((*infer)->table().Describe() != table.Describe() ||
          (*infer)->model->model->Signature() != (*engine)->model->model->Signature()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "engines ", source->name, " and ", (*infer)->spec.name,
            " have other parameters, dtypes or configs; allowed: two engines of the same model and "
            "dtype"));
      }
    }
    const int64_t needed = NeededBytes(*pending, table);
    const int64_t available = AwaitMemoryBytes(needed);
    absl::Status admitted = AdmitMemory(absl::StrCat("engine ", source->name, " on rank ",
                                                     identity_.rank, ", beside its old layout,"),
                                        needed, available);
    if (!admitted.ok()) return admitted;
    result->set_needed_bytes(needed);
    result->set_available_bytes(available);
  }
  const std::shared_ptr<Trainer> trainer = (*engine)->trainer();
  absl::StatusOr<std::unique_ptr<Move>> move = Move::Prepare(
      table, options, identity_.rank, trainer == nullptr ? nullptr : &trainer->state());
  if (!move.ok()) return move.status();
  (*engine)->SetMove(*std::move(move));
  (*engine)->pending = std::move(pending);
  if ((*engine)->is_guest) table_->Put(uid, *engine);
  return absl::OkStatus();
}

absl::Status Commands::AgreeMove(uint64_t uid, const v1::AgreeMove& request) {
  const std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->pending == nullptr) return NoMove(identity_.rank, uid);
  PendingMove& pending = *engine->pending;
  if (pending.began) return MoveBegan(identity_.rank, uid);
  const Layout& destination = pending.options.destination;
  absl::StatusOr<std::unique_ptr<Group>> group =
      FormGroup(engine.get(), "move", UnionOfRanks(pending.options.source.ranks, destination.ranks),
                request.rendezvous());
  if (!group.ok()) return group.status();
  std::vector<std::string> terms = {
      absl::StrCat(pending.is_sync ? "sync" : "relayout", " of engine ", uid),
      absl::StrCat("generation ", pending.generation),
      absl::StrCat("computes ", engine->model->model->Signature())};
  absl::Status local;
  if (!pending.is_sync) {
    // Who holds the engine builds the new layout from its own spec, who does not from the
    // primary's.
    for (std::string& term : SettingsTerms(engine->spec)) terms.push_back(std::move(term));
    for (const std::string& term : engine->content_terms) {
      terms.push_back(absl::StrCat("content ", term));
    }
    if (destination.Contains(identity_.rank)) {
      absl::StatusOr<std::unique_ptr<Group>> partition =
          FormGroup(engine.get(), kDataParallelGroup, destination.ranks, request.rendezvous());
      local = partition.status();
      if (partition.ok()) pending.partition_group = *std::move(partition);
    }
  }
  {
    AbortHook hook(engine.get(), [&](const absl::Status& reason) { (*group)->Abort(reason); });
    if (absl::Status status = Agree(**group, "agree", terms, local); !status.ok()) return status;
  }
  absl::Status status = engine->move()->Agree(*std::move(group));
  if (status.ok()) table_->SetRendezvous(uid, nullptr);  // all members have met
  return status;
}

// Builds what the commit will swap in, while a failure can be rolled back.
absl::Status Commands::StageState(PendingMove* pending, const HeldEngine& source,
                                  EngineState state) {
  if (pending->is_sync) {
    const auto replica = FormedInference(pending->destination_uid);
    if (!replica.ok()) return replica.status();
    absl::StatusOr<std::unique_ptr<InferenceEngine>> inference =
        InferenceEngine::Make((*replica)->model->model.get(), std::move(state));
    if (!inference.ok()) return inference.status();
    pending->inference = *std::move(inference);
    return absl::OkStatus();
  }
  EngineSpec spec = source.spec;
  spec.layout = pending->options.destination;
  auto next = std::make_shared<HeldEngine>(std::move(spec), source.model, source.content_terms);
  absl::Status status =
      BuildEngine(next.get(), std::move(state), std::move(pending->partition_group));
  if (!status.ok()) return status;
  next->data = source.data;
  next->batch = source.batch;
  next->accumulate = source.accumulate;
  pending->next = std::move(next);
  return absl::OkStatus();
}

absl::Status Commands::RunMove(uint64_t uid, v1::RunMoveResult* result) {
  const std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->pending == nullptr) return NoMove(identity_.rank, uid);
  PendingMove& pending = *engine->pending;
  if (std::exchange(pending.began, true)) return MoveBegan(identity_.rank, uid);
  const std::shared_ptr<HeldEngine> replica =
      pending.is_sync ? table_->Find(pending.destination_uid) : nullptr;
  const absl::StatusOr<MoveResult> moved = engine->move()->Run([&](int64_t done, int64_t total) {
    engine->bytes_total = total;
    engine->bytes_done = done;
  });
  if (!moved.ok()) return moved.status();
  int64_t peak = TotalBytes(engine->memory());
  if (replica != nullptr) peak += TotalBytes(replica->memory());
  std::optional<EngineState> state = engine->move()->TakeState();
  if (state.has_value()) {
    peak += WeightsBytes(*state) + OptimizerBytes(*state);
    absl::Status status = StageState(&pending, *engine, *std::move(state));
    if (!status.ok()) return status;
  }
  pending.verified = true;
  result->set_bytes_sent(moved->bytes_sent);
  result->set_bytes_received(moved->bytes_received);
  result->set_bytes_kept(moved->bytes_kept);
  result->set_peak_bytes(peak);
  return absl::OkStatus();
}

// Said again, it finds nothing to do.
absl::Status Commands::CommitMove(uint64_t uid) {
  std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->pending == nullptr) return absl::OkStatus();
  PendingMove& pending = *engine->pending;
  if (!pending.verified) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", identity_.rank, ": the move of engine ", engine->spec.name, " is not verified"));
  }
  if (pending.is_sync) {
    if (pending.inference != nullptr) {
      // A replica that was dropped in the meantime needs no weights; the source goes on anyway.
      const auto replica = FormedInference(pending.destination_uid);
      if (replica.ok()) {
        MemoryUse memory = (*replica)->memory();
        memory.weights_bytes = WeightsBytes(pending.inference->state());
        memory.peak_bytes = std::max(memory.peak_bytes, TotalBytes(memory) + memory.weights_bytes);
        memory.buffers_bytes = 0;  // a generation under way ends with the old weights
        (*replica)->inference = std::move(pending.inference);
        (*replica)->SetMemory(memory);
      }
    }
    engine->SetMove(nullptr);
    engine->pending = nullptr;
    if (engine->is_guest) table_->Erase(uid);
  } else if (pending.next != nullptr) {
    table_->Put(uid, std::move(pending.next));
  } else {
    table_->Erase(uid);
  }
  table_->SetRendezvous(uid, nullptr);
  return absl::OkStatus();
}

absl::Status Commands::RollBackMove(uint64_t uid) {
  table_->SetRendezvous(uid, nullptr);
  std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->pending == nullptr) return absl::OkStatus();
  engine->SetMove(nullptr);
  engine->pending = nullptr;
  if (engine->is_guest) table_->Erase(uid);
  engine = nullptr;
  ReleaseFreedMemory();
  return absl::OkStatus();
}

}  // namespace regroup
