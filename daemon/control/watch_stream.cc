#include "daemon/control/watch_stream.h"

#include <utility>

#include "daemon/control/cancellation.h"
#include "proto/rpc_status.h"

namespace regroup {

WatchStream::WatchStream(OperationTable* operations, std::string id)
    : operations_(operations), id_(std::move(id)) {
  Next();
}

void WatchStream::End(const absl::Status& status) { Finish(ToGrpc(status)); }

void WatchStream::Next() {
  absl::Status end;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) {
      end = CancelledError("the client went away");
    } else {
      auto next = operations_->Watch(
          id_, sent_.version(), [this](const v1::Operation& operation) { Changed(operation); },
          &watch_);
      if (!next.ok()) {
        end = next.status();
      } else {
        if (next->has_value()) Send(**std::move(next));
        return;
      }
    }
  }
  End(end);
}

void WatchStream::Changed(const v1::Operation& operation) {
  absl::MutexLock lock(&mutex_);
  watch_ = 0;
  Send(operation);
}

void WatchStream::Send(v1::Operation operation) {
  // Each change is a version. Nothing was missed before the first state.
  const int64_t before = sent_.version();
  if (before > 0) operation.set_dropped(operation.version() - before - 1);
  sent_ = std::move(operation);
  StartWrite(&sent_);
}

void WatchStream::OnWriteDone(bool ok) {
  bool done;
  {
    absl::MutexLock lock(&mutex_);
    done = sent_.done();
    cancelled_ = cancelled_ || !ok;
  }
  if (done) {
    End(absl::OkStatus());
  } else {
    Next();
  }
}

void WatchStream::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    // If a change is on its way, or a write, what follows it ends the stream.
    if (watch_ == 0 || !operations_->StopWatch(id_, std::exchange(watch_, 0))) return;
  }
  End(CancelledError("the client went away"));
}

}  // namespace regroup
