#include "client/engine_view.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/errors.h"
#include "client/human.h"
#include "client/picture.h"
#include "client/table.h"

namespace regroup {
namespace {

// DTYPE_FP32, "DTYPE_" -> fp32: as the flags write it.
std::string FlagName(absl::string_view name, absl::string_view prefix,
                     absl::string_view unspecified) {
  absl::ConsumePrefix(&name, prefix);
  return name == "UNSPECIFIED" ? std::string(unspecified) : absl::AsciiStrToLower(name);
}

std::string OptimizerLine(const v1::OptimizerSpec& optimizer) {
  std::string line =
      absl::StrCat(optimizer.name(), ", lr ", Significant(optimizer.learning_rate(), 6));
  if (optimizer.name() == "sgd") {
    absl::StrAppend(&line, ", momentum ", Significant(optimizer.momentum(), 6));
  } else {
    absl::StrAppend(&line, ", betas ", Significant(optimizer.beta1(), 6), " ",
                    Significant(optimizer.beta2(), 6), ", eps ", Significant(optimizer.eps(), 6));
  }
  return absl::StrCat(line, ", weight decay ", Significant(optimizer.weight_decay(), 6));
}

// Rows of "name  value" without titles.
class Facts {
 public:
  void Add(absl::string_view name, const std::string& value) {
    rows_.emplace_back(std::string(name), OneLine(value));
  }

  std::string Render(bool color) const {
    size_t width = 0;
    for (const auto& row : rows_) width = std::max(width, row.first.size());
    std::string out;
    for (const auto& [name, value] : rows_) {
      absl::StrAppend(&out, "  ", Paint(name, Color::kDim, color),
                      std::string(width - name.size() + 2, ' '), value, "\n");
    }
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

std::string GroupTable(const google::protobuf::RepeatedPtrField<v1::PartitionGroup>& groups,
                       bool color) {
  if (groups.empty()) return "";
  Table table({{"group"}, {"ranks"}, {"parameters", Align::kRight}});
  for (const v1::PartitionGroup& group : groups) {
    table.AddRow({group.name(), RankList(group.ranks()), HumanCount(group.parameters())});
  }
  return absl::StrCat("\n", table.Render(color, 2));
}

std::string MemoryTable(const v1::Engine& engine, bool color) {
  if (engine.memory().empty()) return "";
  Table table({{"rank", Align::kRight},
               {"weights", Align::kRight},
               {"optimizer", Align::kRight},
               {"buffers", Align::kRight},
               {"peak", Align::kRight}});
  for (const v1::RankMemory& memory : engine.memory()) {
    table.AddRow({absl::StrCat(memory.rank()), HumanBytes(memory.weights_bytes()),
                  HumanBytes(memory.optimizer_bytes()), HumanBytes(memory.buffers_bytes()),
                  HumanBytes(memory.peak_bytes())});
  }
  return absl::StrCat("\n", table.Render(color, 2));
}

std::string PassView(const v1::PassTrace& pass, bool color) {
  std::string view = absl::StrCat(
      "\n", Paint(OneLine(pass.kind()), Color::kBold, color), ": ", OneLine(pass.state()),
      ", recorded ", Plural(pass.records(), "time"), ", ", Plural(pass.gathers(), "gather"), " (",
      pass.prefetches(), " prefetched), ", Plural(pass.reductions(), "reduction"), "\n");
  if (pass.entries().empty()) return view;
  Table table({{"position", Align::kRight},
               {"phase"},
               {"operation"},
               {"unit"},
               {"group"},
               {"parameters"},
               {"bytes", Align::kRight}});
  for (const v1::TraceEntry& entry : pass.entries()) {
    table.AddRow({absl::StrCat(entry.position()), entry.phase(), entry.operation(), entry.unit(),
                  entry.group(), RankList(entry.parameter_ids()), HumanBytes(entry.bytes())});
  }
  return absl::StrCat(view, table.Render(color, 2));
}

}  // namespace

std::string DescribeView(const v1::Engine& engine, bool color) {
  const v1::EngineSpec& spec = engine.spec();
  const bool trains = engine.role() != v1::ROLE_INFER;
  const Cell state = StateCell(engine.state());
  std::string view =
      absl::StrCat("engine ", Paint(OneLine(engine.name()), Color::kBold, color), ": ",
                   RoleName(engine.role()), ", ", Paint(state.text, state.color, color), ", ",
                   engine.activity().empty() ? "idle" : OneLine(engine.activity()), "\n");
  Facts facts;
  std::string ranks = RankList(engine.ranks());
  if (!engine.ranks().empty()) absl::StrAppend(&ranks, ", lead ", engine.ranks(0));
  facts.Add("ranks", ranks);
  facts.Add("model", spec.model());
  facts.Add(
      "parameters",
      absl::StrCat(HumanCount(engine.parameters()), " in ", Plural(engine.units(), "unit"),
                   ", dtype ", FlagName(v1::DType_Name(spec.dtype()), "DTYPE_", "the files'")));
  if (trains) {
    facts.Add("optimizer", OptimizerLine(spec.optimizer()));
    facts.Add("clip norm", spec.clip_norm() == 0 ? "off" : Significant(spec.clip_norm(), 6));
    if (spec.recompute()) facts.Add("recompute", "activations, in the backward pass");
    facts.Add("step", absl::StrCat(engine.step(), ", data position ", engine.data_position()));
  }
  facts.Add("weights", absl::StrCat("version ", engine.weights_version()));
  facts.Add("generation", absl::StrCat(engine.generation()));
  facts.Add("seed", absl::StrCat(spec.seed()));
  facts.Add("checks", FlagName(v1::CheckLevel_Name(spec.checks()), "CHECK_LEVEL_", "basic"));
  if (spec.has_timeout()) {
    facts.Add("timeout", HumanSeconds(static_cast<double>(spec.timeout().seconds()) +
                                      spec.timeout().nanos() / 1e9));
  }
  facts.Add("uid", engine.uid());
  if (!engine.error().empty()) facts.Add("error", engine.error());
  return absl::StrCat(view, facts.Render(color), GroupTable(engine.groups(), color),
                      MemoryTable(engine, color));
}

std::string TraceView(const v1::EngineTrace& trace, bool color) {
  std::string view =
      absl::StrCat("engine ", Paint(OneLine(trace.engine()), Color::kBold, color), ", as rank ",
                   trace.rank(), " sees it\n", GroupTable(trace.groups(), color));
  if (trace.passes().empty()) return absl::StrCat(view, "\nno pass has been recorded\n");
  for (const v1::PassTrace& pass : trace.passes()) {
    absl::StrAppend(&view, PassView(pass, color));
  }
  return view;
}

}  // namespace regroup
