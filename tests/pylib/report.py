"""How the parity scripts judge and report their cases."""


class Report:
    """Prints a line for each case, a table of the measured differences and "N passed, N failed" at the end.

    `results`: file that gets "passed NAME" or "failed NAME" lines too, or None.
    """

    def __init__(self, suite, results):
        self._suite, self._results = suite, results
        self._rows, self.passed, self.failed = [], 0, 0

    def case(self, name, check):
        """Runs check(measure), where measure(what, value, limit) holds one difference to be at most its limit.

        An exception fails the case, and the next one goes on.
        """
        before = len(self._rows)
        reason = ""
        try:
            check(lambda what, value, limit: self._rows.append((name, what, value, limit)))
        except Exception as error:  # the daemon refused, a peer died, ...
            reason = f"{type(error).__name__}: {error}"
        rows = self._rows[before:]
        # Written so that NaN fails.
        bad = [f"{what} {value:.3g} > {limit:g}" for _, what, value, limit in rows if not value <= limit]
        if not rows and not reason:
            reason = "compared nothing"
        good = not bad and not reason
        self.passed, self.failed = self.passed + good, self.failed + (not good)
        verdict = "passed" if good else "failed"
        print(f"{verdict} {name}" + ("" if good else ": " + "; ".join([*bad, *filter(None, [reason])])), flush=True)
        if self._results:
            with open(self._results, "a", encoding="utf-8") as file:
                file.write(f"{verdict} {self._suite} {name}\n")

    def end(self):
        """Prints the table; returns the exit code."""
        print("\n| case | difference | measured | allowed |\n| --- | --- | --- | --- |")
        for name, what, value, limit in self._rows:
            print(f"| {name} | {what} | {value:.2e} | {limit:g} |")
        print(f"\n{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0
