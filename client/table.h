// Text in columns, aligned by what a terminal shows of it.
#ifndef CLIENT_TABLE_H_
#define CLIENT_TABLE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace regroup {

enum class Color { kNone, kRed, kGreen, kYellow, kBlue, kDim, kBold };

// `text` in `color` if `enabled`, else as it is.
std::string Paint(absl::string_view text, Color color, bool enabled);

// How many columns of a terminal the UTF-8 `text` takes: a combining mark none, an East Asian wide
// character two. A byte that is not UTF-8 counts as one.
int DisplayWidth(absl::string_view text);

enum class Align { kLeft, kRight };

struct Cell {
  Cell(std::string text, Color color = Color::kNone)  // NOLINT(google-explicit-constructor)
      : text(std::move(text)), color(color) {}
  Cell(const char* text) : text(text) {}  // NOLINT(google-explicit-constructor)

  std::string text;
  Color color = Color::kNone;
};

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void AddColumn(Column column) { columns_.push_back(std::move(column)); }

  // Cells are made one line each. Missing ones at the end are empty.
  void AddRow(std::vector<Cell> row);

  bool empty() const { return rows_.empty(); }

  // A line of titles and one a row, each behind `indent` spaces, two spaces between columns, no
  // spaces at the end of a line.
  std::string Render(bool color, int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace regroup

#endif  // CLIENT_TABLE_H_
