#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/human.h"
#include "client/layout_flags.h"
#include "client/operation_view.h"
#include "client/picture.h"
#include "proto/error_detail.h"

namespace regroup {
namespace {

// Texts as given; "" = not given.
struct CreateOptions {
  std::string name, model, role = "train", dtype;
  LayoutTexts layout;
  std::string optimizer, lr, momentum, beta1, beta2, eps, weight_decay, clip_norm;
  std::string seed = "0", checks = "basic", timeout = "30s";
  std::vector<std::string> shard_over;
  bool recompute = false, dry_run = false, no_wait = false;
  std::string offload, hpz;
  bool quantize_gather = false;
};

// A flag that would have no effect is an error, not a surprise.
void RefuseIfGiven(const std::string& flag, const std::string& text, const std::string& only_for,
                   FlagReader* flags) {
  if (text.empty()) return;
  flags->Fail(UsageError(absl::StrCat(flag, "=", text, ": only for ", only_for)));
}

void ReadOptimizer(const CreateOptions& o, FlagReader* flags, v1::OptimizerSpec* optimizer) {
  const auto or_default = [](const std::string& text, const char* value) {
    return text.empty() ? std::string(value) : text;
  };
  const std::string name =
      flags->Choice<std::string>("--optimizer", or_default(o.optimizer, "adamw"),
                                 {{"sgd", "sgd"}, {"adam", "adam"}, {"adamw", "adamw"}});
  if (o.lr.empty()) {
    flags->Fail(UsageError("--lr is required for --role=train: a finite number, above 0"));
    return;
  }
  optimizer->set_name(name);
  optimizer->set_learning_rate(flags->Number("--lr", o.lr, kPositive));
  optimizer->set_weight_decay(flags->Number(
      "--weight-decay", or_default(o.weight_decay, name == "adamw" ? "0.01" : "0"), kNotNegative));
  if (name == "sgd") {
    optimizer->set_momentum(flags->Number("--momentum", or_default(o.momentum, "0"), kNotNegative));
    RefuseIfGiven("--beta1", o.beta1, "--optimizer=adam and adamw", flags);
    RefuseIfGiven("--beta2", o.beta2, "--optimizer=adam and adamw", flags);
    RefuseIfGiven("--eps", o.eps, "--optimizer=adam and adamw", flags);
    return;
  }
  RefuseIfGiven("--momentum", o.momentum, "--optimizer=sgd", flags);
  optimizer->set_beta1(flags->Number("--beta1", or_default(o.beta1, "0.9"), kBelowOne));
  optimizer->set_beta2(flags->Number("--beta2", or_default(o.beta2, "0.999"), kBelowOne));
  optimizer->set_eps(flags->Number("--eps", or_default(o.eps, "1e-8"), kPositive));
}

void ReadTraining(const CreateOptions& o, FlagReader* flags, v1::EngineSpec* spec) {
  if (spec->role() == v1::ROLE_TRAIN) {
    ReadOptimizer(o, flags, spec->mutable_optimizer());
    spec->set_recompute(o.recompute);
    if (!o.clip_norm.empty())
      spec->set_clip_norm(flags->Number("--clip-norm", o.clip_norm, kNotNegative));
    return;
  }
  const std::pair<const char*, const std::string*> training[] = {
      {"--optimizer", &o.optimizer},
      {"--lr", &o.lr},
      {"--momentum", &o.momentum},
      {"--beta1", &o.beta1},
      {"--beta2", &o.beta2},
      {"--eps", &o.eps},
      {"--weight-decay", &o.weight_decay},
      {"--clip-norm", &o.clip_norm}};
  for (const auto& [flag, text] : training) RefuseIfGiven(flag, *text, "--role=train", flags);
  if (o.recompute) flags->Fail(UsageError("--recompute: only for --role=train"));
}

// Flags whose place in the protocol is still to come: their values are read, then they are refused
// here.
absl::Status ReadLaterFlags(const CreateOptions& o, FlagReader* flags) {
  const bool nvme = absl::StartsWith(o.offload, "nvme:") && o.offload.size() > 5;
  if (!o.offload.empty() && o.offload != "none" && o.offload != "cpu" && !nvme) {
    flags->Wrong("--offload", o.offload, "none, cpu or nvme:DIR");
  }
  if (!o.hpz.empty()) flags->Int("--hpz", o.hpz, 1, kMaxAxis);
  if (!o.offload.empty() && o.offload != "none") return NotAvailable("--offload");
  if (!o.hpz.empty()) return NotAvailable("--hpz");
  if (o.quantize_gather) return NotAvailable("--quantize-gather");
  return absl::OkStatus();
}

absl::Status RunCreate(const CreateOptions& o, Session* session) {
  FlagReader flags;
  v1::CreateEngineRequest request;
  v1::EngineSpec* spec = request.mutable_spec();
  spec->set_name(flags.Name("NAME", o.name));
  spec->set_model(flags.ModelSpec("--model", o.model));
  spec->set_role(flags.Choice<v1::Role>("--role", o.role,
                                        {{"train", v1::ROLE_TRAIN}, {"infer", v1::ROLE_INFER}}));
  if (!o.dtype.empty()) {
    spec->set_dtype(flags.Choice<v1::DType>(
        "--dtype", o.dtype,
        {{"fp32", v1::DTYPE_FP32}, {"bf16", v1::DTYPE_BF16}, {"fp16", v1::DTYPE_FP16}}));
  }
  ReadLayout(o.layout, &flags, spec->mutable_layout());
  ReadTraining(o, &flags, spec);
  spec->set_seed(flags.Seed("--seed", o.seed));
  spec->set_checks(ReadChecks(o.checks, &flags));
  SetDuration(flags.Timeout("--timeout", o.timeout), spec->mutable_timeout());
  for (const std::string& text : o.shard_over) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
      flags.Wrong("--shard-over", text, "PATTERN:AXES");
    }
    spec->add_shard_over(text);
  }
  request.set_dry_run(o.dry_run);
  absl::Status available = ReadLaterFlags(o, &flags);
  if (!flags.status().ok()) return flags.status();
  if (!available.ok()) return available;

  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const auto sentence = [&](const v1::Operation& operation) {
    std::string done =
        absl::StrCat("engine ", o.name, " created on ", NamedRanks(spec->layout().ranks()));
    const absl::StatusOr<v1::Engine> engine = (*client)->DescribeEngine(o.name);
    if (engine.ok() && engine->parameters() > 0) {
      absl::StrAppend(&done, " (", HumanCount(engine->parameters()), " parameters)");
    }
    return absl::StrCat(done, " in ", HumanSeconds(operation.seconds()));
  };
  return FinishMutation(session, (*client)->CreateEngine(request), o.no_wait, sentence);
}

}  // namespace

void AddCreateCommand(CLI::App* engine, Session* session) {
  auto o = std::make_shared<CreateOptions>();
  CLI::App* command = AddCommand(engine, "create", "makes an engine on some ranks");
  command->add_option("NAME", o->name, "the engine's name")->required();
  AddLayoutFlags(command, &o->layout);
  command
      ->add_option("--model", o->model,
                   "a folder (config.json + safetensors), random:FOLDER or "
                   "mlp:in=..,hidden=..,layers=..,out=..")
      ->required();
  command->add_option("--role", o->role, "train (default) or infer");
  command->add_option("--dtype", o->dtype, "fp32, bf16 or fp16 (default: the files' own)");
  command->add_option("--optimizer", o->optimizer, "sgd, adam or adamw (default)");
  command->add_option("--lr", o->lr, "learning rate, above 0; required for a trainer");
  command->add_option("--momentum", o->momentum, "of sgd (0)");
  command->add_option("--beta1", o->beta1, "of adam and adamw (0.9)");
  command->add_option("--beta2", o->beta2, "of adam and adamw (0.999)");
  command->add_option("--eps", o->eps, "of adam and adamw (1e-8)");
  command->add_option("--weight-decay", o->weight_decay, "0.01 for adamw, else 0");
  command->add_option("--clip-norm", o->clip_norm, "largest gradient norm; 0 = off (default)");
  command->add_option("--seed", o->seed, "of weights that are drawn (0)");
  command->add_flag("--recompute", o->recompute, "recompute activations in the backward pass");
  command->add_option("--checks", o->checks, "off, basic (default) or full");
  command->add_option("--timeout", o->timeout, "of each barrier, collective and phase (30s)");
  command->add_option("--shard-over", o->shard_over, "PATTERN:AXES; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--offload", o->offload, "none (default), cpu or nvme:DIR");
  command->add_option("--hpz", o->hpz, "ranks of a secondary partition");
  command->add_flag("--quantize-gather", o->quantize_gather, "gather in 8 bits");
  command->add_flag("--dry-run", o->dry_run, "say what it would take, do nothing");
  command->add_flag("--no-wait", o->no_wait, "print the operation at once");
  command->callback(
      [o, session] { session->run = [o, session] { return RunCreate(*o, session); }; });
}

}  // namespace regroup
