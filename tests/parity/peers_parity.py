#!/usr/bin/env python3
"""Losses of 5 AdamW steps on 2 ranks: Regroup beside FSDP2 and DeepSpeed ZeRO-3, from the same weights and rows.

    peers_parity.py --bin=DIR [--results=FILE]

The models are those of tests/bench. All add up the same fp32 numbers in other orders: a loss, which is a mean of
thousands, differs by a few roundings (6e-8 each), and five steps of Adam spread them, so 1e-5 is
allowed, as among Regroup's own layouts. A wrong weight decay, beta or epsilon, or one lost row, is far outside.
"""
import argparse
import functools
import json
import os
import sys

import torch
from safetensors.torch import save_file

import models
import peers
from cluster import Cluster
from ranks import Ranks
from report import Report

WORLD, STEPS, TOLERANCE = 2, 5, 1e-5
# None of them a default, so that nobody falls back to one.
ADAMW = dict(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2)
FLAGS = ["--optimizer=adamw", f"--lr={models.LR}", "--beta1=0.8", "--beta2=0.95", "--eps=1e-6", "--weight-decay=0.2"]


def make_peer(system, model_name, rank, world):
    step, batch = peers.make_trainer(system, model_name, world, **ADAMW), models.batch(model_name, rank)
    return lambda count: [step(*batch).item() for _ in range(count)]


def losses_of_peer(system, name):
    ranks = Ranks(functools.partial(make_peer, system, name), WORLD)
    try:
        # Ranks have equally many targets, so the loss of all is the mean of theirs.
        return [sum(each) / WORLD for each in zip(*ranks.run(STEPS), strict=True)]
    finally:
        ranks.close()


def write_rows(name, path):
    """The ranks' batches one after the other. A row of T tokens has T - 1 targets, here as in transformers."""
    with open(path, "w", encoding="utf-8") as file:
        for rank in range(WORLD):
            for x, y in zip(*models.batch(name, rank)):
                row = {"x": x.tolist(), "y": y.tolist()} if name == "mlp" else {"tokens": x.tolist()}
                file.write(json.dumps(row) + "\n")


def write_mlp(cluster, model, folder):
    """Regroup writes the config; the weights are the peers'."""
    sizes = f"in={models.WIDTH},hidden={models.WIDTH},layers={models.DEPTH},out={models.WIDTH}"
    cluster.call("engine", "create", "blank", "--ranks=0", f"--model=mlp:{sizes}", "--lr=1")
    cluster.call("export", "blank", folder)
    cluster.call("engine", "delete", "blank")
    os.remove(os.path.join(folder, "model.safetensors"))
    save_file(model.state_dict(), os.path.join(folder, "model.safetensors"))


def our_losses(bin_dir, name):
    with Cluster(bin_dir, WORLD) as cluster:
        folder, rows = os.path.join(cluster.folder, "model"), os.path.join(cluster.folder, "rows.jsonl")
        model = models.build(name)
        if name == "mlp":
            write_mlp(cluster, model, folder)
        else:
            model.decoder.save_pretrained(folder)
        write_rows(name, rows)
        cluster.call("engine", "create", "actor", "--ranks=0-1", f"--model={folder}", *FLAGS)
        steps = cluster.call("train", "actor", f"--data={rows}", f"--batch={WORLD * models.ROWS[name]}",
                             f"--steps={STEPS}", *([] if name == "mlp" else [f"--seq={models.SEQ}"]))
        return [step["loss"] for step in steps]


def check(ours, system, name, measure):
    theirs = losses_of_peer(system, name)
    print(f"{name}: ours {' '.join(f'{x:.7f}' for x in ours)}\n{name}: {system} {' '.join(f'{x:.7f}' for x in theirs)}")
    if not theirs[-1] < theirs[0]:
        raise AssertionError("five steps on the same rows did not lower the loss")
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        measure(f"loss of step {step}, relative", abs(a / b - 1), TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of daemon/regroupd and client/regroupctl")
    parser.add_argument("--results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("peers parity", arguments.results)
    for name in ("mlp", "llama"):
        ours = functools.cache(lambda name=name: our_losses(arguments.bin, name))
        for system in ("fsdp2", "deepspeed"):
            report.case(f"{name} {system}", lambda measure: check(ours(), system, name, measure))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
