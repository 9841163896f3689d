"""A list of texts of mixed lengths read by length, beside one by one and beside all filled to the longest, in turns.

    python benchmarks/texts_by_length.py [--texts 64] [--seconds 20] [--threads 1]

The model has the shape of all-MiniLM-L6-v2 (6 layers, 384 wide) with random weights and takes any number of texts of
any length, as `edgeopt serve` takes one. Texts are passages of Python's own documentation, 1 to 200 words. Prints how
far vectors lie from those of the texts alone, the tokens that each way computes, and ratios with 95 % intervals.
Needs the extras `export` and `text`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import transformers

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.runtime.serve.routes import text_models
from edgeopt.runtime.serve.routes.text_models import TextsByLength, runs_of
from edgeopt.system.machine.environment import read_environment

LONGEST = 256
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
RECIPE = f"""name = "minilm"
task = "embedding"
description = "shape of all-MiniLM-L6-v2, random weights"
license = "ours"
source = "benchmarks"
[tokenizer]
file = "tokenizer.json"
pad = "<|end|>"
length = {LONGEST}
[postprocess]
decoder = "none"
[evaluation]
metric = "cosine"
"""


def write_model(folder: Path) -> Path:
    """Write the model with its recipe and a tokenizer."""
    shutil.copy(Path(__file__).parents[1] / "models" / "tiny_lm" / "tokenizer.json", folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1024,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        initializer_range=0.1,
    )
    model = transformers.BertModel(config).eval()

    class Output(torch.nn.Module):
        """The model with its inputs in order."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            """Return the last states."""
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    ids, output = torch.ones(2, 48, dtype=torch.int64), "last_hidden_state"
    free = {each: {0: "texts", 1: "tokens"} for each in (*INPUTS, output)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the newer exporter takes half a minute
        torch.onnx.export(
            Output(), (ids, ids, ids * 0), str(folder / "model.onnx"), input_names=list(INPUTS),
            output_names=[output], dynamic_axes=free, dynamo=False,
        )  # fmt: skip
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    return folder / "model.onnx"


def mixed_texts(count: int) -> list[str]:
    """Return passages whose lengths are spread evenly over their logarithm, in any order."""
    words, chance = " ".join(topics.values()).split(), random.Random(0)
    lengths = np.exp(np.linspace(0, np.log(200), count)).astype(int).tolist()
    chance.shuffle(lengths)
    starts = [chance.randrange(len(words) - 200) for _ in lengths]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        opened = open_given(str(write_model(Path(folder))), "cpu", None)
        session = EXECUTOR.open(opened.path, SessionOptions(threads=given.threads, entries=opened.correction.entries))
        model, texts = TextsByLength(session, opened.recipe), mixed_texts(given.texts)

        def by_length(wanted: Sequence[str]) -> np.ndarray:
            return np.stack([answer.vector for answer in model.read(wanted, lambda: False).answers])

        def alone(_: int) -> np.ndarray:
            return np.concatenate([by_length([text]) for text in texts])

        def to_the_longest(_: int) -> np.ndarray:
            whole, text_models.runs_of = text_models.runs_of, as_they_come
            try:
                return by_length(texts)
            finally:
                text_models.runs_of = whole

        longest = max(model.length_of(text).tokens for text in texts)
        lengths = [model.length_of(text).tokens for text in texts]

        def as_they_come(_: Sequence[int]) -> list[list[int]]:
            """Put texts together in the order of the list, each run filled to the longest of all."""
            places, last = list(range(len(texts))), int(np.argmax(lengths))
            rows = 15
            others = [place for place in places if place != last]
            return [[*others[i : i + rows], last] for i in range(0, len(others), rows)]

        own = alone(0)
        assert np.abs(own[1:] - own[0]).max(axis=1).min() > 0.01  # else any order would do
        print(f"{read_environment().cpu}, {given.threads} thread(s); {len(texts)} texts of 1 to {longest} tokens")
        ways: dict[str, Callable[[int], np.ndarray]] = {
            "one by one": alone, "by length": lambda _: by_length(texts), "filled to the longest": to_the_longest,
        }  # fmt: skip
        runs = {"one by one": [[i] for i in range(len(texts))], "by length": runs_of(lengths)}
        runs["filled to the longest"] = as_they_come(lengths)
        for name, way in ways.items():
            computed = sum(len(run) * max(lengths[place] for place in run) for run in runs[name])
            off = float(np.abs(way(0) - own).max())
            print(f"  {name}: {len(runs[name])} runs, {computed} tokens for {sum(lengths)}; off by at most {off:.1e}")
        for name in ("by length", "filled to the longest"):
            pair = {"one by one": ways["one by one"], name: ways[name]}
            ratio = compare_calls(pair, baseline="one by one", seconds=given.seconds, block=1)[name]
            print(f"  {name}: {ratio} as fast as one by one", flush=True)
        model.close()


if __name__ == "__main__":
    main()
