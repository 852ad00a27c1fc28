#include "client/table.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/errors.h"

namespace regroup {
namespace {

struct Range {
  uint32_t first, last;
};

// Blocks rather than single characters: enough for aligned columns.
constexpr Range kNoWidth[] = {
    {0x0300, 0x036f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};
constexpr Range kWide[] = {
    {0x1100, 0x115f}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
    {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

template <size_t kCount>
bool IsIn(const Range (&ranges)[kCount], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [code](const Range& r) { return code >= r.first && code <= r.last; });
}

// Decodes one character at the start of `text` (not empty), and says how many bytes it takes.
uint32_t Decode(absl::string_view text, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0x80       ? 1
                      : lead >> 5 == 6  ? 2
                      : lead >> 4 == 14 ? 3
                      : lead >> 3 == 30 ? 4
                                        : 0;
  *length = 1;
  if (size <= 1 || size > text.size()) return lead < 0x80 ? lead : 0xfffd;
  uint32_t code = lead & (0xff >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0xfffd;
    code = code << 6 | (byte(i) & 0x3f);
  }
  *length = size;
  return code;
}

std::string Padded(const Cell& cell, int width, Align align, bool color) {
  const int missing = std::max(0, width - DisplayWidth(cell.text));
  const int left = align == Align::kRight ? missing : 0;
  return absl::StrCat(std::string(left, ' '), Paint(cell.text, cell.color, color),
                      std::string(missing - left, ' '));
}

}  // namespace

std::string Paint(absl::string_view text, Color color, bool enabled) {
  if (!enabled || color == Color::kNone || text.empty()) return std::string(text);
  const char* code = "";
  switch (color) {
    case Color::kNone:
      break;
    case Color::kRed:
      code = "31";
      break;
    case Color::kGreen:
      code = "32";
      break;
    case Color::kYellow:
      code = "33";
      break;
    case Color::kBlue:
      code = "34";
      break;
    case Color::kDim:
      code = "2";
      break;
    case Color::kBold:
      code = "1";
      break;
  }
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  while (!text.empty()) {
    size_t length = 0;
    const uint32_t code = Decode(text, &length);
    width += IsIn(kNoWidth, code) ? 0 : IsIn(kWide, code) ? 2 : 1;
    text.remove_prefix(length);
  }
  return width;
}

void Table::AddRow(std::vector<Cell> row) {
  row.resize(columns_.size(), Cell(""));
  for (Cell& cell : row) cell.text = OneLine(cell.text);
  rows_.push_back(std::move(row));
}

std::string Table::Render(bool color, int indent) const {
  std::vector<Cell> titles;
  std::vector<int> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    titles.emplace_back(columns_[i].title, Color::kDim);
    int width = DisplayWidth(columns_[i].title);
    for (const std::vector<Cell>& row : rows_) {
      if (i < row.size()) width = std::max(width, DisplayWidth(row[i].text));
    }
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](const std::vector<Cell>& row) {
    size_t used = std::min(row.size(), columns_.size());
    while (used > 0 && row[used - 1].text.empty()) --used;
    out.append(indent, ' ');
    for (size_t i = 0; i < used; ++i) {
      if (i > 0) out += "  ";
      out += Padded(row[i], widths[i], columns_[i].align, color);
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  };
  add_line(titles);
  for (const std::vector<Cell>& row : rows_) add_line(row);
  return out;
}

}  // namespace regroup
