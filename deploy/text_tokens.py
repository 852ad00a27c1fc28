#!/usr/bin/env python3
"""Text to tokens and back, with the tokenizer.json of a model folder.

    text_tokens.py corpus MODEL_DIR OUT.u16.bin FILE ...   fortune files (entries end with a line "%") ->
                                                          little-endian 16-bit ids, <|endoftext|> between entries
    text_tokens.py prompts MODEL_DIR OUT.jsonl TEXT ...    each text as one JSON array of ids a line; a text that
                                                          starts with "chat:" goes into the model's chat format
    text_tokens.py show MODEL_DIR TEXT ...                 reads what `regroupctl -o json generate` printed for these
                                                          texts from standard input, prints it as text
"""

import array
import json
import os
import sys
import textwrap

from tokenizers import Tokenizer

SEPARATOR = "<|endoftext|>"
CHAT_MARK = "chat:"
# SmolLM2's chat format with its own system prompt.
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)


def load(folder):
    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def entries_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return [entry.strip("\n") for entry in text.split("\n%\n") if entry.strip()]


def corpus(folder, out, files):
    tokenizer = load(folder)
    if tokenizer.get_vocab_size() > 65536:
        raise SystemExit(f"text_tokens: {folder}: more than 65536 tokens do not fit 16 bits")
    separator = tokenizer.token_to_id(SEPARATOR)
    ids = array.array("H")
    for path in files:
        for encoding in tokenizer.encode_batch(entries_of(path)):
            ids.extend(encoding.ids)
            ids.append(separator)
    if sys.byteorder == "big":
        ids.byteswap()
    with open(out + ".part", "wb") as file:
        ids.tofile(file)
    os.rename(out + ".part", out)
    print(f"{len(ids):,} tokens of {len(files)} files")


def prompts(folder, out, texts):
    tokenizer = load(folder)
    with open(out, "w", encoding="utf-8") as file:
        for text in texts:
            if text.startswith(CHAT_MARK):
                text = CHAT.format(question=text.removeprefix(CHAT_MARK).strip())
            file.write(json.dumps(tokenizer.encode(text).ids) + "\n")


def show(folder, texts):
    tokenizer = load(folder)
    outputs = json.load(sys.stdin)["outputs"]
    if len(outputs) != len(texts):
        raise SystemExit(f"text_tokens: {len(texts)} texts, but {len(outputs)} outputs")
    for text, output in zip(texts, outputs):
        answer = tokenizer.decode(output["tokens"], skip_special_tokens=True)
        if text.startswith(CHAT_MARK):
            text = text.removeprefix(CHAT_MARK).strip() + " -"
            answer = " " + answer.strip()
        whole = " ".join((text + answer).split())
        print(textwrap.fill(whole, 96, initial_indent="  * ", subsequent_indent="    "))


def main(arguments):
    match arguments:
        case ["corpus", folder, out, *files] if files:
            corpus(folder, out, files)
        case ["prompts", folder, out, *texts] if texts:
            prompts(folder, out, texts)
        case ["show", folder, *texts] if texts:
            show(folder, texts)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
