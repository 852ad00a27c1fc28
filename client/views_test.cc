#include <cmath>

#include "client/engine_view.h"
#include "client/generate_view.h"
#include "client/operation_view.h"
#include "client/train_view.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(OperationView, Progress_BytesRateAndTimeLeft) {
  v1::Operation operation;
  operation.set_kind("create");
  operation.set_engine("actor");
  operation.set_phase("load");
  operation.set_seconds(2);
  operation.set_bytes_moved(100000000);
  operation.set_bytes_total(400000000);
  EXPECT_EQ(OperationProgress(operation),
            "create actor: load  █████░░░░░░░░░░░░░░░   25 %  100.0 MB of 400.0 MB  50.0 MB/s  6.0 "
            "s left");
}

TEST(OperationView, Progress_NothingKnown_IsTheTime) {
  v1::Operation operation;
  operation.set_kind("delete");
  operation.set_seconds(0.1);
  EXPECT_EQ(OperationProgress(operation), "delete  0.10 s");
  operation.set_detail("step 2 of 9");
  EXPECT_EQ(OperationProgress(operation), "delete  step 2 of 9  0.10 s");
}

TEST(OperationView, Sentence_HasDetailOrBytes) {
  v1::Operation operation;
  operation.set_seconds(3.1);
  EXPECT_EQ(Sentence("engine actor deleted", operation), "engine actor deleted in 3.1 s");
  operation.set_bytes_moved(538100000);
  EXPECT_EQ(Sentence("moved", operation), "moved (538.1 MB moved) in 3.1 s");
  operation.set_detail("2 -> 3 ranks");
  EXPECT_EQ(Sentence("moved", operation), "moved (2 -> 3 ranks) in 3.1 s");
}

TEST(OperationView, Table_HasOutcomes) {
  google::protobuf::RepeatedPtrField<v1::Operation> operations;
  EXPECT_EQ(OperationTable(operations, false), "");
  v1::Operation* operation = operations.Add();
  operation->set_id("op-1");
  operation->set_kind("create");
  operation->set_engine("actor");
  operation->set_phase("load");
  operation->set_done(true);
  operation->set_error("rank 1 is lost");
  EXPECT_EQ(OperationTable(operations, false),
            "operation  kind    engine  phase  seconds  moved  peak  outcome\n"
            "op-1       create  actor   load      0.00    0 B   0 B  rank 1 is lost\n");
}

v1::TrainRecord Record(int64_t step, double loss) {
  v1::TrainRecord record;
  record.set_step(step);
  record.set_loss(loss);
  record.set_grad_norm(1.5);
  record.set_tokens(512);
  record.set_seconds(2);
  return record;
}

TEST(TrainView, Lines_StandUnderTheirTitles) {
  TrainView view(4, /*time_left=*/false);
  EXPECT_EQ(view.Head(), "    step         loss    grad norm     tokens    seconds    tokens/s\n");
  EXPECT_EQ(view.Line(Record(1, 3.25)),
            "       1         3.25          1.5        512      2.000       256.0\n");
  EXPECT_EQ(view.Line(Record(2, std::nan(""))),
            "       2            -          1.5        512      2.000       256.0\n");
  EXPECT_EQ(view.Summary(), "2 steps in 4.0 s, 256.0 tokens/s");
}

TEST(TrainView, TimeLeft_IsOfTheStepsThatRemain) {
  TrainView view(4, /*time_left=*/true);
  EXPECT_NE(view.Line(Record(7, 1)).find("  6.0 s\n"), std::string::npos);
}

TEST(TrainView, SkippedStep_SaysWhy) {
  TrainView view(1, /*time_left=*/false);
  v1::TrainRecord record = Record(1, 1);
  record.set_skipped(true);
  record.set_reason("gradients are not finite");
  EXPECT_NE(view.Line(record).find("  skipped: gradients are not finite\n"), std::string::npos);
}

TEST(TrainView, Summary_CountsSkippedSteps) {
  TrainView view(3, /*time_left=*/false);
  view.Line(Record(1, 1));
  v1::TrainRecord skipped = Record(1, 1);
  skipped.set_skipped(true);
  view.Line(skipped);
  view.Line(Record(2, 1));
  EXPECT_EQ(view.Summary(), "3 steps in 6.0 s, 256.0 tokens/s, 1 skipped");
}

TEST(TrainView, MissedRecords_AreTold) {
  TrainView view(5, /*time_left=*/true);
  view.Line(Record(1, 1));
  v1::TrainRecord record = Record(4, 3.25);
  record.set_dropped(2);
  EXPECT_EQ(view.Line(record),
            "     ...  2 steps not shown: not read as fast as they were taken\n"
            "       4         3.25          1.5        512      2.000       256.0  2.0 s\n");
  EXPECT_EQ(view.Summary(), "4 steps, 2 of them shown, in 4.0 s, 256.0 tokens/s");
  v1::Operation run;
  v1::Engine engine;
  engine.set_name("actor");
  engine.set_step(4);
  EXPECT_EQ(view.Stopped(run, engine), "stopped (2 of 5 steps shown); engine actor is at step 4");
}

TEST(TrainView, Stopped_SaysWhatIsKnown) {
  TrainView view(4, /*time_left=*/false);
  v1::Engine engine;
  engine.set_name("actor");
  engine.set_step(7);
  v1::Operation run;
  EXPECT_EQ(view.Stopped(run, engine), "stopped (0 of 4 steps shown); engine actor is at step 7");
  run.set_id("op-2");
  for (const char* phase : {"queued", "check"}) {
    run.set_phase(phase);
    EXPECT_EQ(view.Stopped(run, engine),
              "stopped before the first step; engine actor is at step 7");
  }
  run.set_phase("step");
  EXPECT_EQ(view.Stopped(run, engine), "stopped after step 7 (0 of 4 steps shown)");
  run.set_phase("done");
  view.Line(Record(6, 1));
  EXPECT_EQ(view.Stopped(run, engine), "stopped after step 7 (1 of 4 steps shown)");
  engine.set_activity("train");
  EXPECT_EQ(view.Stopped(run, engine),
            "stopped (1 of 4 steps shown); engine actor is at step 7 and still trains");
}

TEST(GenerateView, Output_HasTokensReasonAndMean) {
  v1::GenerateResponse response;
  v1::Output* output = response.add_outputs();
  output->add_tokens(5);
  output->add_tokens(7);
  output->add_logprobs(-1);
  output->add_logprobs(-2);
  output->set_weights_version(3);
  output->set_finish_reason(v1::FINISH_REASON_STOP);
  EXPECT_EQ(GenerateView(response, false),
            "output 0: 2 tokens, STOP, mean logprob -1.5000, weights version 3\n  5 7\n");
}

TEST(EngineView, Describe_HasSpecGroupsAndMemory) {
  v1::Engine engine;
  engine.set_name("actor");
  engine.set_role(v1::ROLE_TRAIN);
  engine.set_state(v1::ENGINE_STATE_READY);
  engine.add_ranks(1);
  engine.add_ranks(2);
  engine.set_parameters(134515008);
  engine.set_units(32);
  v1::OptimizerSpec* optimizer = engine.mutable_spec()->mutable_optimizer();
  optimizer->set_name("adamw");
  optimizer->set_learning_rate(1e-5);
  engine.mutable_spec()->set_recompute(true);
  v1::PartitionGroup* group = engine.add_groups();
  group->set_name("dp");
  group->add_ranks(1);
  v1::RankMemory* memory = engine.add_memory();
  memory->set_rank(1);
  memory->set_peak_bytes(1500000);
  const std::string view = DescribeView(engine, false);
  for (const char* part :
       {"engine actor: TRAIN, READY, idle\n", "1-2, lead 1", "134.5 M in 32 units",
        "adamw, lr 1e-05", "recompute   activations, in the backward pass\n",
        "group  ranks  parameters", "rank  weights  optimizer  buffers    peak", "1.5 MB"}) {
    EXPECT_NE(view.find(part), std::string::npos) << part << "\n" << view;
  }
}

TEST(EngineView, Trace_HasCountsAndPositions) {
  v1::EngineTrace trace;
  trace.set_engine("actor");
  trace.set_rank(1);
  EXPECT_NE(TraceView(trace, false).find("no pass has been recorded"), std::string::npos);
  v1::PassTrace* pass = trace.add_passes();
  pass->set_kind("train");
  pass->set_state("AGREED");
  pass->set_records(1);
  pass->set_gathers(64);
  pass->set_prefetches(63);
  pass->set_reductions(32);
  v1::TraceEntry* entry = pass->add_entries();
  entry->set_phase("forward");
  entry->set_operation("gather");
  entry->set_unit("layers.0");
  entry->set_group("dp");
  entry->add_parameter_ids(0);
  entry->add_parameter_ids(1);
  entry->set_bytes(2000);
  EXPECT_EQ(TraceView(trace, false),
            "engine actor, as rank 1 sees it\n\n"
            "train: AGREED, recorded 1 time, 64 gathers (63 prefetched), 32 reductions\n"
            "  position  phase    operation  unit      group  parameters   bytes\n"
            "         0  forward  gather     layers.0  dp     0-1         2.0 kB\n");
}

}  // namespace
}  // namespace regroup
