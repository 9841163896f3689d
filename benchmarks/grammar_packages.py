"""llguidance beside xgrammar over the same schemas: what they take, whether masks are right, times, sizes.

    pip install edgeopt llguidance torch && pip install --no-deps xgrammar apache-tvm-ffi
    python benchmarks/grammar_packages.py [--tokenizer tokenizer.json] [--schemas 500]

Random schemas and a check of values come from `tests/fixtures/random_schemas.py`. Each package draws tokens from its
own masks, and the whole texts are checked; values made apart are then fed to both, which should take them. Both compile
on one thread and keep nothing of schemas before. The order turns round with each schema.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import files, version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

from random_schemas import fits, random_schema

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.tokens import Tokens, read_tokens
from edgeopt.runtime.decoding.grammars import Grammars, closed_schema, form_of
from edgeopt.system.machine.environment import read_environment

SHIPPED = Path(__file__).parents[1] / "models" / "tiny_lm" / "tokenizer.json"
MOST_TOKENS = 300
KEYWORDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "pattern": ({"type": "string", "pattern": "^[0-9]{5}$"}, "12345", "1234"),
    "format: date": ({"type": "string", "format": "date"}, "2026-02-03", "2026-13-03"),
    "format: uuid": ({"type": "string", "format": "uuid"}, "123e4567-e89b-42d3-a456-426614174000", "123e4567"),
    "minLength, maxLength": ({"type": "string", "minLength": 2, "maxLength": 3}, "ab", "abcd"),
    "minimum, maximum of integers": ({"type": "integer", "minimum": -3, "maximum": 120}, 120, 121),
    "minimum, maximum of numbers": ({"type": "number", "minimum": 0.5, "maximum": 2.5}, 2.25, 2.75),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, 9, 10),
    "enum": ({"enum": ["a", 1, None]}, None, "b"),
    "const": ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, True, "x"),
    "oneOf": ({"oneOf": [{"const": 1}, {"enum": [1, 2]}]}, 2, 1),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 4}]}, 3, 5),
    "not": ({"type": "integer", "not": {"const": 3}}, 4, 3),
    "minItems, maxItems": ({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}, [1], [1, 1, 1]),
    "prefixItems": ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False}, [1, 2], [2, 1]),
    "uniqueItems": ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, [1, 2], [1, 1]),
    "contains": ({"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}}, [1, 2], [1, 1]),
    "$ref": ({"$defs": {"a": {"const": 7}}, "$ref": "#/$defs/a"}, 7, 8),
    "$ref to itself": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        {"next": {"next": {}}},
        {"next": 1},
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
        {"ab": 1},
        {"ab": "x"},
    ),
    "minProperties": (
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        {"a": 1},
        {},
    ),
    "if, then": ({"enum": [1, 2, 3], "if": {"const": 1}, "then": False}, 2, 1),
}
"""Words of schemas, each with a value that keeps to it and one that does not."""


class RefusedError(Exception):
    """A schema that a package does not take."""


class Llguidance:
    """The package as edgeopt uses it."""

    name = "llguidance"

    def __init__(self, tokens: Tokens) -> None:
        end = tokens.size
        self._count, self._grammars = tokens.size + 1, Grammars(tokens, tokens.size + 1, [end])

    def begin(self, schema: dict[str, Any]) -> None:
        """Compile a schema and begin a text, or raise where it is not taken."""
        try:
            self._follower = self._grammars.follower(form_of(schema, "", ""))  # type: ignore[arg-type]
        except EdgeoptError as error:
            raise RefusedError(str(error)) from error
        self._matcher = self._follower._matcher

    def mask(self) -> bytes:
        """Return which tokens may follow, a bit each."""
        made: bytes = self._matcher.compute_bitmask()
        return made

    def accept(self, token: int) -> bool:
        """Return whether a token may follow; if so, the text goes on with it."""
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def is_whole(self) -> bool:
        """Return whether the text may end here."""
        return bool(self._matcher.is_accepting())


class Xgrammar:
    """The package with the same vocabulary and the same separators."""

    name = "xgrammar"

    def __init__(self, tokens: Tokens) -> None:
        import xgrammar

        self._package, self._count = xgrammar, tokens.size + 1
        words = [tokens.token_bytes(token) for token in range(tokens.size)]
        info = xgrammar.TokenizerInfo(
            [*words, b"<end>"], xgrammar.VocabType.RAW, vocab_size=self._count, stop_token_ids=[tokens.size]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = xgrammar.allocate_token_bitmask(1, self._count)

    def begin(self, schema: dict[str, Any]) -> None:
        """Compile a schema and begin a text, or raise where it is not taken."""
        try:
            compiled = self._compiler.compile_json_schema(
                json.dumps(closed_schema(schema)), any_whitespace=False, separators=(", ", ": "), strict_mode=True
            )
        except Exception as error:  # the package raises what its parts do
            raise RefusedError(str(error)) from error
        self._matcher = self._package.GrammarMatcher(compiled)

    def mask(self) -> bytes:
        """Return which tokens may follow, a bit each."""
        self._bits.fill_(-1)  # it leaves the mask as it is where all is allowed
        self._matcher.fill_next_token_bitmask(self._bits)
        made: bytes = self._bits.numpy().tobytes()
        return made

    def accept(self, token: int) -> bool:
        """Return whether a token may follow; if so, the text goes on with it."""
        return bool(self._matcher.accept_token(token))

    def is_whole(self) -> bool:
        """Return whether the text may end here."""
        return bool(self._matcher.is_completed())


def value_of(schema: dict[str, Any], rng: np.random.Generator) -> Any:
    """Return a value that keeps to a schema of `random_schema`."""
    if "anyOf" in schema:
        return value_of(schema["anyOf"][int(rng.integers(len(schema["anyOf"])))], rng)
    if "enum" in schema:
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    kind = schema.get("type", "const")
    if kind == "object":
        names = [name for name in schema["properties"] if name in schema["required"] or rng.random() < 0.5]
        return {name: value_of(schema["properties"][name], rng) for name in names}
    if kind == "array":
        return [value_of(schema["items"], rng) for _ in range(rng.integers(schema["minItems"], schema["maxItems"] + 1))]
    if kind == "string":
        length = int(rng.integers(schema["minLength"], schema["maxLength"] + 1))
        return "".join(rng.choice(list("aZ 9üß€😀_-"), size=length))
    if kind in ("integer", "number"):
        whole = int(rng.integers(schema["minimum"], schema["maximum"] + 1))
        return whole if kind == "integer" or whole == schema["maximum"] else whole + int(rng.integers(1, 100)) / 100
    return {"boolean": bool(rng.integers(2)), "null": None}.get(kind, schema.get("const"))


def takes(package: Llguidance | Xgrammar, tokens: Tokens, schema: dict[str, Any], value: Any) -> bool:
    """Return whether the package takes a value as a whole text, written with blanks or without."""
    for separators in ((", ", ": "), (",", ":")):
        package.begin(schema)
        text = json.dumps(value, ensure_ascii=False, separators=separators)
        if all(package.accept(token) for token in tokens.encode(text)) and package.is_whole():
            return True
    return False


def drawn(package: Llguidance | Xgrammar, tokens: Tokens, seed: int, times: dict[str, list[float]]) -> str | None:
    """Return a text whose tokens are drawn evenly from the package's masks; None: it was cut, or came to no end."""
    rng, answer = np.random.default_rng(seed), list[int]()
    for _ in range(MOST_TOKENS):
        began = perf_counter()
        bits = package.mask()
        times["mask, us"].append(1e6 * (perf_counter() - began))
        places = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: tokens.size + 1])
        if not len(places):
            return tokens.decode(answer) if package.is_whole() else None
        token = int(rng.choice(places))
        if token == tokens.size:
            return tokens.decode(answer)
        began = perf_counter()
        is_taken = package.accept(token)
        times["consumption, us"].append(1e6 * (perf_counter() - began))
        if not is_taken:
            return None
        answer.append(token)
    return None


def outcome(package: Llguidance | Xgrammar, tokens: Tokens, case: tuple[dict[str, Any], Any, Any]) -> str:
    """Return what a package makes of a word of schemas."""
    schema, good, bad = case
    try:
        takes_good, takes_bad = (takes(package, tokens, schema, value) for value in (good, bad))
    except RefusedError:
        return "refused"
    if takes_good:
        return "takes what is wrong" if takes_bad else "kept to"
    return "refuses what is right"


def size_mb(*names: str) -> float:
    """Return the megabytes of the files of installed packages."""
    places = [place.locate() for name in names for place in files(name) or ()]
    return sum(Path(str(place)).stat().st_size for place in places if Path(str(place)).is_file()) / 1e6


def show_imports(module: str) -> None:
    """Print how long a fresh process imports a package, and which large packages come with it."""
    code = (
        "import sys, time; began = time.perf_counter(); import " + module + "; took = time.perf_counter() - began; "
        "large = {'torch', 'transformers', 'triton', 'pydantic', 'tvm_ffi'} & sys.modules.keys(); "
        "print(f'{took:.2f} s', *sorted(large))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    print(f"import {module}: {', '.join(run.stdout.strip() for run in runs)}")


def quantiles(times: Sequence[float]) -> str:
    median, high = np.quantile(times, (0.5, 0.99))
    return f"median {median:.1f}, p99 {high:.0f}, mean {np.mean(times):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=SHIPPED)
    parser.add_argument("--schemas", type=int, default=500)
    given = parser.parse_args()
    tokens = read_tokens(given.tokenizer)
    print(
        read_environment().cpu,
        f"llguidance {version('llguidance')}, xgrammar {version('xgrammar')}",
        tokens.size,
        "tokens",
    )
    sizes = size_mb("llguidance"), size_mb("xgrammar", "apache-tvm-ffi")
    print(f"llguidance {sizes[0]:.1f} MB, xgrammar with tvm-ffi {sizes[1]:.1f} MB")
    for module in ("llguidance", "xgrammar"):
        show_imports(module)
    packages, counts = (Llguidance(tokens), Xgrammar(tokens)), defaultdict[tuple[str, str], int](int)
    times = {package.name: defaultdict[str, list[float]](list) for package in packages}
    rng = np.random.default_rng(2)
    for number in range(given.schemas):
        schema = random_schema(rng)
        value = value_of(schema, rng)
        assert fits(value, schema), (value, schema)
        for package in packages[:: -1 if number % 2 else 1]:
            mine = times[package.name]
            began = perf_counter()
            try:
                package.begin(schema)
            except RefusedError:
                counts[package.name, "schemas refused"] += 1
                continue
            mine["compilation, us"].append(1e6 * (perf_counter() - began))
            text = drawn(package, tokens, number, mine)
            counts[package.name, "texts drawn whole"] += text is not None
            try:
                is_valid = text is not None and fits(json.loads(text), schema)
            except ValueError:
                is_valid = False
            counts[package.name, "of them valid"] += is_valid
            if text is not None and not is_valid and counts[package.name, "shown of them"] < 1:
                counts[package.name, "shown of them"] += 1
                print(f"{package.name}, not valid: {text[:200]!r} by {json.dumps(schema)[:300]}")
            counts[package.name, "valid values taken"] += takes(package, tokens, schema, value)
    for package in packages:
        print(f"\n{package.name}: {given.schemas} schemas")
        for (name, what), count in counts.items():
            if name == package.name:
                print(f"  {what}: {count}")
        for what, series in times[package.name].items():
            print(f"  {what}: {quantiles(series)}")
    print("\n| word of a schema | llguidance | xgrammar |\n|---|---|---|")
    for word, case in KEYWORDS.items():
        print(f"| `{word}` | {' | '.join(outcome(package, tokens, case) for package in packages)} |")


if __name__ == "__main__":
    main()
