#!/usr/bin/env python3
"""Counts test cases of one `bazel test` run.

    count_results.py EVENTS.json EXPECTED_TARGETS LINT_FAILURES [RESULTS ...]

EVENTS.json is what --build_event_json_file wrote, EXPECTED_TARGETS has one test target a line, LINT_FAILURES
one file with problems a line. Cases come from the JUnit files that the events name, so that files of earlier
runs don't count. A target without such a file (it did not build, or was not run) counts as one failed case, and
so does one that failed although each case in its file passed. Each RESULTS file has lines "passed NAME" or
"failed NAME" of what ran outside Bazel; one that is not there, or empty, counts as one failed case. Prints the end of each failed target's log, and
as its last line "N passed, N failed". Exits with 1 if anything failed or nothing was run.
"""

import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

LOG_LINES = 60


def path_of(uri):
    return urllib.parse.unquote(uri.removeprefix("file://"))


class Target:
    def __init__(self):
        self.status = "did not build, or was not run"
        self.files = {}  # (run, shard) -> {"test.xml": path, "test.log": path} of the last attempt


def read_events(path):
    targets = {}
    if not os.path.exists(path):
        return targets
    with open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            if "testResult" in event:
                key = event["id"]["testResult"]
                target = targets.setdefault(key["label"], Target())
                target.files[(key.get("run"), key.get("shard"))] = {
                    output["name"]: path_of(output["uri"])
                    for output in event["testResult"].get("testActionOutput", [])
                    if "uri" in output
                }
            elif "testSummary" in event:
                label = event["id"]["testSummary"]["label"]
                target = targets.setdefault(label, Target())
                target.status = event["testSummary"]["overallStatus"]
    return targets


def count_file(path):
    """Passed, failed and skipped cases of one JUnit file."""
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(path).iter("testcase"):
        name = f'{case.get("classname", "")}.{case.get("name", "")}'.lstrip(".")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def count_target(target):
    passed, failed, skipped, files = 0, [], 0, 0
    for outputs in target.files.values():
        try:
            more = count_file(outputs["test.xml"])
        except (KeyError, OSError, ElementTree.ParseError):
            continue
        files += 1
        passed, failed, skipped = passed + more[0], failed + more[1], skipped + more[2]
    good = target.status in ("PASSED", "FLAKY")
    if not failed and (not good or not files):
        failed = [target.status if not good else "left no JUnit file"]
    return passed, failed, skipped


def print_log(target):
    for outputs in target.files.values():
        if "test.log" not in outputs or not os.path.exists(outputs["test.log"]):
            continue
        print(f'--- the end of {outputs["test.log"]}')
        with open(outputs["test.log"], encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if "linux-sandbox" not in line]  # Bazel's, one per mount
            print("".join(lines[-LOG_LINES:]).rstrip())


def count_results(path):
    """Passed cases, and names of failed ones, of one file of "passed NAME" and "failed NAME" lines."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    passed = sum(line.startswith("passed ") for line in lines)
    failed = [line.removeprefix("failed ") for line in lines if not line.startswith("passed ")]
    return passed, failed or ([] if passed else [f"{path}: no results"])


def main(events, expected, lint, *results):
    targets = read_events(events)
    with open(expected, encoding="utf-8") as file:
        labels = sorted(line.strip() for line in file if line.strip())
    with open(lint, encoding="utf-8") as file:
        problems = [line.strip() for line in file if line.strip()]
    passed, failed, skipped = 0, 0, 0
    for label in labels:
        target = targets.get(label, Target())
        good, bad, ignored = count_target(target)
        passed, failed, skipped = passed + good, failed + len(bad), skipped + ignored
        for name in bad:
            print(f"FAILED {label}: {name}")
        if bad:
            print_log(target)
    for path in results:
        good, bad = count_results(path)
        passed += good
        problems += bad
    for problem in problems:
        print(f"FAILED {problem}")
    failed += len(problems)
    if not labels:
        print("FAILED: there are no tests")
        failed += 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
