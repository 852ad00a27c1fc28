#!/usr/bin/env python3
"""Prints golden.json: what transformers and torch.optim compute with small models of each family.

    python3 golden.py > golden.json

Needs torch, transformers and numpy from PyPI. Run it by hand when a case changes.
"""
import json
import os
import tempfile

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

VOCAB, SEQ, BATCH, STEPS, NEW = 257, 16, 3, 3, 12
COMMON = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, intermediate_size=160, max_position_embeddings=64,
              rms_norm_eps=1e-6, eos_token_id=None)
# Of its eight wavelengths one stays, one lies between, and the others get eight times as long.
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
CASES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON)),
    "qwen3_tied": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=24, tie_word_embeddings=True)),
    "qwen3_bias": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=16, attention_bias=True)),
    "llama_rope_llama3": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LLAMA3)),
}


class Draws:
    """The linear congruential generator of parity_test.cc: uniform in [-1, 1)."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 40

    def tensor(self, shape):
        count = torch.Size(shape).numel()
        values = [self.bits() / 2**23 - 1 for _ in range(count)]
        return torch.tensor(values, dtype=torch.float32).view(shape)


def fill(model):
    draws = Draws(1)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if name.endswith(".bias"):
                weight.copy_(0.3 * draws.tensor(weight.shape))
            elif weight.dim() == 1:
                weight.copy_(1 + 0.1 * draws.tensor(weight.shape))
            else:
                weight.copy_(0.2 * draws.tensor(weight.shape))


def tokens(count):
    draws = Draws(2)
    return [draws.bits() % VOCAB for _ in range(count)]


def config_of(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return json.load(file)


def rounded(values, digits=7):
    return [float(f"{value:.{digits}g}") for value in values]


def greedy(model):
    """New tokens after the first 7 of the stream; none of them a near tie."""
    row = tokens(7)
    with torch.no_grad():
        for _ in range(NEW):
            best = torch.log_softmax(model(torch.tensor([row])).logits[0, -1], -1).topk(2)
            assert best.values[0] - best.values[1] > 1e-3, "a near tie: change the case"
            row.append(best.indices[0].item())
    return row[7:]


def train(model):
    stream = tokens(STEPS * BATCH * SEQ + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    for step in range(STEPS):
        rows = range(step * BATCH, (step + 1) * BATCH)
        inputs = torch.tensor([stream[r * SEQ:(r + 1) * SEQ] for r in rows])
        targets = torch.tensor([stream[r * SEQ + 1:(r + 1) * SEQ + 1] for r in rows])
        optimizer.zero_grad()
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def case(name, family, config):
    model = family(config).float().eval()
    fill(model)
    row = tokens(48)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([row])).logits[0], -1)
    result = {"name": name, "config": config_of(model)}
    result["logprobs"] = rounded(logprobs[i, row[i + 1]].item() for i in range(len(row) - 1))
    result["last"] = rounded(logprobs[-1].tolist())
    result["tokens"] = greedy(model)
    losses, norms = train(model)
    result["losses"], result["norms"] = rounded(losses, 9), rounded(norms, 9)
    result["trained"] = greedy(model)
    return result


def main():
    torch.manual_seed(0)
    results = [case(name, family, config) for name, (family, config) in CASES.items()]
    print("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]")


if __name__ == "__main__":
    main()
