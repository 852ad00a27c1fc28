"""What the benchmarks have Regroup's real binaries do."""
import json
import os
import random
import struct

import models
import peers
from cluster import Cluster

SEQ_ROWS = 64  # of the token file
LLAMA_KEYS = dict(model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-6, initializer_range=0.02,
                  hidden_act="silu", torch_dtype="float32", rope_theta=10000.0)


class BenchCluster(Cluster):
    """A daemon with the benchmarks' models and data in its folder."""

    def model(self, name, config):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({**LLAMA_KEYS, **config}, file)
        return f"random:{folder}"

    def tokens(self, vocab):
        path = os.path.join(self.folder, "text.u16.bin")
        draws = random.Random(0)
        with open(path, "wb") as file:
            count = SEQ_ROWS * models.SEQ + 1
            file.write(struct.pack(f"<{count}H", *(draws.randrange(vocab) for _ in range(count))))
        return path

    def vectors(self, rows):
        path = os.path.join(self.folder, "rows.jsonl")
        draws = random.Random(0)
        with open(path, "w") as file:
            for _ in range(rows):
                row = {key: [round(draws.gauss(0, 1), 4) for _ in range(models.WIDTH)] for key in "xy"}
                file.write(json.dumps(row) + "\n")
        return path


class Steps:
    """A ZeRO-3 trainer of models.py's `name` on ranks 0-1."""

    def __init__(self, bin_dir, name):
        self.cluster = BenchCluster(bin_dir, 2)
        rows = 2 * models.ROWS[name]
        if name == "mlp":
            spec = f"mlp:in={models.WIDTH},hidden={models.WIDTH},layers={models.DEPTH},out={models.WIDTH}"
            data = [f"--data={self.cluster.vectors(rows)}"]
        else:
            spec = self.cluster.model("llama", models.LLAMA)
            data = [f"--data={self.cluster.tokens(models.LLAMA['vocab_size'])}", f"--seq={models.SEQ}"]
        self.cluster.call("engine", "create", "actor", "--ranks=0-1", f"--model={spec}", f"--lr={models.LR}")
        self._train = ["train", "actor", f"--batch={rows}", *data]

    def run(self, count):
        """The seconds of each of `count` steps."""
        return [seconds for seconds, _ in self.run_with_checks(count)]

    def run_with_checks(self, count):
        """For each of `count` steps its seconds, and those of them in checks."""
        steps = self.cluster.call(*self._train, f"--steps={count}")
        return [(step["seconds"], step["checkSeconds"]) for step in steps]

    def set_checks(self, level):
        self.cluster.call("engine", "set", "actor", f"--checks={level}")

    def close(self):
        self.cluster.close()


class Moves:
    """A trainer of peers.MOVED with Adam's moments on ranks 0-3, and its weights' way into another engine."""

    def __init__(self, bin_dir):
        self.cluster = BenchCluster(bin_dir, 4)
        self._spec = self.cluster.model("moved", peers.MOVED)
        self._data = self.cluster.tokens(peers.MOVED["vocab_size"])
        self._create("0-3")

    def _create(self, ranks):
        self.cluster.call("engine", "create", "actor", f"--ranks={ranks}", f"--model={self._spec}", "--lr=1e-4")
        self.cluster.call("train", "actor", f"--data={self._data}", "--steps=1", "--batch=4", "--seq=16")

    def start_sync(self):
        self.cluster.call("engine", "delete", "actor")
        self._create("0-1")
        self.cluster.call("engine", "create", "rollout", "--ranks=2", f"--model={self._spec}", "--role=infer")

    def relayout(self, ranks):
        return self._operation(self.cluster.call("engine", "relayout", "actor", f"--ranks={ranks}"))

    def sync(self):
        return self._operation(self.cluster.call("engine", "sync", "actor", "rollout"))

    @staticmethod
    def _operation(answer):
        return answer[-1]["seconds"], answer[-1]["bytesMoved"]

    def close(self):
        self.cluster.close()
