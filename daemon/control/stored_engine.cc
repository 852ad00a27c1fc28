#include "daemon/control/stored_engine.h"

#include <string>

#include "proto/rpc_status.h"

namespace regroup {

v1::StoredEngine ToStored(const EngineRecord& record) {
  v1::StoredEngine row;
  row.set_uid(record.uid);
  *row.mutable_spec() = record.spec;
  row.set_state(record.state);
  if (record.state == v1::ENGINE_STATE_FAILED) {
    row.set_error_code(static_cast<int>(record.failure.code()));
    row.set_error(std::string(record.failure.message()));
    if (const auto detail = DetailOf(record.failure)) *row.mutable_error_detail() = *detail;
  }
  for (const WorkerRef& member : record.members) {
    v1::StoredMember& added = *row.add_members();
    added.set_rank(member.rank);
    added.set_incarnation(member.incarnation);
  }
  row.set_generation(record.generation);
  row.set_step(record.step);
  row.set_data_position(record.data_position);
  row.set_weights_version(record.weights_version);
  row.set_fingerprint(record.fingerprint);
  row.set_parameters(record.parameters);
  row.set_units(record.units);
  row.set_attempts(record.attempts);
  row.set_syncs(record.syncs);
  return row;
}

EngineRecord FromStored(const v1::StoredEngine& row) {
  EngineRecord record;
  record.uid = row.uid();
  record.spec = row.spec();
  record.state = row.state();
  if (row.error_code() != 0) {
    record.failure =
        MakeError(static_cast<absl::StatusCode>(row.error_code()), row.error(), row.error_detail());
  }
  for (const v1::StoredMember& member : row.members()) {
    record.members.push_back({member.rank(), member.incarnation()});
  }
  record.generation = row.generation();
  record.step = row.step();
  record.data_position = row.data_position();
  record.weights_version = row.weights_version();
  record.fingerprint = row.fingerprint();
  record.parameters = row.parameters();
  record.units = row.units();
  record.attempts = row.attempts();
  record.syncs = row.syncs();
  return record;
}

}  // namespace regroup
