// A daemon of two workers, for the test that kills it: fake_daemon WORKER FD writes their pids to
// FD.
#include <unistd.h>

#include <cstdlib>

#include "daemon/node/supervisor.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  regroup::SupervisorOptions options;
  options.ranks = 2;
  options.worker_binary = argv[1];
  regroup::RankTable table(options.ranks);
  auto supervisor = regroup::Supervisor::Make(options, &table);
  if (!supervisor.ok()) return 1;
  regroup::Supervisor::Hooks hooks;
  hooks.all_ready = [&table, fd = atoi(argv[2])] {
    const int pids[] = {table.List()[0].pid, table.List()[1].pid};
    (void)!write(fd, pids, sizeof(pids));
  };
  return (*supervisor)->Run(hooks).ok() ? 0 : 1;
}
