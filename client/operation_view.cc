#include "client/operation_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/errors.h"
#include "client/human.h"
#include "client/table.h"

namespace regroup {
namespace {

constexpr int kBarCells = 20;
// A rate of the first moments says nothing.
constexpr double kMinSecondsForRate = 0.2;

std::string Outcome(const v1::Operation& operation) {
  if (!operation.done()) return "running";
  return operation.error().empty() ? "ok" : operation.error();
}

Color OutcomeColor(const v1::Operation& operation) {
  if (!operation.done()) return Color::kYellow;
  return operation.error().empty() ? Color::kGreen : Color::kRed;
}

}  // namespace

std::string OperationTitle(const v1::Operation& operation) {
  return operation.engine().empty() ? operation.kind()
                                    : absl::StrCat(operation.kind(), " ", operation.engine());
}

std::string OperationProgress(const v1::Operation& operation) {
  std::string line = OneLine(OperationTitle(operation));
  if (!operation.phase().empty()) absl::StrAppend(&line, ": ", OneLine(operation.phase()));
  const auto moved = static_cast<double>(operation.bytes_moved());
  const auto total = static_cast<double>(operation.bytes_total());
  const double rate = operation.seconds() >= kMinSecondsForRate ? moved / operation.seconds() : 0;
  if (total > 0) {
    absl::StrAppend(&line, "  ", Bar(moved / total, kBarCells),
                    absl::StrFormat("  %3.0f %%  ", 100 * moved / total),
                    HumanBytes(operation.bytes_moved()), " of ",
                    HumanBytes(operation.bytes_total()));
  } else if (moved > 0) {
    absl::StrAppend(&line, "  ", HumanBytes(operation.bytes_moved()));
  } else if (!operation.detail().empty()) {
    absl::StrAppend(&line, "  ", OneLine(operation.detail()));
  }
  if (rate > 0) {
    absl::StrAppend(&line, "  ", HumanBytes(static_cast<int64_t>(rate)), "/s");
    if (total > moved) absl::StrAppend(&line, "  ", HumanSeconds((total - moved) / rate), " left");
  } else {
    absl::StrAppend(&line, "  ", HumanSeconds(operation.seconds()));
  }
  return line;
}

std::string OperationTable(const google::protobuf::RepeatedPtrField<v1::Operation>& operations,
                           bool color) {
  Table table({{"operation"},
               {"kind"},
               {"engine"},
               {"phase"},
               {"seconds", Align::kRight},
               {"moved", Align::kRight},
               {"peak", Align::kRight},
               {"outcome"}});
  for (const v1::Operation& operation : operations) {
    table.AddRow({operation.id(), operation.kind(), operation.engine(), operation.phase(),
                  absl::StrFormat("%.2f", operation.seconds()), HumanBytes(operation.bytes_moved()),
                  HumanBytes(operation.peak_bytes()),
                  Cell(Outcome(operation), OutcomeColor(operation))});
  }
  return table.empty() ? "" : table.Render(color);
}

absl::StatusOr<v1::Operation> Follow(Session* session, const v1::Operation& operation,
                                     const std::function<void(const v1::Operation&)>& on_progress) {
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<v1::Operation> ended =
      (*client)->Wait(operation,
                      [&](const v1::Operation& latest) {
                        if (on_progress != nullptr) on_progress(latest);
                        session->ShowProgress(OperationProgress(latest));
                      },
                      {session->interrupt()->Arm(), {}});
  session->ClearProgress();
  if (absl::IsCancelled(ended.status()) && session->interrupt()->happened()) {
    return absl::CancelledError(absl::StrCat("stopped waiting; operation ", operation.id(),
                                             " goes on (", OperationTitle(operation),
                                             "; regroupctl operation watch ", operation.id(), ")"));
  }
  return ended;
}

absl::Status FinishMutation(Session* session, const absl::StatusOr<v1::Operation>& accepted,
                            bool no_wait,
                            const std::function<std::string(const v1::Operation&)>& sentence) {
  if (!accepted.ok()) return accepted.status();
  if (no_wait && !accepted->done()) {
    if (session->json()) {
      session->PrintJson(*accepted);
    } else {
      session->Print(absl::StrCat("operation ", OneLine(accepted->id()),
                                  " accepted: ", OneLine(OperationTitle(*accepted)),
                                  " (regroupctl operation watch ", OneLine(accepted->id()), ")\n"));
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<v1::Operation> ended = Follow(session, *accepted);
  if (!ended.ok()) return ended.status();
  absl::Status outcome = OutcomeOf(*ended);
  if (session->json()) {
    session->PrintJson(*ended);
  } else if (outcome.ok()) {
    session->Print(absl::StrCat(OneLine(sentence(*ended)), "\n"));
  }
  return outcome;
}

std::string Sentence(const std::string& done, const v1::Operation& operation) {
  std::string note = operation.detail();
  if (note.empty() && operation.bytes_moved() > 0) {
    note = absl::StrCat(HumanBytes(operation.bytes_moved()), " moved");
  }
  return absl::StrCat(done, note.empty() ? "" : absl::StrCat(" (", note, ")"), " in ",
                      HumanSeconds(operation.seconds()));
}

}  // namespace regroup
