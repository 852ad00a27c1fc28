#include "daemon/flags.h"

#include <arpa/inet.h>

#include <cstdint>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/field_error.h"
#include "daemon/control/validate.h"
#include "engine/layout/rank_list.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr int kMaxRanks = 1024;
constexpr int kMaxPort = 65535;

// Given, these end the program: silence would be worse.
constexpr const char* kUnavailableValues[] = {"--etcd",    "--http",   "--tls-cert",
                                              "--tls-key", "--tls-ca", "--simulate"};
constexpr const char* kUnavailableFlags[] = {"--allow-faults"};

bool IsLoopback(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (host == "localhost") return true;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status ParseInteger(const char* flag, const std::string& text, int most, int* value) {
  if (!text.empty() && text[0] != '+' && absl::SimpleAtoi(text, value) && *value >= 0 &&
      *value <= most) {
    return absl::OkStatus();
  }
  return FieldError(flag, text, "is not a number in range", absl::StrCat("0 to ", most));
}

absl::Status ParseHostPort(const char* flag, const std::string& text, const char* allowed,
                           std::string* host, int* port) {
  const auto error = [&](const char* problem) { return FieldError(flag, text, problem, allowed); };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error("has no port");
  *host = text.substr(0, colon);
  const bool brackets = host->size() > 2 && host->front() == '[' && host->back() == ']';
  if (brackets) *host = host->substr(1, host->size() - 2);
  if (host->empty()) return error("has no host");
  in6_addr v6;
  if (brackets != (inet_pton(AF_INET6, host->c_str(), &v6) == 1)) {
    return error("has a host that is not one (IPv6 addresses stand in brackets)");
  }
  if (!ParseInteger(flag, text.substr(colon + 1), kMaxPort, port).ok()) {
    return error("has a bad port");
  }
  return absl::OkStatus();
}

absl::Status ParseListen(const std::string& text, DaemonFlags* flags) {
  absl::Status status =
      ParseHostPort("--listen", text,
                    "HOST:PORT, e.g. 127.0.0.1:7070 or [::1]:0; port 0 to 65535, 0 = a free one",
                    &flags->host, &flags->port);
  if (!status.ok()) return status;
  if (!flags->insecure && !IsLoopback(flags->host)) {
    return FieldError("--listen", text, "is not a loopback address, and there is no encryption yet",
                      "127.0.0.1, [::1] or localhost; elsewhere only with --insecure");
  }
  return absl::OkStatus();
}

absl::Status ParseJoin(const std::string& text, DaemonFlags* flags) {
  constexpr char kAllowed[] = "HOST:PORT of the primary, e.g. 10.0.0.1:7070; port 1 to 65535";
  absl::Status status =
      ParseHostPort("--join", text, kAllowed, &flags->join_host, &flags->join_port);
  if (!status.ok()) return status;
  if (flags->join_port == 0) return FieldError("--join", text, "has port 0", kAllowed);
  return absl::OkStatus();
}

absl::Status ParseDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  if (device == "cuda") return NotAvailable("--device=cuda");
  return FieldError("--device", device, "is unknown", "cpu");
}

absl::Status Missing(const char* flag, const char* allowed) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(flag, " is missing; allowed: ", flag, "=", allowed),
                   v1::ERROR_REASON_INVALID_FIELD);
}

ParsedFlags Failure(const absl::Status& status) {
  ParsedFlags parsed;
  parsed.exit_code = absl::IsUnimplemented(status) ? 1 : 2;
  parsed.text = absl::StrCat("regroupd: ", status.message(), "\n");
  return parsed;
}

}  // namespace

ParsedFlags ParseFlags(int argc, const char* const* argv) {
  ParsedFlags parsed;
  DaemonFlags& flags = parsed.flags;
  std::string listen;
  std::string ranks;
  CLI::App app("Keeps training engines on the ranks of this machine, one worker process each.",
               "regroupd");
  const auto* node_option = app.add_option("--node", flags.node, "name of this node");
  const auto* listen_option =
      app.add_option("--listen", listen, "HOST:PORT to serve clients on; port 0: a free one");
  const auto* ranks_option =
      app.add_option("--ranks", ranks, "number of worker processes, 0 to 1024");
  std::string join;
  const auto* join_option =
      app.add_option("--join", join, "HOST:PORT of the primary whose cluster this node joins");
  app.add_option("--advertise", flags.advertise,
                 "address at which other nodes reach this one (default: from --listen)");
  std::string first_rank;
  const auto* first_rank_option = app.add_option(
      "--first-rank", first_rank, "number of its first rank (default: after all that there are)");
  app.add_option("--device", flags.device, "device of the ranks: cpu");
  app.add_option("--state-dir", flags.state_dir,
                 "folder of this daemon's own (default: $XDG_STATE_HOME/regroup/NODE)");
  // One value an occurrence: a list would swallow what follows.
  app.add_option("--data-root", flags.data_roots,
                 "folder that models, data and exports may lie in; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_flag("--insecure", flags.insecure, "allow --listen beyond loopback, unencrypted");
  std::vector<std::string> ignored;
  std::vector<const CLI::Option*> unavailable;
  for (const char* flag : kUnavailableValues) {
    unavailable.push_back(
        app.add_option(flag, ignored, "not available in this version")->expected(1));
  }
  for (const char* flag : kUnavailableFlags) {
    unavailable.push_back(app.add_flag(flag, "not available in this version"));
  }

  // CLI11 would take the argument that follows for the value.
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (absl::StartsWith(argument, "--") && absl::EndsWith(argument, "=")) {
      return Failure(absl::InvalidArgumentError(
          absl::StrCat(argument, " has no value; allowed: ", argument, "VALUE")));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    return Failure(absl::InvalidArgumentError(
        absl::StrCat(error.what(), "; allowed: the flags that regroupd --help lists")));
  }
  for (const CLI::Option* option : unavailable) {
    if (option->count() > 0) return Failure(NotAvailable(option->get_name()));
  }
  if (node_option->count() == 0) return Failure(Missing("--node", "NAME"));
  if (listen_option->count() == 0) return Failure(Missing("--listen", "HOST:PORT"));
  if (ranks_option->count() == 0) return Failure(Missing("--ranks", "N"));
  for (const absl::Status& status :
       {CheckName("--node", flags.node), ParseDevice(flags.device), ParseListen(listen, &flags),
        ParseInteger("--ranks", ranks, kMaxRanks, &flags.ranks)}) {
    if (!status.ok()) return Failure(status);
  }
  if (join_option->count() > 0) {
    if (absl::Status status = ParseJoin(join, &flags); !status.ok()) return Failure(status);
  }
  if (first_rank_option->count() > 0) {
    absl::Status status = ParseInteger("--first-rank", first_rank, kMaxRank, &flags.first_rank);
    if (status.ok() && flags.first_rank > kMaxRank + 1 - flags.ranks) {
      status = FieldError("--first-rank", first_rank,
                          absl::StrCat("is out of range for ", flags.ranks, " ranks"),
                          absl::StrCat("ranks 0 to ", kMaxRank));
    }
    if (!status.ok()) return Failure(status);
  }
  parsed.run = true;
  return parsed;
}

}  // namespace regroup
