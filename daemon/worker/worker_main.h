#ifndef DAEMON_WORKER_WORKER_MAIN_H_
#define DAEMON_WORKER_WORKER_MAIN_H_

namespace regroup {

// The worker process: flags -> options -> run. Serves until its daemon ends or kills it. Returns 2
// for a command line that does not parse, 1 if it cannot serve.
int WorkerMain(int argc, char** argv);

}  // namespace regroup

#endif  // DAEMON_WORKER_WORKER_MAIN_H_
