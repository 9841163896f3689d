"""The cost and the gain of keeping to a form: random schemas, the time of a token, an answer of JSON against free text.

    python benchmarks/constrained.py --schemas 3000
    python benchmarks/constrained.py --model model.onnx --rounds 40

With `--model` a model of one's own answers in turns with itself: in a grammar that allows everything and freely, and in
a schema against the same tokens without a follower, run as the schema's are or one by one. The tokens of the last two
are those of the answer in the schema: each choice is made, and the stored token taken in its place.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))
sys.path.insert(0, str(Path(__file__).parent / "generation"))

from enlarged import exported
from random_schemas import fits, random_schema

from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.decoding.generation import Writing
from edgeopt.runtime.decoding.grammars import Grammars, form_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.sampling import Chooser, Sampling
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


PROMPT = (
    "<|im_start|>user\nWrite a JSON object with the name, the street with its number and the postal code of a "
    "customer, whether it is a company and the kind of request.<|im_end|>\n<|im_start|>assistant\n"
)


@contextmanager
def stored(tokens: Sequence[int], forced: Mapping[int, list[int]]) -> Iterator[None]:
    """Let answers have stored tokens.

    Args:
        tokens: Of the answer.
        forced: Tokens that run together, by how many tokens stand before them; empty: each runs alone.
    """

    def choose(writing: Writing, logits: NDArray[np.float32], more: Sequence[int] = ()) -> int:
        logits.argmax()
        return tokens[len(writing.answer) + len(more)]

    def follows(writing: Writing) -> list[int]:
        return [] if writing.is_over else forced.get(len(writing.answer), [])

    kept = Writing.choose, Writing.forced
    Writing.choose, Writing.forced = choose, follows  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writing.choose, Writing.forced = kept  # type: ignore[method-assign]


def forced_of(model: LanguageModel) -> tuple[list[int], dict[int, list[int]]]:
    """Return the tokens of the answer in the schema, and those that it forces, by how many tokens stand before them."""
    forced, plain = dict[int, list[int]](), Writing.forced

    def noted(writing: Writing) -> list[int]:
        made = plain(writing)
        if made:
            forced[len(writing.answer)] = made
        return made

    Writing.forced = noted  # type: ignore[method-assign]
    try:
        tokens = [piece.token for piece in model.generate(PROMPT, schema=PERSON, most_tokens=96)]
    finally:
        Writing.forced = plain  # type: ignore[method-assign]
    return tokens, forced


def show_turns(model: LanguageModel, rounds: int) -> None:
    """Print what following costs a token, and what forced tokens save, in turns."""
    tokens, forced = forced_of(model)
    text = model.tokenizer.decode(tokens)
    print(f"{len(tokens)} tokens, {sum(map(len, forced.values()))} of them forced: {text}")

    def seconds(**asked: object) -> tuple[float, list[int]]:
        answer = model.generate(PROMPT, most_tokens=len(tokens), **asked)  # type: ignore[arg-type]
        made = [piece.token for piece in answer]
        times = answer.account.token_at_ns
        return (times[-1] - times[0]) / 1e9 / (len(times) - 1), made

    def with_stored(together: Mapping[int, list[int]]) -> tuple[float, list[int]]:
        with stored(tokens, together):
            return seconds()

    ways: dict[str, Callable[[], tuple[float, list[int]]]] = {
        "free": seconds,
        "everything allowed": lambda: seconds(grammar=ANY_TEXT),
        "the schema": lambda: seconds(schema=PERSON),
        "its tokens, forced ones together": lambda: with_stored(forced),
        "its tokens one by one": lambda: with_stored({}),
    }
    times = {name: list[float]() for name in ways}
    for number in range(-2, rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            took, made = ways[name]()
            same = "free" if name == "everything allowed" else name
            assert made == (tokens if same != "free" else ways["free"]()[1] if number < 0 else made)
            if number >= 0:
                times[name].append(took)
    for name, series in times.items():
        print(f"{name}: median {1e3 * np.median(series):.3f} ms a token")
    for name, other in (
        ("everything allowed", "free"),
        ("the schema", "its tokens, forced ones together"),
        ("the schema", "its tokens one by one"),
    ):
        logs = np.log(np.array(times[other]) / np.array(times[name]))
        print(f"{name}: {ratio_of_rounds(logs, pairs=rounds)} of the speed of {other}")


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
    times, chooser = list[float](), Chooser(Sampling())
    while len(times) < 600:
        follower, answer = grammars.follower(form_of(schema, "", grammar)), list[int]()
        while len(answer) < 300:
            logits = rng.normal(size=50_001).astype(np.float32)
            began = perf_counter()
            token = chooser.choose(logits, (), (), follower.behind(answer))
            took = perf_counter() - began
            answer.append(token)
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
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    print(read_environment().cpu)
    if given.model:
        own, _ = open_language_model(given.model, 1)
        with own:
            show_turns(own, given.rounds)
        return
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
