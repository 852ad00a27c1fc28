#include "engine/zero/trace_recorder.h"

#include "gtest/gtest.h"

namespace regroup {
namespace {

TraceEntry Gather(int unit) { return {TraceOp::kGather, false, unit, 64}; }
TraceEntry Reduce(int unit) { return {TraceOp::kReduce, true, unit, 64}; }

void RunPass(TraceRecorder* recorder, const std::vector<TraceEntry>& entries) {
  recorder->BeginPass();
  for (const TraceEntry& entry : entries) recorder->Record(entry);
}

TEST(TraceRecorder, FirstPass_Records_AndKnowsNothingAhead) {
  TraceRecorder recorder("train");
  RunPass(&recorder, {Gather(0), Gather(1)});
  EXPECT_TRUE(recorder.recording());
  EXPECT_EQ(recorder.NextGather(), std::nullopt);
  EXPECT_EQ(recorder.Snapshot().state, TraceState::kRecording);
  recorder.EndPass();
  EXPECT_EQ(recorder.Snapshot().state, TraceState::kAgreed);
  EXPECT_EQ(recorder.Snapshot().records, 1);
  EXPECT_EQ(recorder.Snapshot().entries.size(), 2u);
}

TEST(TraceRecorder, SecondPass_Follows_AndSkipsReductionsAhead) {
  TraceRecorder recorder("train");
  RunPass(&recorder, {Gather(0), Reduce(0), Gather(2)});
  recorder.EndPass();
  recorder.BeginPass();
  EXPECT_EQ(recorder.NextGather(), 0);
  recorder.Record(Gather(0));
  EXPECT_EQ(recorder.NextGather(), 2);
  recorder.Record(Reduce(0));
  recorder.Record(Gather(2));
  EXPECT_EQ(recorder.NextGather(), std::nullopt);
  EXPECT_FALSE(recorder.recording());
  recorder.EndPass();
  EXPECT_EQ(recorder.Snapshot().records, 1);
}

TEST(TraceRecorder, Deviation_RecordsAgainFromThere) {
  TraceRecorder recorder("train");
  RunPass(&recorder, {Gather(0), Gather(1), Gather(2)});
  recorder.EndPass();
  RunPass(&recorder, {Gather(0), Gather(2)});
  EXPECT_TRUE(recorder.recording());
  EXPECT_EQ(recorder.NextGather(), std::nullopt);
  EXPECT_EQ(recorder.Snapshot().state, TraceState::kRecording);
  recorder.EndPass();
  EXPECT_EQ(recorder.Snapshot().records, 2);
  recorder.BeginPass();
  recorder.Record(Gather(0));
  EXPECT_EQ(recorder.NextGather(), 2);
}

TEST(TraceRecorder, ShorterPass_IsANewTrace) {
  TraceRecorder recorder("train");
  RunPass(&recorder, {Gather(0), Gather(1)});
  recorder.EndPass();
  RunPass(&recorder, {Gather(0)});
  recorder.EndPass();
  EXPECT_EQ(recorder.Snapshot().records, 2);
  EXPECT_EQ(recorder.Snapshot().entries.size(), 1u);
}

TEST(TraceRecorder, LongerPass_Deviates) {
  TraceRecorder recorder("train");
  RunPass(&recorder, {Gather(0)});
  recorder.EndPass();
  RunPass(&recorder, {Gather(0), Gather(1)});
  EXPECT_TRUE(recorder.recording());
}

TEST(TraceRecorder, DescribeTrace_TellsPassOperationUnitAndBytes) {
  EXPECT_EQ(DescribeTrace({Gather(3), Reduce(4)}),
            (std::vector<std::string>{"forward gather unit 3 64 bytes",
                                      "backward reduce unit 4 64 bytes"}));
}

}  // namespace
}  // namespace regroup
