#!/usr/bin/env python3
"""Small models of each family on 1, 2 and 3 ranks of a real daemon, beside transformers and torch.optim.AdamW.

    transformers_parity.py --bin=DIR [--results=FILE]

Transformers makes the folder; Regroup generates from it, trains three steps, exports; transformers loads the export.
"""
import argparse
import json
import os
import random
import struct
import sys

import torch
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)
from transformers.utils import logging

from cluster import Cluster
from report import Report

VOCAB, SEQ, BATCH, STEPS, NEW, LR = 257, 24, 5, 3, 24, 1e-3
COMMON = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=160, max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, tie_word_embeddings=False)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**COMMON, tie_word_embeddings=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON, tie_word_embeddings=False)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=False)),
}
PROMPTS = [[3, 1, 4, 1, 5], [256, 0, 128], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]]
RANKS = {1: "2", 2: "0-1", 3: "2,0-1"}


def make_model(family):
    """Weights apart enough that no two tokens nearly tie, norms and biases included (both start as constants)."""
    kind, config = FAMILIES[family]
    torch.manual_seed(5)
    model = kind(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape)
            weight.copy_(0.3 * noise if name.endswith(".bias") else 1 + 0.1 * noise if weight.dim() == 1 else 0.12 * noise)
    return model


def write_tokens(path):
    """A stream that a run of STEPS * BATCH rows goes around: its rows are fewer."""
    draws = random.Random(7)
    stream = [draws.randrange(VOCAB) for _ in range((STEPS * BATCH - 2) * SEQ + 1)]
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(stream)}H", *stream))
    return stream


def train(model, stream):
    """Losses of plain torch on the rows that docs/cli.md says a step takes."""
    rows = (len(stream) - 1) // SEQ
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    losses = []
    for step in range(STEPS):
        taken = [stream[r * SEQ:r * SEQ + SEQ + 1] for r in ((step * BATCH + i) % rows for i in range(BATCH))]
        batch = torch.tensor(taken)
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def greedy(model, prompts=PROMPTS, count=NEW):
    """What transformers' own generate() continues each prompt with."""
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                               pad_token_id=0)
        outputs.append(whole[0, len(prompt):].tolist())
    return outputs


def logprobs(model, prompt, tokens):
    """Of each of `tokens` after `prompt`, in one pass; and the least lead of the likeliest token over the second."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1]
    scores = torch.log_softmax(logits, -1)
    best = scores.topk(2).values
    return scores.gather(1, torch.tensor(tokens)[:, None])[:, 0], (best[:, 0] - best[:, 1]).min().item()


def generate(cluster, engine, *flags, prompts=PROMPTS, count=NEW):
    path = os.path.join(cluster.folder, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(prompt) + "\n" for prompt in prompts)
    return cluster.call("generate", engine, f"--tokens-file={path}", f"--max-tokens={count}", *flags)[0]["outputs"]


def compare_generation(measure, what, cluster, engine, model, expected):
    outputs = generate(cluster, engine)
    wrong = sum(a != b for output, tokens in zip(outputs, expected, strict=True)
                for a, b in zip(output["tokens"], tokens, strict=True))
    lead = min(logprobs(model, prompt, tokens)[1] for prompt, tokens in zip(PROMPTS, expected))
    if lead < 1e-4:  # what log-probs may differ by
        raise AssertionError(f"two tokens are only {lead:.1e} apart: take another seed")
    measure(f"{what}: other greedy tokens", wrong, 0)
    # Sampled tokens are unlikely ones too.
    outputs += generate(cluster, engine, "--temperature=1", "--seed=11")
    worst = max((torch.tensor(output["logprobs"]) - logprobs(model, prompt, output["tokens"])[0]).abs().max().item()
                for prompt, output in zip(PROMPTS * 2, outputs, strict=True))
    measure(f"{what}: log-prob", worst, 1e-4)


def check(cluster, family, size, folder, stream, measure):
    ranks, export = RANKS[size], os.path.join(cluster.folder, f"export-{family}-{size}")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    try:
        expected = greedy(model)
        cluster.call("engine", "create", "rollout", f"--ranks={ranks}", f"--model={folder}", "--role=infer")
        compare_generation(measure, "infer", cluster, "rollout", model, expected)
        cluster.call("engine", "create", "actor", f"--ranks={ranks}", f"--model={folder}", f"--lr={LR}")
        compare_generation(measure, "trainer", cluster, "actor", model, expected)
        steps = cluster.call("train", "actor", f"--data={cluster.folder}/text.u16.bin", f"--steps={STEPS}",
                             f"--batch={BATCH}", f"--seq={SEQ}")
        losses = train(model, stream)
        measure("loss, relative", max(abs(step["loss"] / loss - 1) for step, loss in zip(steps, losses, strict=True)),
                1e-5)
        cluster.call("export", "actor", export)
        exported = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32).eval()
        theirs, ours = model.state_dict(), exported.state_dict()
        if theirs.keys() != ours.keys():
            raise AssertionError(f"the export has other tensors: {theirs.keys() ^ ours.keys()}")
        before = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        still = [name for name in ours if torch.equal(ours[name], before[name])]
        if still:
            raise AssertionError(f"training left {still} as they were")
        measure("weight", max((theirs[name] - ours[name]).abs().max().item() for name in theirs), 1e-4)
        cluster.call("engine", "delete", "rollout")
        cluster.call("engine", "create", "rollout", f"--ranks={ranks}", f"--model={export}", "--role=infer")
        compare_generation(measure, "export", cluster, "rollout", exported, greedy(exported))
    finally:
        for engine in cluster.call("engine", "list")[0]["engines"]:
            cluster.call("engine", "delete", engine["name"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of daemon/regroupd and client/regroupctl")
    parser.add_argument("--results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report = Report("transformers parity", arguments.results)
    with Cluster(arguments.bin, 3) as cluster:
        stream = write_tokens(os.path.join(cluster.folder, "text.u16.bin"))
        for family in FAMILIES:
            folder = os.path.join(cluster.folder, family)
            make_model(family).save_pretrained(folder)
            for size in RANKS:
                report.case(f"{family} on {size}", lambda measure: check(cluster, family, size, folder, stream, measure))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
