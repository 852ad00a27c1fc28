// The questions of Control: everything here is answered from memory.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/control.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr int64_t kMicros = 1000000;  // a second

}  // namespace

void Control::SetAddress(const std::string& address) { nodes_.SetOwnAddress(address); }

v1::GetStatusResponse Control::Status() const {
  v1::GetStatusResponse response;
  std::map<int, std::vector<std::string>> engines_of_rank;
  for (const EngineRecord& engine : context_->engines().List()) {
    *response.add_engines() = ToProto(engine);
    if (!HoldsRanks(engine)) continue;
    for (int rank : engine.spec.layout().ranks()) {
      engines_of_rank[rank].push_back(engine.spec.name());
    }
  }
  for (const NodeRecord& record : nodes_.List()) {
    v1::Node& node = *response.add_nodes();
    node.set_node(record.name);
    node.set_state(record.state);
    node.set_address(record.address);
    for (int i = 0; i < record.ranks; ++i) node.add_ranks(record.first_rank + i);
  }
  for (const RankInfo& info : context_->ranks().List()) {
    v1::Rank& rank = *response.add_ranks();
    rank.set_rank(info.rank);
    rank.set_node(info.node.empty() ? options_.node : info.node);
    rank.set_pid(info.pid);
    rank.set_state(info.state);
    rank.set_error(info.error);
    if (info.ended != absl::InfinitePast()) {
      const int64_t ended = absl::ToUnixMicros(info.ended);
      rank.mutable_ended()->set_seconds(ended / kMicros);
      rank.mutable_ended()->set_nanos(static_cast<int>(ended % kMicros * 1000));
    }
    rank.set_rss_bytes(info.rss_bytes);
    if (info.incarnation != 0) rank.set_incarnation(absl::StrCat(info.incarnation));
    for (const std::string& name : engines_of_rank[info.rank]) rank.add_engines(name);
  }
  for (const v1::Operation& operation : context_->operations().Running()) {
    *response.add_operations() = operation;
  }
  return response;
}

absl::StatusOr<v1::Engine> Control::DescribeEngine(const std::string& name) const {
  const absl::StatusOr<EngineRecord> record = context_->engines().Find(name);
  if (!record.ok()) return record.status();
  v1::Engine engine = ToProto(*record);
  *engine.mutable_groups() = {record->groups.begin(), record->groups.end()};
  for (const WorkerRef& member : record->members) {
    const auto held = context_->ranks().Held(member, record->uid);
    if (!held.has_value()) continue;
    v1::RankMemory& memory = *engine.add_memory();
    memory = held->memory();
    memory.set_rank(member.rank);
  }
  return engine;
}

void Control::TraceEngine(const v1::TraceEngineRequest& request, absl::Duration timeout,
                          std::function<void(absl::StatusOr<v1::EngineTrace>)> done) const {
  if (request.flight()) {
    done(NotAvailable("--flight"));
    return;
  }
  const absl::StatusOr<EngineRecord> engine = context_->engines().Find(request.name());
  if (!engine.ok()) {
    done(engine.status());
    return;
  }
  if (engine->members.empty() || !HoldsRanks(*engine)) {
    done(EngineError(CheckReady(*engine), *engine, "trace"));
    return;
  }
  const WorkerRef lead = engine->members.front();
  const auto client = context_->ranks().Find(lead);
  if (!client.ok()) {
    done(EngineError(client.status(), *engine, "trace"));
    return;
  }
  (*client)->GetTrace(
      engine->uid, timeout,
      [engine = *engine, lead, done = std::move(done)](absl::StatusOr<v1::EngineTrace> trace) {
        if (!trace.ok()) {
          done(EngineError(trace.status(), engine, "trace"));
          return;
        }
        trace->set_engine(engine.spec.name());
        trace->set_rank(lead.rank);
        done(std::move(trace));
      });
}

}  // namespace regroup
