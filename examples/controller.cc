// The loop of reinforcement learning in the small. Each round trains on all ranks but the last,
// gives all of them but one away, copies the weights into an inference engine on the last rank, and
// generates there; the next round takes the ranks back.
//
//   controller HOST:PORT MODEL_FOLDER DATA_FILE ROUNDS       (a cluster of three ranks or more)
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/client.h"

namespace v1 = regroup::v1;

namespace {

constexpr int kSteps = 2;  // a round

// Creates an engine on the ranks first … last.
absl::Status Create(regroup::Client& client, const std::string& name, v1::Role role, int first,
                    int last, const std::string& model) {
  v1::CreateEngineRequest request;
  v1::EngineSpec& spec = *request.mutable_spec();
  spec.set_name(name);
  spec.set_role(role);
  spec.set_model(model);
  for (int rank = first; rank <= last; ++rank) spec.mutable_layout()->add_ranks(rank);
  if (role == v1::ROLE_TRAIN) {
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_learning_rate(0.05);
  }
  return client.Finish(client.CreateEngine(request)).status();
}

absl::Status Move(regroup::Client& client, int last) {
  v1::RelayoutEngineRequest request;
  request.set_name("actor");
  for (int rank = 0; rank <= last; ++rank) request.mutable_layout()->add_ranks(rank);
  return client.Finish(client.RelayoutEngine(request)).status();
}

absl::Status Round(regroup::Client& client, int ranks, const std::string& data) {
  if (absl::Status moved = Move(client, ranks - 2); !moved.ok()) return moved;
  v1::TrainRequest train;
  train.set_name("actor");
  train.set_data(data);
  train.set_steps(kSteps);
  train.set_batch(4);
  train.set_seq(16);
  absl::Status trained = client.Train(train, [](const v1::TrainRecord& record) {
    std::printf("step %d: loss %.6f\n", static_cast<int>(record.step()), record.loss());
  });
  if (!trained.ok()) return trained;
  if (absl::Status moved = Move(client, 0); !moved.ok()) return moved;  // others may work there now
  v1::SyncEngineRequest sync;
  sync.set_source("actor");
  sync.set_destination("rollout");
  const auto synced = client.Finish(client.SyncEngine(sync));
  if (!synced.ok()) return synced.status();
  v1::GenerateRequest generate;
  generate.set_name("rollout");
  generate.set_max_tokens(8);
  generate.set_top_p(1);
  for (int token : {1, 2, 3}) generate.mutable_prompts()->Add()->add_tokens(token);
  const auto generated = client.Generate(generate);
  if (!generated.ok()) return generated.status();
  for (const v1::Output& output : generated->outputs()) {  // here a reward would be computed
    std::printf("weights version %d:", static_cast<int>(output.weights_version()));
    for (int token : output.tokens()) std::printf(" %d", token);
    std::printf("\n");
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& server, const char* model, const char* data, int rounds) {
  const auto client = regroup::Client::Connect(server);
  if (!client.ok()) return client.status();
  const auto cluster = (*client)->GetStatus();
  if (!cluster.ok()) return cluster.status();
  const int ranks = cluster->ranks_size();
  absl::Status status = Create(**client, "actor", v1::ROLE_TRAIN, 0, ranks - 2, model);
  if (status.ok())
    status = Create(**client, "rollout", v1::ROLE_INFER, ranks - 1, ranks - 1, model);
  for (int i = 0; status.ok() && i < rounds; ++i) status = Round(**client, ranks, data);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const absl::Status status = Run(argv[1], argv[2], argv[3], std::atoi(argv[4]));
  if (!status.ok()) std::fprintf(stderr, "controller: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
