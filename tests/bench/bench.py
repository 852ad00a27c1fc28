"""Prints the tables of docs/benchmarks.md: Regroup, its peers and the limits, in turn on one quiet machine.

A round lets each system work once, one after another, with all of them alive; a table shows the least, the
median and the greatest over the rounds. A ratio is the median of the ratios of the same round, and "-" where
these disagree by more than a quarter: the machine was not quiet enough to say.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import time

import limits
import ours
import peers
from ranks import Ranks

DISAGREE = 1.25


def table(title, head, rows):
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def spread(values, scale=1e3, digits=1):
    ordered = sorted(scale * value for value in values)
    return " / ".join(f"{x:.{digits}f}" for x in (ordered[0], statistics.median(ordered), ordered[-1]))


def ratio(values, base):
    ratios = [a / b for a, b in zip(values, base)]
    return f"{statistics.median(ratios):.2f}" if max(ratios) <= DISAGREE * min(ratios) else "-"


def pss_mb(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1000 / len(pids)


def wait_until_quiet(seconds=30):
    """Until other programs use less than a tenth of a core over a second, or `seconds` have passed."""
    def busy():
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy()
        time.sleep(1)
        if busy() - before < 0.1:
            return
    print("(the machine is not quiet)")


MODELS = {"mlp": "MLP of 8.4 M, 64 rows a rank", "llama": "Llama of 29.5 M, 4 x 128 tokens a rank"}
SETTING = "2 ranks, 1 thread each, AdamW, fp32"


def step_seconds(system, running):
    """The median of some steps; a step ends with its slowest rank."""
    measured = running.run(5)
    return statistics.median(measured if system == "regroup" else [max(ranks) for ranks in zip(*measured)])


def check_shares(regroup, level, rounds):
    regroup.set_checks(level)
    regroup.run(2)  # a trace is recorded again
    shares = []
    for _ in range(rounds):
        steps = regroup.run_with_checks(5)
        shares.append(sum(checks for _, checks in steps) / sum(seconds for seconds, _ in steps))
    return shares


def steps(bin_dir, rounds):
    for name, title in MODELS.items():
        systems, memory = {}, {}
        try:
            for system in ("compute", "fsdp2", "deepspeed"):
                systems[system] = Ranks(peers.step_maker(system, name), 2)
            systems["regroup"] = ours.Steps(bin_dir, name)
            for system in systems.values():
                system.run(3)
            wait_until_quiet()
            seconds = {system: [] for system in systems}
            for _ in range(rounds):
                for system, running in systems.items():
                    seconds[system].append(step_seconds(system, running))
            for system, running in systems.items():
                memory[system] = pss_mb(running.cluster.pids() if system == "regroup" else running.pids())
            shares = {level: check_shares(systems["regroup"], level, rounds) for level in ("basic", "full")}
        finally:
            for system in systems.values():
                system.close()
        table(f"Step, {title}: {SETTING}",
              ["system", "ms, min / median / max", "÷ compute only", "÷ FSDP2", "PSS a rank, MB"],
              [[system, spread(values), ratio(values, seconds["compute"]), ratio(values, seconds["fsdp2"]),
                f"{memory[system]:.0f}"] for system, values in seconds.items()])
        table(f"Time inside checks, waiting for the other rank included ÷ step, {title}",
              ["--checks", "%, min / median / max"],
              [[level, spread(values, scale=100, digits=2)] for level, values in shares.items()])


class MoveTimes:
    """Seconds of a move by round: ours, DCP's, and of copying the same bytes, a thread a receiver."""

    def __init__(self, title, receivers):
        self._title, self._receivers = title, receivers
        self.theirs, self.mine, self.limit, self.moved = [], [], [], 0

    def run(self, theirs, mine, memcpy, counted):
        slow = theirs()
        fast, self.moved = mine()
        copies = memcpy.run(self.moved // self._receivers)[:self._receivers]
        if counted:
            self.theirs.append(slow)
            self.mine.append(fast)
            self.limit.append(max(copies))

    def report(self):
        rows = (("DCP save + load, /dev/shm", self.theirs), ("Regroup", self.mine),
                ("memcpy of these bytes, a thread a receiver", self.limit))
        table(f"{self._title}: {self.moved / 1e6:.0f} MB", ["", "ms, min / median / max", "÷ Regroup"],
              [[name, spread(values), ratio(values, self.mine)] for name, values in rows])


def moves(bin_dir, rounds):
    four, two = (0, 1, 2, 3), (0, 1)
    folder = f"/dev/shm/regroup-bench-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        dcp = stack.enter_context(contextlib.closing(Ranks(peers.make_dcp, 4)))
        memcpy = stack.enter_context(contextlib.closing(Ranks(limits.make_memcpy, 4)))
        regroup = stack.enter_context(contextlib.closing(ours.Moves(bin_dir)))

        def through_dcp(source, target, moments):
            answers = dcp.run((source, target, moments, folder))
            if not all(whole for _, whole in answers):
                raise RuntimeError("what DCP loaded is not what it saved")
            return max(seconds for seconds, _ in answers)

        there = MoveTimes("Relayout 4 -> 2 ranks, 97.5 M parameters with AdamW's moments", 2)
        back = MoveTimes("Relayout 2 -> 4 ranks, the same state", 2)  # two of the four hold what they need
        sync = MoveTimes("Sync, 2 trainer ranks -> inference on a third, 97.5 M parameters", 1)
        wait_until_quiet()
        for turn in range(-2, rounds):  # the first ones touch memory that the machine has not given yet
            there.run(lambda: through_dcp(four, two, True), lambda: regroup.relayout("0-1"), memcpy, turn >= 0)
            back.run(lambda: through_dcp(two, four, True), lambda: regroup.relayout("0-3"), memcpy, turn >= 0)
        there.report()
        back.report()
        regroup.start_sync()
        for turn in range(-2, rounds):
            sync.run(lambda: through_dcp(two, (2,), False), regroup.sync, memcpy, turn >= 0)
        sync.report()


def latency(bin_dir):
    program = os.path.join(bin_dir, "tests/bench/latency")
    print("\n### RPC latency beside four workers\n", flush=True)
    subprocess.run([program], check=True, cwd=program + ".runfiles/regroup",
                   env={**os.environ, "TEST_SRCDIR": program + ".runfiles", "TEST_WORKSPACE": "regroup"})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="Bazel's folder of the programs that were built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["steps", "moves", "latency"])
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds={arguments.rounds}: at least 1")
    if arguments.only in (None, "steps"):
        steps(arguments.bin, arguments.rounds)
    if arguments.only in (None, "moves"):
        moves(arguments.bin, arguments.rounds)
    if arguments.only in (None, "latency"):
        latency(arguments.bin)


if __name__ == "__main__":
    main()
