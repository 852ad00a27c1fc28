#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as deploy/make_data.sh made it: Regroup's greedy text is that of transformers' generate().

    smollm2_parity.py --bin=DIR --data=FOLDER [--results=FILE]
"""
import argparse
import os
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from cluster import Cluster
from report import Report
from transformers_parity import generate, greedy, logprobs

NEW = 32
PROMPTS = ["The secret of a good life is", "Mark Twain:", "In the beginning there was"]


def check(cluster, engine, prompts, model, expected, tokenizer, measure):
    outputs = generate(cluster, engine, prompts=prompts, count=NEW)
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        text = tokenizer.decode(prompt)
        theirs, lead = logprobs(model, prompt, tokens)
        if lead < 1e-4:
            raise AssertionError(f"{text!r}: two tokens are only {lead:.1e} apart: take another prompt")
        if output["tokens"] != tokens:
            raise AssertionError(f"{tokenizer.decode(output['tokens'])!r} instead of {tokenizer.decode(tokens)!r}")
        measure(f"{text!r}: log-prob", (torch.tensor(output["logprobs"]) - theirs).abs().max().item(), 1e-4)
        print(f"  {text}{tokenizer.decode(tokens)}".replace("\n", " "))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of daemon/regroupd and client/regroupctl")
    parser.add_argument("--data", required=True, help="folder that deploy/make_data.sh filled")
    parser.add_argument("--results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = os.path.realpath(os.path.join(arguments.data, "smollm2"))
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = greedy(model, prompts, NEW)
    report = Report("SmolLM2 parity", arguments.results)
    with Cluster(arguments.bin, 3, [folder]) as cluster:
        cluster.call("engine", "create", "rollout", "--ranks=2", f"--model={folder}", "--role=infer")
        cluster.call("engine", "create", "actor", "--ranks=0-1", f"--model={folder}", "--lr=1e-5")
        for engine, name in (("rollout", "infer on 1"), ("actor", "trainer on 2")):
            report.case(name, lambda measure: check(cluster, engine, prompts, model, expected, tokenizer, measure))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
