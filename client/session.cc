#include "client/session.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/table.h"

namespace regroup {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:7070";
constexpr char kServerVariable[] = "REGROUP_SERVER";
constexpr int kDefaultWidth = 80;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                         : kDefaultWidth;
}

}  // namespace

Session::Session(Interrupt* interrupt) : interrupt_(interrupt) {
  out_is_terminal_ = isatty(STDOUT_FILENO) == 1;
  err_is_terminal_ = isatty(STDERR_FILENO) == 1 && Variable("TERM") != "dumb";
  color_ = out_is_terminal_ && Variable("NO_COLOR").empty() && Variable("TERM") != "dumb";
}

absl::Status Session::Configure() {
  FlagReader flags;
  json_ = flags.Choice<bool>("-o", output, {{"table", false}, {"json", true}});
  std::string name = "--server";
  if (server.empty()) {
    server = Variable(kServerVariable);
    name = kServerVariable;
  }
  if (server.empty()) server = kDefaultServer;
  if (!CheckTarget(server).ok()) {
    flags.Wrong(name, server, "HOST:PORT with a port in 1..65535");
  }
  return flags.status();
}

absl::StatusOr<Client*> Session::Connect() {
  if (client_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(server);
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
  }
  return client_.get();
}

void Session::Print(absl::string_view text) {
  ClearProgress();
  if (print_error_ != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    print_error_ = errno;
    interrupt_->Stop();
  }
}

void Session::PrintJson(const google::protobuf::Message& message) { PrintJson(ToJson(message)); }

void Session::PrintJson(const Json& json) { Print(ToLine(json) + "\n"); }

void Session::Note(absl::string_view line) {
  ClearProgress();
  std::fputs(absl::StrCat(line, "\n").c_str(), stderr);
}

void Session::ShowProgress(absl::string_view line) {
  if (!err_is_terminal_) return;
  std::string shown(line);
  const int width = TerminalWidth() - 1;
  while (DisplayWidth(shown) > width) {
    // Cut whole characters: first the continuation bytes of the last one.
    while (!shown.empty() && (static_cast<unsigned char>(shown.back()) & 0xc0) == 0x80) {
      shown.pop_back();
    }
    if (!shown.empty()) shown.pop_back();
  }
  std::fputs(absl::StrCat("\r", shown, "\x1b[K").c_str(), stderr);
  progress_shown_ = true;
}

void Session::ClearProgress() {
  if (!progress_shown_) return;
  std::fputs("\r\x1b[K", stderr);
  progress_shown_ = false;
}

absl::Status Session::printed() const {
  if (print_error_ == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write to stdout: ", std::strerror(print_error_)));
}

}  // namespace regroup
