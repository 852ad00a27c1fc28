"""The models that every system of the benchmarks trains: an MLP and a Llama, and their batches."""
import torch
from torch import nn

LLAMA = dict(vocab_size=4096, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
             num_key_value_heads=8, max_position_embeddings=512, tie_word_embeddings=False)
WIDTH, DEPTH, SEQ = 1024, 8, 128
ROWS = {"mlp": 64, "llama": 4}  # a rank and step
LR = 1e-3


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x, y):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return nn.functional.mse_loss(self.layers[-1](x), y)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM
        self.decoder = LlamaForCausalLM(LlamaConfig(**LLAMA, use_cache=False, attn_implementation="sdpa"))
        self.layers = self.decoder.model.layers

    def forward(self, tokens, targets):
        return self.decoder(input_ids=tokens, labels=targets, use_cache=False).loss


def build(name):
    torch.manual_seed(0)
    return Mlp() if name == "mlp" else Llama()


def batch(name, rank):
    generator = torch.Generator().manual_seed(rank)
    rows = ROWS[name]
    if name == "mlp":
        return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)
    tokens = torch.randint(0, LLAMA["vocab_size"], (rows, SEQ), generator=generator)
    return tokens, tokens
