#!/usr/bin/env python3
"""Writes the first inputs of each fuzz target to corpus/TARGET/seed-*; what a fuzzer adds has other names.

    python3 tests/fuzz/make_corpus.py
"""

import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def write(target, inputs):
    folder = os.path.join(HERE, target)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.startswith("seed-"):
            os.remove(os.path.join(folder, name))
    for i, data in enumerate(inputs):
        with open(os.path.join(folder, f"seed-{i:02}"), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())


LLAMA = {
    "model_type": "llama", "vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32", "eos_token_id": [1, 2], "initializer_range": 0.02,
}


def config(**changes):
    return json.dumps({**LLAMA, **changes})


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# The wire format of protocol buffers, as far as the requests need it.
def varint(value):
    out = b""
    value &= (1 << 64) - 1
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value if isinstance(value, bytes) else value.encode()
    return varint(number << 3 | 2) + varint(len(data)) + data


def main():
    write("rank_list_fuzz", ["0", "0-3", "0,2", "2,0-1", "3-1", "0,0", "0-99999", "99999999999999999999", "0-", ",", "-1"])
    write("config_fuzz", [
        config(), "{}", "[]", json.dumps({"model_type": "mlp", "in": 8, "hidden": 16, "layers": 2, "out": 4}),
        config(rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 32}),
        config(rope_parameters={"rope_type": "default", "rope_theta": 1e4}), config(rope_scaling={"type": "yarn"}),
        config(model_type="qwen2", use_sliding_window=False, sliding_window=None, layer_types=["full_attention"] * 2),
        config(model_type="qwen3", attention_bias=False), config(vocab_size=2**63), config(num_hidden_layers=10000),
        config(hidden_size=-1), config(rms_norm_eps=1e400), config(dtype="bfloat16", torch_dtype="float16"),
        '{"a":' * 40 + "1" + "}" * 40, '{"model_type":"llama","model_type":"mlp"}',
    ])
    write("mlp_spec_fuzz", ["in=8,hidden=16,layers=2,out=4", "in=0,hidden=1,layers=1,out=1", "in=8", "in=8,in=8",
                            "in=99999999999999999999,hidden=16,layers=2,out=4", "out=1,layers=1,hidden=1,in=1"])
    pair = {"a": tensor("F32", [2, 2], 0, 16), "b": tensor("BF16", [3], 16, 22)}
    write("safetensors_fuzz", [
        safetensors(pair, bytes(22)), safetensors({**pair, "__metadata__": {"format": "pt"}}, bytes(22)),
        safetensors(pair, bytes(21)), safetensors(pair, bytes(23)), safetensors({}, b""), b"", b"abc",
        safetensors(pair, bytes(22), length=2**63), safetensors(pair, bytes(22), length=0),
        safetensors({"a": tensor("F32", [2**62, 4], 0, 16)}, bytes(16)),
        safetensors({"a": tensor("F32", [4], 0, 16), "b": tensor("F32", [4], 8, 24)}, bytes(24)),
        safetensors({"a": tensor("F32", [0], 0, 0), "b": tensor("F32", [], 0, 4)}, bytes(4)),
        safetensors(b'{"a":1,"a":2}'), safetensors({"a": tensor("F99", [1], 0, 4)}, bytes(4)),
        safetensors({"a": tensor("F32", [-1, -4], 0, 16)}, bytes(16)),
    ])
    u16 = struct.pack("<10H", *range(10))
    u32 = struct.pack("<10I", *range(10))
    write("data_fuzz", [
        b"\0\3" + u16, b"\0\3" + u16[:-1], b"\0\3" + struct.pack("<5H", 1, 2, 300, 4, 5), b"\1\3" + u32, b"\1\7",
        b"\2\0" + b'{"x": [1, 2], "y": [3]}\n{"y": [0.5], "x": [-1, 1e3]}\r\n', b"\2\0" + b'{"x": [1], "y": [3]}\n',
        b"\2\0" + b'{"x": [1, 1e400], "y": [3]}', b"\3\4" + b'{"tokens": [1, 2, 3], "mask": [0, 1, 1]}\n{"tokens": [4, 5]}\n',
        b"\3\4" + b'{"tokens": [1, 2, 3], "mask": [0, 1]}', b"\3\1" + b'{"tokens": [1, 2, 3]}', b"\3\2" + b"\n\n",
    ])
    write("prompts_fuzz", ["[1, 2, 3]\n[4]", "[1]\n\n[2]", "[]", "[1.5]", "[-1]", "[2147483648]", '{"a": 1}', "[[1]]", ""])
    layout = field(1, b"\0\1") + field(2, 2)
    optimizer = field(1, "adamw") + field(2, 1e-3) + field(4, 0.9) + field(5, 0.999) + field(6, 1e-8)
    spec = (field(1, "actor") + field(2, "mlp:in=8,hidden=16,layers=2,out=4") + field(3, 1) + field(5, layout) +
            field(6, optimizer))
    write("request_fuzz", [
        b"\0" + field(1, "id") + field(2, spec), b"\0" + field(2, field(1, "../x")), b"\0" + field(2, spec + field(2, "/dev/shm")),
        b"\1" + field(1, "id") + field(2, "actor") + field(3, layout), b"\1" + field(3, field(1, b"\3\3")),
        b"\2" + field(1, "id") + field(2, "actor") + field(3, "/dev/shm/x.u16.bin") + field(4, 1) + field(5, 1) + field(6, 8),
        b"\3" + field(1, "id") + field(2, "rollout") + field(3, field(1, b"\1\2\3")) + field(4, 8) + field(6, 0.5),
        b"\4" + field(1, "id") + field(2, "actor") + field(3, "/dev/shm/out"), b"\4" + field(3, "/etc/out"),
        b"\5" + field(1, "id") + field(2, "actor") + field(3, "rollout"), b"\5" + field(2, "a") + field(3, "a"),
        b"\6" + field(1, "id") + field(2, "actor") + field(5, 0.01), b"\6" + field(2, "rollout") + field(3, 1) + field(5, -1.0),
    ])


if __name__ == "__main__":
    main()
