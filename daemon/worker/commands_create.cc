// Engines come and go: prepare, form, drop.
#include <xxhash.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/worker/allocator.h"
#include "daemon/worker/commands.h"
#include "daemon/worker/memory.h"
#include "daemon/worker/proto_convert.h"
#include "daemon/worker/spec_terms.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"

namespace regroup {
namespace {

// A folder may have another path on another machine: what it holds is what counts.
std::string ModelTerm(const std::string& model) {
  if (absl::StartsWith(model, "mlp:")) return absl::StrCat("model ", model);
  return absl::StartsWith(model, "random:") ? "model random:" : "model of a folder";
}

// Everything that ranks of an engine must mean alike, a value a line.
std::vector<std::string> Terms(const HeldEngine& engine) {
  const EngineSpec& spec = engine.spec;
  std::vector<std::string> terms = {
      absl::StrCat("engine ", spec.name, " uid ", spec.uid),
      ModelTerm(spec.model),
      absl::StrCat("role ", spec.role == Role::kTrain ? "train" : "infer"),
      absl::StrCat("layout ", spec.layout.ToString()),
      absl::StrCat("recompute ", static_cast<int>(spec.recompute)),
      absl::StrCat("seed ", spec.seed),
      absl::StrCat("computes ", engine.model->model->Signature()),
  };
  for (const std::string& term : engine.content_terms) {
    terms.push_back(absl::StrCat("content ", term));
  }
  for (std::string& term : SettingsTerms(spec)) terms.push_back(std::move(term));
  for (std::string& line : engine.table().Describe()) terms.push_back(std::move(line));
  return terms;
}

// What has to be alike for weights to go from one engine to another and mean the same there: not
// where they came from.
std::string Fingerprint(const Model& model) {
  const std::string text =
      absl::StrCat(absl::StrJoin(model.table().Describe(), "\n"), "\n", model.Signature());
  const XXH128_hash_t digest = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", digest.high64, digest.low64);
}

int64_t NeededBytes(const EngineSpec& spec, const ParamTable& table) {
  if (spec.role == Role::kInfer) return StateBytes(table, spec.layout, 0);
  return StateBytes(table, spec.layout, TrainerTensors(table, spec.optimizer)) +
         TrainerBufferBytes(table, spec.layout);
}

}  // namespace

absl::Status Commands::PrepareEngine(uint64_t uid, const v1::PrepareEngine& request,
                                     v1::PrepareEngineResult* result) {
  absl::StatusOr<EngineSpec> spec = SpecFromProto(request.spec(), uid);
  if (!spec.ok()) return spec.status();
  if (!spec->layout.Contains(identity_.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", identity_.rank, " is not one of the ",
                                                   spec->layout.ToString(), " of engine ",
                                                   spec->name));
  }
  if (const auto held = table_->Find(uid); held != nullptr && held->formed()) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", identity_.rank, " already holds engine ", uid));
  }
  absl::StatusOr<LoadedModel> loaded = LoadModel(spec->model, spec->dtype, spec->seed);
  if (!loaded.ok()) return loaded.status();
  auto model = std::make_shared<LoadedModel>(*std::move(loaded));
  const ParamTable& table = model->model->table();
  const int64_t needed = NeededBytes(*spec, table);
  const int64_t available = AwaitMemoryBytes(needed);
  if (absl::Status status = AdmitMemory(
          absl::StrCat("engine ", spec->name, " on rank ", identity_.rank), needed, available);
      !status.ok()) {
    return status;
  }
  std::vector<std::string> terms = model->weights->ContentTerms();
  auto engine = std::make_shared<HeldEngine>(*std::move(spec), std::move(model), std::move(terms));
  result->set_needed_bytes(needed);
  result->set_available_bytes(available);
  result->set_parameters(table.total_numel());
  result->set_units(static_cast<int64_t>(table.units().size()));
  result->set_dtype(DTypeToProto(table.dtype()));
  result->set_fingerprint(Fingerprint(*engine->model->model));
  table_->Put(uid, std::move(engine));
  return absl::OkStatus();
}

absl::Status Commands::FormEngine(uint64_t uid, const v1::FormEngine& request,
                                  v1::FormEngineResult* result) {
  const std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  const bool prepared = engine != nullptr && !engine->is_guest;
  if (!prepared || engine->formed()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", identity_.rank, ": engine ", uid,
                     prepared ? " is formed already" : " is not prepared"));
  }
  const EngineSpec& spec = engine->spec;
  if (engine->model->weights == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", identity_.rank, ": engine ", spec.name,
                     " could not be built and can only be deleted"));
  }
  absl::StatusOr<std::unique_ptr<Group>> group =
      FormGroup(engine.get(), kDataParallelGroup, spec.layout.ranks, request.rendezvous());
  if (!group.ok()) return group.status();
  EngineState state;
  {
    AbortHook hook(engine.get(), [&](const absl::Status& reason) { (*group)->Abort(reason); });
    if (absl::Status status = Agree(**group, "create", Terms(*engine)); !status.ok()) return status;
    absl::Status local = CatchStatus(absl::StrCat("rank ", identity_.rank, " loads weights"), [&] {
      const bool trains = spec.role == Role::kTrain;
      state = MakeState(engine->table(), spec.layout, identity_.rank,
                        trains ? spec.optimizer.num_moments() : 0,
                        trains && NeedsMaster(engine->table().dtype()));
      int64_t elements = 0;
      for (const UnitState& unit : state.units) elements += unit.interval.size();
      engine->bytes_total = elements * DTypeBytes(engine->table().dtype());
      return LoadWeights(engine->table(), *engine->model->weights, &state, [&](int64_t bytes) {
        engine->bytes_done = bytes;
        return engine->aborted();
      });
    });
    if (absl::Status status = Agree(**group, "load", {}, local); !status.ok()) return status;
  }
  table_->SetRendezvous(uid, nullptr);  // all members have met
  engine->model->weights = nullptr;     // closes the files
  if (absl::Status status = BuildEngine(engine.get(), std::move(state), *std::move(group));
      !status.ok()) {
    return status;
  }
  *result->add_groups() = GroupToProto(engine->table(), spec.layout);
  return absl::OkStatus();
}

absl::Status Commands::BuildEngine(HeldEngine* engine, EngineState state,
                                   std::unique_ptr<Group> group) {
  const Model* model = engine->model->model.get();
  if (engine->spec.role == Role::kTrain) {
    absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        Trainer::Make(engine->spec, model, std::move(state), std::move(group));
    if (!trainer.ok()) return trainer.status();
    engine->SetTrainer(*std::move(trainer));
    return absl::OkStatus();
  }
  MemoryUse memory;
  memory.weights_bytes = memory.peak_bytes = WeightsBytes(state);
  absl::StatusOr<std::unique_ptr<InferenceEngine>> inference =
      InferenceEngine::Make(model, std::move(state));
  if (!inference.ok()) return inference.status();
  engine->inference = *std::move(inference);
  engine->creation_group = std::move(group);
  engine->SetMemory(memory);
  return absl::OkStatus();
}

absl::Status Commands::SetSettings(HeldEngine* engine, const v1::SetSettings& request) {
  const absl::StatusOr<EngineSettings> settings = SettingsFromProto(request);
  if (!settings.ok()) return settings.status();
  if (const auto trainer = engine->trainer(); trainer != nullptr) {
    if (absl::Status status = trainer->Set(*settings); !status.ok()) return status;
    engine->spec.optimizer.learning_rate = settings->learning_rate;
  }
  engine->spec.checks = settings->checks;
  engine->spec.timeout = settings->timeout;
  return absl::OkStatus();
}

absl::Status Commands::DropEngine(uint64_t uid) {
  table_->SetRendezvous(uid, nullptr);
  const bool held = table_->Find(uid) != nullptr;
  table_->Erase(uid);
  if (held) ReleaseFreedMemory();  // a rank that a move has left is told again
  return absl::OkStatus();
}

}  // namespace regroup
