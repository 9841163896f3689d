"""What keeping to a form costs and saves: random schemas, the time of a token, an answer of JSON against free text.

python benchmarks/constrained.py --schemas 3000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))
sys.path.insert(0, str(Path(__file__).parent / "generation"))

from enlarged import exported
from random_schemas import fits, random_schema

from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.decoding.grammars import Grammars, form_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.machine.environment import read_environment

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "street_and_number": {"type": "string", "maxLength": 24},
        "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
        "is_company": {"type": "boolean"},
        "kind_of_request": {"enum": ["question", "complaint", "cancellation"]},
    },
    "required": ["name", "street_and_number", "postal_code", "is_company", "kind_of_request"],
}
ANY_TEXT = "start: /(.|\\n)*/"
"""A grammar that allows everything: what following costs, and nothing of what it saves."""


def count_valid(model: LanguageModel, count: int) -> tuple[int, int, int]:
    """Return how many answers keep to their schema, how many were whole, and how many schemas were tried."""
    rng, valid, whole = np.random.default_rng(1), 0, 0
    for seed in range(count):
        schema = random_schema(rng)
        answer = model.generate("import os\n", schema=schema, temperature=1.0, seed=seed, most_tokens=400)
        text = answer.text()
        if answer.account.reason == "end":
            whole += 1
            valid += fits(json.loads(text), schema)
    return valid, whole, count


def seconds_a_token(model: LanguageModel, **asked: object) -> tuple[float, int]:
    """Return the mean seconds of a token after the first, and how many there were."""
    answer = model.generate("import os\n", most_tokens=96, **asked)  # type: ignore[arg-type]
    answer.text()
    times = answer.account.token_at_ns
    return (times[-1] - times[0]) / 1e9 / max(len(times) - 1, 1), len(times)


def compare(model: LanguageModel, rounds: int, **asked: object) -> str:
    """Return how many times as fast a token comes as in free text, with its interval, in turns."""
    logs = []
    for i in range(-1, rounds):
        order = (("free", {}), ("form", asked))
        found = {name: seconds_a_token(model, **wish)[0] for name, wish in order[:: -1 if i % 2 else 1]}
        if i >= 0:
            logs.append(np.log(found["free"] / found["form"]))
    return str(ratio_of_rounds(np.array(logs), pairs=rounds))


class RandomTokens:
    """A vocabulary of random words, as large as those of today's models."""

    special: Mapping[str, int] = {"<end>": 50_000}
    size = 50_000

    def __init__(self) -> None:
        rng, words = np.random.default_rng(0), dict.fromkeys(bytes([byte]) for byte in range(256))
        letters = list("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;{}[]\"'_-\n")
        while len(words) < self.size:
            words["".join(rng.choice(letters, size=rng.integers(2, 9))).encode()] = None
        self._words = list(words)

    def encode(self, text: str, *, reads_special: bool = False) -> list[int]:
        """Return a token a byte."""
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        """Return the word of a token."""
        return self._words[token] if token < self.size else b""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


def following_us(schema: Mapping[str, object] | None, grammar: str) -> tuple[float, float]:
    """Return median and p99 of what following takes a token, in microseconds, where tokens are drawn at random."""
    grammars, rng = Grammars(RandomTokens(), 50_001, [50_000]), np.random.default_rng(0)
    times = list[float]()
    while len(times) < 600:
        follower, answer = grammars.follower(form_of(schema, "", grammar)), list[int]()
        while len(answer) < 300:
            logits = rng.normal(size=50_001).astype(np.float32)
            began = perf_counter()
            allowed = follower.allowed(logits, answer)
            took = perf_counter() - began
            answer.append(int(allowed.argmax()))
            began = perf_counter()
            is_over = answer[-1] == 50_000 or follower.is_whole(answer)
            answer += [] if is_over else follower.forced(answer)
            times.append(1e6 * (took + perf_counter() - began))
            if is_over:
                break
    return float(np.median(times)), float(np.quantile(times, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("out/constrained"))
    given = parser.parse_args()
    print(read_environment().cpu)
    model, _ = open_language_model(find_language_model("tiny_lm"), 1)
    with model:
        began = perf_counter()
        valid, whole, count = count_valid(model, given.schemas)
        print(f"{valid} of {whole} whole answers keep to their schema; {count} schemas, {perf_counter() - began:.0f} s")
    for name, schema, grammar in (("all is allowed", None, ANY_TEXT), ("a schema of five fields", PERSON, "")):
        median, p99 = following_us(schema, grammar)
        print(f"following, 50,000 tokens, {name}: median {median:.0f} us a token, p99 {p99:.0f} us")
    large, _ = open_language_model(exported(given.folder), 1)
    with large:
        free_s, _ = seconds_a_token(large)
        print(f"a token of free text takes {1e3 * free_s:.2f} ms on the enlarged model")
        print(f"in a grammar that allows everything {compare(large, given.rounds, grammar=ANY_TEXT)} of its speed")
        print(f"in a schema of five fields {compare(large, given.rounds, schema=PERSON)}")


if __name__ == "__main__":
    main()
