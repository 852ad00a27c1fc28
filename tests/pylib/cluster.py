"""Regroup's real binaries: a daemon with ranks of its own and a temporary folder, driven through regroupctl."""
import json
import os
import shutil
import subprocess
import tempfile

CALL_S = 300


class Cluster:
    """One daemon of `ranks` ranks, one thread each (so that every system computes with as many threads).

    It may read and write `folder`, which goes away with it, and reads `data_roots`.
    """

    def __init__(self, bin_dir, ranks, data_roots=()):
        self._ctl = os.path.join(bin_dir, "client/regroupctl")
        self.folder = tempfile.mkdtemp(prefix="regroup-cluster-")
        self._log = open(os.path.join(self.folder, "daemon.log"), "w")
        roots = [f"--data-root={root}" for root in (self.folder, *data_roots)]
        self._daemon = subprocess.Popen(
            [os.path.join(bin_dir, "daemon/regroupd"), "--node=local", "--listen=127.0.0.1:0", f"--ranks={ranks}",
             f"--state-dir={self.folder}/state", *roots],
            stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        line = self._daemon.stdout.readline()
        if not line.startswith("listening on "):
            with open(self._log.name) as log:
                said = "".join(log.readlines()[-20:])
            self.close()
            raise RuntimeError(f"regroupd did not start; it said {line!r}, its log ends with:\n{said}")
        self._server = line.split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, *words):
        """The JSON objects that `regroupctl words...` prints."""
        done = subprocess.run([self._ctl, f"--server={self._server}", "-o", "json", *words], capture_output=True,
                              text=True, timeout=CALL_S)
        if done.returncode:
            raise RuntimeError(f"regroupctl {' '.join(words)}: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def pids(self):
        return [rank["pid"] for rank in self.call("rank", "list")[0]["ranks"]]

    def close(self):
        self._daemon.terminate()
        self._daemon.wait()
        self._daemon.stdout.close()
        self._log.close()
        shutil.rmtree(self.folder)
