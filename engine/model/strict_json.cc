#include "engine/model/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kMaxShown = 100;

// What the parser's callback throws to end the parse.
struct Refused {
  std::string why;
};

std::string Cut(absl::string_view text) {
  return text.size() <= kMaxShown ? std::string(text)
                                  : absl::StrCat(text.substr(0, kMaxShown), "...");
}

}  // namespace

absl::StatusOr<json> ParseStrictJson(absl::string_view text, absl::string_view what) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&keys](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw Refused{absl::StrCat("nested deeper than ", kMaxDepth, " levels")};
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        throw Refused{absl::StrCat("duplicate key ", Quote(key))};
    }
    return true;
  };
  std::string why;
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const Refused& refused) {
    why = refused.why;
  } catch (const json::parse_error& error) {
    why = absl::StrCat("not valid JSON at byte ", error.byte);
  } catch (const json::out_of_range&) {
    why = "not valid JSON: a number is too large; allowed: up to 1.8e308";
  } catch (const json::exception&) {
    why = "not valid JSON";
  }
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

std::string Quote(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(Cut(text)), "\"");
}

std::string Show(const json& value) {
  return Cut(value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace));
}

}  // namespace regroup
