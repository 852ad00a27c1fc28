// A training run, a line a step.
#ifndef CLIENT_TRAIN_VIEW_H_
#define CLIENT_TRAIN_VIEW_H_

#include <cstdint>
#include <string>

#include "regroup/v1/control.pb.h"

namespace regroup {

// Lays out the lines of one run of `steps` steps; `time_left` adds a column for it.
class TrainView {
 public:
  TrainView(int64_t steps, bool time_left) : steps_(steps), time_left_(time_left) {}

  // Titles, with the line's end.
  std::string Head() const;

  // One record, with the line's end: step, loss, gradient norm, tokens, seconds, tokens a second.
  // Ahead of it a line of its own, if records before it were missed.
  std::string Line(const v1::TrainRecord& record);

  // "4 steps in 5.1 s, 102.3 tokens/s", and how many of them were skipped, if any. Time and rate
  // are those of the records that were seen.
  std::string Summary() const;

  // One line without an end: where a run that was asked to end has left `engine`, as it is after
  // that. `operation` is the run as it ended; without an id, its end is not known.
  std::string Stopped(const v1::Operation& operation, const v1::Engine& engine) const;

  int64_t done() const { return done_; }

 private:
  const int64_t steps_;
  const bool time_left_;
  int64_t done_ = 0;   // steps, those of missed records included
  int64_t shown_ = 0;  // records
  int64_t skipped_ = 0;
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace regroup

#endif  // CLIENT_TRAIN_VIEW_H_
