"""Does the word of accuracy tell the truth? Populations whose true drop is known, judged by the product's own rule.

Each population holds the answers of an original and of a candidate to many labelled samples, stored once. Labelled sets
of 64, 400 and 2,000 are drawn from it again and again, and `judge_scores` says KEPT, LOST or NOT DECIDED. What is
allowed lies a hair below what is truly lost, so that every KEPT is wrong: at the very limit no rule is worse.

    python benchmarks/accuracy_truth.py                        # top-1, lines and characters: seconds each
    python benchmarks/accuracy_truth.py --detector             # AP on composed scenes: needs scikit-learn

"point estimate" is the rule that asks only whether the drop that is seen is allowed, for the record.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.accuracy.bootstrap import RESAMPLES, Scored
from edgeopt.measurement.accuracy.judgement import LEVEL, LOOKS, Word, in_order, judge_pairs, judge_scores
from edgeopt.measurement.statistics.distributions import binomial_cdf, bisect
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.spelling import Spelling
from edgeopt.tasks import Accuracy

_HAIR = 1e-6


@dataclass(frozen=True)
class Population:
    """Answers of an original and of a candidate to the same samples, as evidence of a metric."""

    name: str
    metric: str
    samples: int
    before: Any
    after: Any
    is_share: bool = False
    """Whether the evidence is right or wrong, (samples,) of 0 and 1 each."""

    @property
    def drop(self) -> float:
        """What is truly lost."""
        once = np.ones((1, self.samples), np.int64)
        return float(self.score(self.before, once)[0] - self.score(self.after, once)[0])

    def score(self, evidence: Any, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (rows,) the metric where each sample counts so often."""
        if self.is_share:
            return np.asarray(counts @ evidence / counts.sum(axis=1), np.float64)
        return find_metric(self.metric).resample(evidence, counts)

    def draw(self, labels: int, rng: np.random.Generator) -> tuple[Scored, Scored]:
        """Return the original and the candidate on so many labelled samples, as `score` makes it of answers."""
        if self.is_share:
            places = rng.integers(self.samples, size=labels)
            return self._rights(self.before[places]), self._rights(self.after[places])
        drawn = rng.multinomial(labels, np.full(self.samples, 1 / self.samples)).astype(np.int64)
        there = np.flatnonzero(drawn)
        counts = np.zeros((RESAMPLES + 1, self.samples), np.int64)
        counts[0] = drawn
        counts[1:, there] = rng.multinomial(labels, drawn[there] / labels, RESAMPLES)
        values = [self.score(one, counts).tolist() for one in (self.before, self.after)]
        found = [Scored(Accuracy(self.metric, one[0], labels), tuple(one[1:]), "", "0", labels) for one in values]
        return found[0], found[1]

    def _rights(self, right: NDArray[np.float64]) -> Scored:
        marks = right.astype(np.uint8) + ord("0")
        text = marks.tobytes().decode("ascii")
        return Scored(Accuracy(self.metric, float(right.mean()), len(right)), (), "", "0", len(right), text)


def shares(name: str, worse: float, better: float, samples: int = 100_000) -> Population:
    """Return a classifier of top-1 0.6 of whose answers these shares got worse and better."""
    before = np.zeros(samples)
    before[: round(0.6 * samples)] = 1
    after = before.copy()
    after[: round(worse * samples)] = 0
    after[samples - round(better * samples) :] = 1
    return Population(name, "top1", samples, before, after, is_share=True)


def characters(name: str, worse: float, better: float, seed: int, samples: int = 2500) -> Population:
    """Return a recogniser of lines some of whose lines got errors more, and some fewer; lengths vary."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 30, samples)
    errors = np.where(rng.random(samples) < 0.3, rng.binomial(lengths, 0.15), 0)
    more = np.where(rng.random(samples) < worse, 1 + rng.binomial(lengths, 0.1), 0)
    fewer = np.where(rng.random(samples) < better, errors, 0)
    evidence = [
        Spelling(one.astype(np.int64), lengths.astype(np.int64), 0.0, 0.0) for one in (errors, errors + more - fewer)
    ]
    return Population(name, "character_accuracy", samples, *evidence)


@dataclass(frozen=True)
class Rates:
    """How often a candidate that loses more than is allowed was called KEPT."""

    population: Population
    labels: int
    repeats: int
    kept: int
    by_point: int
    """By the point estimate alone."""

    @property
    def most(self) -> float:
        """Upper end of the rate's 95 % interval."""
        if self.kept >= self.repeats:
            return 1.0
        return bisect(lambda rate: 0.025 - binomial_cdf(self.kept, self.repeats, rate), 0.0, 1.0)


def judge_often(population: Population, labels: int, repeats: int, seed: int = 0, level: float = LEVEL) -> Rates:
    """Return how often the rule is wrong on labelled sets drawn from a population, at the limit of what is allowed."""
    rng, allowed = np.random.default_rng(seed), population.drop - _HAIR
    kept = by_point = 0
    for _ in range(repeats):
        judged = judge_scores(*population.draw(labels, rng), allowed, level=level)
        assert judged is not None
        kept += judged.word is Word.KEPT
        by_point += (judged.drop or 0.0) <= allowed
    return Rates(population, labels, repeats, kept, by_point)


def choose_often(
    labels: int, candidates: int, repeats: int, allowed: float = 0.01, seed: int = 0
) -> tuple[float, float]:
    """Return how often some candidate beyond what is allowed is KEPT: in a fixed order, and by the best point.

    All candidates lose a hair more than is allowed; each changes 4 to 16 % of the answers.
    """
    rng, kept, by_point = np.random.default_rng(seed), 0, 0
    changed = np.linspace(0.02, 0.08, candidates)
    for _ in range(repeats):
        judged, drops = [], []
        for share in changed:
            worse, better, _ = rng.multinomial(labels, [share / 2 + allowed / 2, share / 2 - allowed / 2, 1 - share])
            judged.append(judge_pairs(int(worse), int(better), labels, allowed - _HAIR))
            drops.append((worse - better) / labels)
        kept += any(one.word is Word.KEPT for one in in_order(judged))
        by_point += min(drops) <= allowed - _HAIR
    return kept / repeats, by_point / repeats


def prove_often(repeats: int, *, samples: int = 5000, most_labels: int = 240, seed: int = 0) -> tuple[float, float]:
    """Return how often a form that changes 4 % of the answers and loses 0.004 is KEPT, and the labels it takes.

    Of SqueezeNet's changed answers some 40 % change in being right. Labels are given in the random order of the
    samples, until there are as many as allowed; each look proves at a third of the level.
    """
    rng, kept, given = np.random.default_rng(seed), 0, []
    for _ in range(repeats):
        worse, better, alike, _ = rng.multinomial(samples, [0.010, 0.006, 0.024, 0.96])
        kinds = rng.permutation(np.repeat([1, -1, 0], [worse, better, alike]))
        places = np.sort(rng.choice(samples, len(kinds), replace=False))
        labels = min(most_labels, len(kinds))
        known = samples if labels == len(kinds) else int(places[labels])
        some = kinds[:labels]
        judged = judge_pairs(int((some == 1).sum()), int((some == -1).sum()), known, 0.01, level=LEVEL / LOOKS)
        kept += judged.word is Word.KEPT
        given.append(labels)
    return kept / repeats, float(np.mean(given))


def detector(scenes: int) -> list[Population]:
    """Return the shipped detector on so many scenes, against itself with weights of fewer bits."""
    from edgeopt.executors import SessionOptions
    from edgeopt.executors.onnxruntime import EXECUTOR
    from edgeopt.graph.model import find_model
    from edgeopt.measurement.given import open_given
    from edgeopt.tasks import make_task

    folder = find_model("digits_detector").parent
    sys.path.insert(0, str(folder))
    from scenes import compose_scene, split_digits  # the shipped detector's own; it reads scikit-learn's digits

    rng, (_, held_out) = np.random.default_rng(1), split_digits(0)
    opened = open_given("digits_detector", "cpu", None)
    model, recipe = opened.model, opened.recipe
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    drawn = [compose_scene(held_out, rng) for _ in range(scenes)]
    answered = {}
    for bits in (0, 5, 4):
        session = EXECUTOR.open(_rounded(model.data, bits), SessionOptions(("CPUExecutionProvider",), 1))
        found = []
        for scene in drawn:
            inputs, geometry = task.preprocess(np.ascontiguousarray(scene.image[..., ::-1]))
            found.append(task.postprocess(session.run(inputs), geometry))
        session.close()
        answered[bits] = found
    labels = _labels(drawn, recipe)
    tables = {bits: task._tables(found, labels) for bits, found in answered.items()}  # type: ignore[attr-defined]
    return [Population(f"detector, weights of {bits} bits", "AP", scenes, tables[0], tables[bits]) for bits in (5, 4)]


def _labels(scenes: Sequence[Any], recipe: Any) -> Any:
    """Return the scenes' boxes as the labels of a COCO file."""
    import json
    import tempfile

    from edgeopt.recipes.labels import read_labels

    names = recipe.class_names
    images = [
        {"id": i, "file_name": f"{i:05}.png", "width": one.image.shape[1], "height": one.image.shape[0]}
        for i, one in enumerate(scenes)
    ]
    boxes = [
        (i, box, int(label)) for i, one in enumerate(scenes) for box, label in zip(one.boxes, one.labels, strict=True)
    ]
    annotations = [
        {
            "id": k + 1,
            "image_id": i,
            "category_id": label,
            "bbox": [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])],
            "area": float((box[2] - box[0]) * (box[3] - box[1])),
            "iscrowd": 0,
        }
        for k, (i, box, label) in enumerate(boxes)
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(names or map(str, range(10)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.json"
        path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        return read_labels(path)


def _rounded(data: bytes, bits: int) -> bytes:
    """Return a model with its weights on a grid of so many bits for each channel; 0: as it is."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_model_from_string(data)
    for one in proto.graph.initializer if bits else ():
        weight = numpy_helper.to_array(one)
        if weight.ndim < 2 or weight.dtype != np.float32:
            continue
        axes = tuple(range(1, weight.ndim))
        step = np.maximum(np.abs(weight).max(axis=axes, keepdims=True), 1e-9) / (2 ** (bits - 1) - 1)
        one.CopyFrom(numpy_helper.from_array((np.round(weight / step) * step).astype(np.float32), one.name))
    return bytes(proto.SerializeToString())


POPULATIONS = (
    shares("top-1, 4 % of right answers changed", 0.025, 0.015),
    shares("top-1, 16 % changed", 0.085, 0.075),
    shares("top-1, only worse", 0.01, 0.0),
    replace(shares("exact match of lines", 0.03, 0.01), metric="exact_match"),
    characters("characters of lines", 0.04, 0.01, 0),
    characters("characters, few lines lost", 0.01, 0.0, 1),
)


def show(rates: Iterable[Rates]) -> None:
    """Print a row for each population and number of labels."""
    print("| population | true drop | labels | KEPT though beyond | upper end | point estimate |")
    print("|---|--:|--:|--:|--:|--:|")
    for one in rates:
        kept, point = one.kept / one.repeats, one.by_point / one.repeats
        figures = f"{one.population.drop:+.4f} | {one.labels} | {kept:.1%} | {one.most:.1%} | {point:.0%}"
        print(f"| {one.population.name} | {figures} |", flush=True)


def main() -> None:
    """Print the tables of `benchmarks/results/accuracy_truth.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--labels", type=int, nargs="+", default=[64, 400, 2000])
    parser.add_argument("--detector", action="store_true", help="AP of the shipped detector on composed scenes")
    parser.add_argument("--scenes", type=int, default=2000)
    given = parser.parse_args()
    populations = detector(given.scenes) if given.detector else POPULATIONS
    show(judge_often(one, labels, given.repeats) for one in populations for labels in given.labels)
    if given.detector:
        return
    print("\n| labels | candidates beyond | some KEPT, fixed order | best point estimate |\n|--:|--:|--:|--:|")
    for labels in given.labels:
        for candidates in (3, 20):
            kept, point = choose_often(labels, candidates, given.repeats)
            print(f"| {labels} | {candidates} | {kept:.1%} | {point:.0%} |")
    power, labels_given = prove_often(given.repeats)
    error = 1.96 * math.sqrt(power * (1 - power) / given.repeats)
    print(f"\n5,000 samples, 4 % of the answers changed, a true drop of 0.004: KEPT in {power:.1%} +- {error:.1%}, ")
    print(f"{labels_given:.0f} labels in the mean, 240 at most")


if __name__ == "__main__":
    main()
