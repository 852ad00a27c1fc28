#include "client/train_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/errors.h"
#include "client/human.h"

namespace regroup {
namespace {

std::string Rate(int64_t tokens, double seconds) {
  return seconds > 0 ? absl::StrFormat("%.1f", static_cast<double>(tokens) / seconds) : "-";
}

}  // namespace

std::string TrainView::Head() const {
  return absl::StrFormat("%8s  %11s  %11s  %9s  %9s  %10s%s\n", "step", "loss", "grad norm",
                         "tokens", "seconds", "tokens/s", time_left_ ? "  left" : "");
}

std::string TrainView::Line(const v1::TrainRecord& record) {
  done_ += record.dropped() + 1;
  ++shown_;
  skipped_ += record.skipped() ? 1 : 0;
  tokens_ += record.tokens();
  seconds_ += record.seconds();
  std::string line;
  if (record.dropped() > 0) {
    line = absl::StrCat("     ...  ", Plural(record.dropped(), "step"),
                        " not shown: not read as fast as they were taken\n");
  }
  absl::StrAppendFormat(&line, "%8d  %11s  %11s  %9d  %9.3f  %10s", record.step(),
                        Significant(record.loss(), 7), Significant(record.grad_norm(), 6),
                        record.tokens(), record.seconds(), Rate(record.tokens(), record.seconds()));
  if (time_left_) {
    const double mean = seconds_ / static_cast<double>(shown_);
    absl::StrAppend(&line, "  ", HumanSeconds(mean * static_cast<double>(steps_ - done_)));
  }
  if (record.skipped()) absl::StrAppend(&line, "  skipped: ", OneLine(record.reason()));
  return line + "\n";
}

std::string TrainView::Summary() const {
  const std::string shown = done_ == shown_ ? "" : absl::StrCat(", ", shown_, " of them shown,");
  const std::string skipped = skipped_ == 0 ? "" : absl::StrCat(", ", skipped_, " skipped");
  return absl::StrCat(Plural(done_, "step"), shown, " in ", HumanSeconds(seconds_), ", ",
                      Rate(tokens_, seconds_), " tokens/s", skipped);
}

std::string TrainView::Stopped(const v1::Operation& operation, const v1::Engine& engine) const {
  const std::string shown = absl::StrCat(" (", shown_, " of ", Plural(steps_, "step"), " shown)");
  const std::string name = OneLine(engine.name());
  // The next run in the engine's queue may have done steps by now.
  if (operation.id().empty() || engine.activity() == "train") {
    return absl::StrCat("stopped", shown, "; engine ", name, " is at step ", engine.step(),
                        engine.activity() == "train" ? " and still trains" : "");
  }
  if (done_ == 0 && (operation.phase() == "queued" || operation.phase() == "check")) {
    return absl::StrCat("stopped before the first step; engine ", name, " is at step ",
                        engine.step());
  }
  return absl::StrCat("stopped after step ", engine.step(), shown);
}

}  // namespace regroup
