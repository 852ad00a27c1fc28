// What the commands of regroupctl share: where the server is, how to print, Ctrl-C.
#ifndef CLIENT_SESSION_H_
#define CLIENT_SESSION_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "client/interrupt.h"
#include "client/json.h"

namespace regroup {

// Used by one thread.
class Session {
 public:
  explicit Session(Interrupt* interrupt);

  // Filled in by the command line.
  std::string server;  // --server; "" = REGROUP_SERVER or the default
  std::string output = "table";
  std::function<absl::Status()> run;  // the command that was given

  // Checks `server` and `output`. Usage errors.
  absl::Status Configure();

  bool json() const { return json_; }
  bool color() const { return color_; }
  bool is_terminal() const { return out_is_terminal_; }
  Interrupt* interrupt() const { return interrupt_; }

  // Sends nothing yet. The client lives as long as the session.
  absl::StatusOr<Client*> Connect();

  // To stdout, at once. If that fails, what runs is stopped as by Ctrl-C, for nobody would see it.
  void Print(absl::string_view text);
  void PrintJson(const google::protobuf::Message& message);
  void PrintJson(const Json& json);

  // One line to stderr.
  void Note(absl::string_view line);

  // One line on stderr that replaces the one before, if stderr is a terminal; it is cut to its
  // width.
  void ShowProgress(absl::string_view line);
  void ClearProgress();

  // INTERNAL if something could not be printed.
  absl::Status printed() const;

 private:
  Interrupt* const interrupt_;
  bool json_ = false;
  bool out_is_terminal_ = false;
  bool err_is_terminal_ = false;
  bool color_ = false;
  bool progress_shown_ = false;
  int print_error_ = 0;  // errno
  std::unique_ptr<Client> client_;
};

}  // namespace regroup

#endif  // CLIENT_SESSION_H_
