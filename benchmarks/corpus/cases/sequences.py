"""Bytes, molecules and names: magika, chython-rxnmap, arabic-name-romanizer. No task but `tensors` is theirs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import signals as made
from case import Case, Feed, Sample, Source
from likeness import classed, close
from plain import open_plain

_NAMES = "arabic-name-romanizer"


def cases() -> Iterator[Case]:
    """Yield them."""
    yield Case("magika", "magika", "model.onnx", _files("bytes"), classed)
    yield Case("rxnmap", "chython-rxnmap", "rxnmap.onnx", _reactions, close())
    yield Case("arabic encoder", _NAMES, "resources/encoder.onnx", _names, close())
    yield Case("arabic decoder", _NAMES, "resources/decoder.onnx", _beginnings, classed)


def _files(name: str) -> Feed:
    """Feed the first and last 1,024 bytes of files, as Magika does; 256 fills up."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for data in made.source_files(count, seed):
            first, last = list(data[:4096].lstrip()[:1024]), list(data[-4096:].rstrip()[-1024:])
            told = [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]
            samples.append({name: np.array([told], np.int32)})
        return samples

    return feed


def _reactions(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed random trees as molecules: atoms, how many neighbours, distances in bonds, reactant or product."""
    rng, size, samples = np.random.default_rng(seed), 32, []
    for _i in range(count):
        parents = [0, *(int(rng.integers(0, i)) for i in range(1, size))]
        apart = np.zeros((size, size), np.int64)
        for i in range(1, size):
            apart[i, :i] = apart[:i, i] = apart[parents[i], :i] + 1
        bonds = (apart == 1).sum(1)
        samples.append(
            {
                "atoms": rng.choice([8, 9, 10, 19], size)[None].astype(np.int64),
                "neighbors": np.minimum(bonds, 14)[None] + 1,
                "distances": np.minimum(apart, 10)[None],
                "roles": np.where(np.arange(size) < size // 2, 2, 3)[None].astype(np.int64),
            }
        )
    return samples


def _names(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed twelve letters of a vocabulary behind a country, all of them read."""
    rng = np.random.default_rng(seed)
    return [
        {"src": np.array([[5, *rng.integers(31, 70, 10), 2]], np.int64), "src_mask": np.ones((1, 12), bool)}
        for _i in range(count)
    ]


def _beginnings(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed a decoder what the encoder beside it made of names, and random beginnings."""
    rng = np.random.default_rng(seed)
    encode = open_plain(next(source.wheels.rglob("resources/encoder.onnx")))
    samples = []
    for one in _names(source, count, seed):
        memory, mask, hidden = encode(one).values()
        prefix = np.array([[1, *rng.integers(31, 100, 7)]], np.int64)
        samples.append({"prefix": prefix, "memory": memory, "src_mask": mask, "hidden": hidden})
    return samples
