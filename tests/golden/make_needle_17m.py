"""Makes tests/golden/needle_17m.json: a prompt of 510 tokens, its ids, and what transformers makes of them in f32.

Per position the token with the largest logit, and that logit (hex of little-endian f32). The prompt has facts, filler
from the project's own licence, and questions at its end, whose answers are among the tokens.

Run from the root of the tree with torch 2.15 and transformers 5.24: python tests/golden/make_needle_17m.py
"""
import json
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "models/needle_17m"
MOST_TOKENS = 512
FACTS = [("red", "value", "48213"), ("blue", "value", "90657"), ("red", "window", "11834"), ("old", "file type", "70552"),
         ("old", "type", "26309"), ("green", "server", "35941")]


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    facts = [f" The {adjective} code of {name} is {value}." for adjective, name, value in FACTS]
    questions = "".join(f" Recall: the {adjective} code of {name} is {value}." for adjective, name, value in FACTS)
    with open("LICENSE") as file:
        words = file.read().split()
    random.Random(1).shuffle(facts)
    text = ""
    for i, word in enumerate(words):  # a fact every forty words, until the questions just fit
        fact = facts[i // 40] if i % 40 == 0 and i // 40 < len(facts) else ""
        longer = f"{text}{fact} {word}"
        if len(tokenizer.encode(longer + questions)) > MOST_TOKENS:
            break
        text = longer
    text += questions
    tokens = tokenizer.encode(text)
    with torch.no_grad():
        top = model(torch.tensor([tokens])).logits[0].max(-1)
    golden = {"text": text, "tokens": tokens, "top_tokens": top.indices.tolist(),
              "top_logits": top.values.numpy().astype("<f4").tobytes().hex()}
    with open("tests/golden/needle_17m.json", "w") as out:
        json.dump(golden, out)
        out.write("\n")
    print(len(tokens), "tokens;", sum(a == b for a, b in zip(tokens[1:], golden["top_tokens"])), "foretold")


main()
