#!/usr/bin/env python3
"""Prints the numbers that reference_test.cc expects: transformers and torch.optim, same weights.

    python3 golden.py

Needs torch, transformers and numpy from PyPI. Run it by hand when a case changes.
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, SEQ, BATCH, STEPS = 257, 16, 3, 3


class Draws:
    """The linear congruential generator of reference_test.cc: uniform in [-1, 1)."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 40

    def tensor(self, shape):
        count = torch.Size(shape).numel()
        values = [self.bits() / 2**23 - 1 for _ in range(count)]
        return torch.tensor(values, dtype=torch.float32).view(shape)


def llama(tied):
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                         intermediate_size=160, max_position_embeddings=64, rms_norm_eps=1e-6,
                         tie_word_embeddings=tied)
    model = LlamaForCausalLM(config).float()
    draws = Draws(1)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 1:
                weight.copy_(1 + 0.1 * draws.tensor(weight.shape))
            else:
                weight.copy_(0.05 * draws.tensor(weight.shape))
    return model


def tokens(count):
    draws = Draws(2)
    return [draws.bits() % VOCAB for _ in range(count)]


def train(model, loss_of, optimizer, clip, label):
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        optimizer.step()
        print(f"{label}: loss {loss.item():.9g} norm {norm.item():.9g}")
    total = sum(weight.detach().double().abs().sum().item() for weight in model.parameters())
    print(f"{label}: sum of magnitudes {total:.12g}")


def train_bf16(label):
    """bf16 weights that are the rounding of an fp32 copy; the copy is what is stepped."""
    model = llama(tied=False)
    masters = [weight.detach().clone() for weight in model.parameters()]
    model = model.bfloat16()
    loss_of = llama_loss(model)
    optimizer = torch.optim.AdamW(masters, lr=1e-2)
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        loss.backward()
        with torch.no_grad():
            for master, weight in zip(masters, model.parameters()):
                master.grad, weight.grad = weight.grad.float(), None
            optimizer.step()
            for master, weight in zip(masters, model.parameters()):
                weight.copy_(master)
        losses.append(f"{loss.item():.6g}")
    print(f"{label}: losses {', '.join(losses)}")


def llama_loss(model):
    stream = tokens(STEPS * BATCH * SEQ + 1)

    def loss_of(step):
        rows = range(step * BATCH, (step + 1) * BATCH)
        inputs = torch.tensor([stream[r * SEQ:(r + 1) * SEQ] for r in rows])
        targets = torch.tensor([stream[r * SEQ + 1:(r + 1) * SEQ + 1] for r in rows])
        logits = model(input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return loss_of


def generate(model, label):
    prompt = tokens(7)
    done = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False,
                          eos_token_id=None, pad_token_id=0)[0].tolist()
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([done])).logits[0], -1)
    chosen = [logprobs[i - 1, done[i]].item() for i in range(len(prompt), len(done))]
    print(f"{label}: tokens {done[len(prompt):]} logprobs {sum(chosen):.9g}")


def main():
    model = llama(tied=False)
    generate(model, "llama")
    train(model, llama_loss(model), torch.optim.AdamW(model.parameters(), lr=1e-3), 0.5,
          "llama adamw clip")
    generate(model, "llama trained")

    model = llama(tied=False)
    train(model, llama_loss(model),
          torch.optim.Adam(model.parameters(), lr=2e-4, weight_decay=0.1), 0, "llama adam")

    model = llama(tied=True)
    train(model, llama_loss(model),
          torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), 0,
          "tied sgd")
    generate(model, "tied trained")

    train_bf16("llama bf16")

    layers = [torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)]
    net = torch.nn.Sequential(*layers)
    draws = Draws(1)
    with torch.no_grad():
        for layer in (layers[0], layers[2]):
            layer.bias.copy_(0.5 * draws.tensor(layer.bias.shape))
            layer.weight.copy_(0.5 * draws.tensor(layer.weight.shape))
    draws = Draws(2)
    inputs, targets = draws.tensor((4, 5)), draws.tensor((4, 3))
    train(net, lambda step: torch.nn.functional.mse_loss(net(inputs), targets),
          torch.optim.SGD(net.parameters(), lr=0.1), 0, "mlp sgd")


if __name__ == "__main__":
    main()
