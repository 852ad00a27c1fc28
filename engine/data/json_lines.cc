#include "engine/data/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/group/comm_status.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kReadAtOnce = 1 << 20;

// The lines of a file, of which only a piece is held at a time.
class LineReader {
 public:
  // `file` outlives the reader.
  LineReader(const InputFile& file, int64_t max_line) : file_(file), max_line_(max_line) {}

  bool done() const { return line_end_ == held_.size() && offset_ == file_.size(); }

  // Without its end; valid until the next call. Call it while not done().
  absl::StatusOr<absl::string_view> Next() {
    held_.erase(0, line_end_);
    size_t searched = 0;
    size_t end = 0;
    while ((end = held_.find('\n', searched)) == std::string::npos && offset_ < file_.size() &&
           static_cast<int64_t>(held_.size()) <= max_line_) {
      searched = held_.size();
      const int64_t count = std::min(kReadAtOnce, file_.size() - offset_);
      held_.resize(searched + count);
      absl::Status read = file_.ReadAt(offset_, count, &held_[searched]);
      if (!read.ok()) return WithReason(read, "DATA");
      offset_ += count;
    }
    const size_t length = std::min(end, held_.size());
    line_end_ = std::min(length + 1, held_.size());
    return absl::string_view(held_).substr(0, length);
  }

 private:
  const InputFile& file_;
  const int64_t max_line_;
  std::string held_;     // starts with the line returned last
  size_t line_end_ = 0;  // after its newline
  int64_t offset_ = 0;   // of the file: read up to here
};

absl::StatusOr<nlohmann::json> Parse(absl::string_view line, const JsonLinesOptions& options,
                                     const std::string& where) {
  absl::StatusOr<nlohmann::json> row = ParseStrictJson(line, where.substr(0, where.size() - 2));
  if (!row.ok()) return row;
  if (!row->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, Show(*row), ": must be an object ", options.example));
  }
  for (const auto& entry : row->items()) {
    const auto& fields = options.fields;
    if (std::find(fields.begin(), fields.end(), entry.key()) == fields.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "unknown field ", Quote(entry.key()),
                                                     "; allowed: ", absl::StrJoin(fields, ", ")));
    }
  }
  return row;
}

}  // namespace

absl::Status ForEachJsonLine(
    const InputFile& file, const JsonLinesOptions& options,
    const std::function<absl::Status(const nlohmann::json& row, const std::string& where)>& row) {
  if (file.size() == 0 || file.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--data=", file.path(), ": has ", file.size(),
                                                   " bytes: must have from 1 to ", kMaxBytes));
  }
  LineReader lines(file, options.max_line);
  for (int64_t number = 1; !lines.done(); ++number) {
    const std::string where = absl::StrCat("--data=", file.path(), ": line ", number, ": ");
    const absl::StatusOr<absl::string_view> line = lines.Next();
    if (!line.ok()) return line.status();
    if (static_cast<int64_t>(line->size()) > options.max_line) {
      return absl::InvalidArgumentError(absl::StrCat(where, "has more than ", options.max_line,
                                                     " bytes, the most for ",
                                                     options.max_line_for));
    }
    const absl::StatusOr<nlohmann::json> parsed = Parse(*line, options, where);
    if (!parsed.ok()) return parsed.status();
    if (absl::Status status = row(*parsed, where); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace regroup
