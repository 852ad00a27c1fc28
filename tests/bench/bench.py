"""Prints the tables of docs/benchmarks.md: Regroup, its peers and the limits, in turn on one quiet machine.

A round lets each system work once, one after another, with all of them alive; a table shows the least, the
median and the greatest over the rounds. A ratio is the median of the ratios of the same round, and "-" where
these disagree by more than a quarter: the machine was not quiet enough to say.
"""
import argparse
import os
import statistics
import time

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


def steps(bin_dir, rounds):
    for name, title in (("mlp", "Step, MLP of 8.4 M, 64 rows a rank"), ("llama", "Step, Llama of 29.5 M, 4 x 128 tokens a rank")):
        systems, seconds, memory = {}, {}, {}
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
                    measured = running.run(5)
                    if system != "regroup":  # a step ends with its slowest rank
                        measured = [max(ranks) for ranks in zip(*measured)]
                    seconds[system].append(statistics.median(measured))
            for system, running in systems.items():
                memory[system] = pss_mb(running.cluster.pids() if system == "regroup" else running.pids())
        finally:
            for system in systems.values():
                system.close()
        table(title + ": 2 ranks, 1 thread each, AdamW, fp32",
              ["system", "ms, min / median / max", "÷ compute only", "÷ FSDP2", "PSS a rank, MB"],
              [[system, spread(values), ratio(values, seconds["compute"]), ratio(values, seconds["fsdp2"]),
                f"{memory[system]:.0f}"] for system, values in seconds.items()])


def moves(bin_dir, rounds):
    four, two = (0, 1, 2, 3), (0, 1)
    dcp, regroup = Ranks(peers.make_dcp, 4), None
    folder = f"/dev/shm/regroup-bench-{os.getpid()}"

    def through_dcp(source, target, moments):
        answers = dcp.run((source, target, moments, folder))
        if not all(whole for _, whole in answers):
            raise RuntimeError("what DCP loaded is not what it saved")
        return max(seconds for seconds, _ in answers)

    def report(title, theirs, mine, moved):
        table(title, ["system", "ms, min / median / max", "÷ Regroup"],
              [["DCP save + load, /dev/shm", spread(theirs), ratio(theirs, mine)],
               ["regroup", spread(mine), "1.00"]])
        print(f"\nRegroup moved {moved / 1e6:.0f} MB.")

    try:
        regroup = ours.Moves(bin_dir)
        times = {"4-2": ([], []), "2-4": ([], [])}
        moved = {}
        for counted in [False] + [True] * rounds:
            for way, source, target, ranks in (("4-2", four, two, "0-1"), ("2-4", two, four, "0-3")):
                theirs = through_dcp(source, target, True)
                mine, moved[way] = regroup.relayout(ranks)
                if counted:
                    times[way][0].append(theirs)
                    times[way][1].append(mine)
        report("Relayout 4 -> 2 ranks, 97.5 M parameters with AdamW's moments", *times["4-2"], moved["4-2"])
        report("Relayout 2 -> 4 ranks, the same state", *times["2-4"], moved["2-4"])
        regroup.start_sync()
        theirs, mine, count = [], [], 0
        for counted in [False] + [True] * rounds:
            slow, (fast, count) = through_dcp(two, (2,), False), regroup.sync()
            if counted:
                theirs.append(slow)
                mine.append(fast)
        report("Sync, 2 trainer ranks -> inference on a third, 97.5 M parameters", theirs, mine, count)
    finally:
        dcp.close()
        if regroup:
            regroup.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of daemon/regroupd and client/regroupctl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["steps", "moves"])
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds={arguments.rounds}: at least 1")
    if arguments.only != "moves":
        steps(arguments.bin, arguments.rounds)
    if arguments.only != "steps":
        moves(arguments.bin, arguments.rounds)


if __name__ == "__main__":
    main()
