"""Does the word of accuracy tell the truth? Populations whose true drop is known, judged by the product's own rule.

Each population holds the answers of an original and of a candidate to many labelled samples, stored once. Labelled sets
of 64, 400 and 2,000 are drawn from it again and again, and `judge_scores` says KEPT, LOST or NOT DECIDED. What is
allowed lies a hair below what is truly lost, so that every KEPT is wrong: at the very limit no rule is worse.

    python benchmarks/accuracy_truth.py                        # top-1, lines and characters
    python benchmarks/accuracy_truth.py --detector             # AP on scenes of scikit-learn's digits: pip install it

`--store FILE` keeps what is counted: the same command goes on where it was ended. "point estimate" is the rule that
asks only whether the drop that is seen is allowed, for the record.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.accuracy.bootstrap import RESAMPLES, Scored, mean_of_parts, quarters
from edgeopt.measurement.accuracy.judgement import (
    LEVEL,
    LEVELS_IN_STAGES,
    LEVELS_OF_LOOKS,
    Word,
    in_order,
    judge_pairs,
    judge_scores,
)
from edgeopt.measurement.accuracy.paired_shares import most_unseen
from edgeopt.measurement.statistics.distributions import binomial_cdf, bisect
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.scoring.spelling import Spelling
from edgeopt.system.disk.files import write_beside
from edgeopt.tasks import Accuracy

_HAIR = 1e-6
_LEVELS = (LEVELS_OF_LOOKS[0], LEVEL)
"""Levels of confidence of a first look of `optimize` at a whole labelled set, and of `quantize`."""
_STAGES = ((30, 0.5), (100, 0.7), (300, 0.85))
"""So many resamples, and the share of their spread that all resamples reach: four deviations of what they know of it.

No bound lies below the drop that is seen, nor nearer to it than that."""
_ROWS = 1000
"""Resamples of several sets that are scored in one call."""
_CHUNK = 100
"""Sets that are judged together, and stored together."""
_LOOKED = (400, 800, 1600)
"""Labels of each look where labels are added."""
_SAVED_S = 20.0
"""Time after which what was counted is stored."""


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
        """The true loss."""
        once = np.ones((1, self.samples), np.int64)
        return float(self.score(self.before, once)[0] - self.score(self.after, once)[0])

    def score(self, evidence: Any, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (rows,) the metric where each sample counts so often."""
        if self.is_share:
            return np.asarray(counts @ evidence / counts.sum(axis=1), np.float64)
        return find_metric(self.metric).resample(evidence, counts)

    def draw(self, labels: int, rng: np.random.Generator) -> Labelled:
        """Return so many samples, drawn with replacement."""
        return Labelled(self, rng.integers(self.samples, size=labels), rng)


@dataclass
class Labelled:
    """A labelled set drawn from a population, and the metric on resamples of it, as far as they were asked for."""

    population: Population
    places: NDArray[np.int64]
    """(labels,) of the samples in the population, some twice."""
    rng: np.random.Generator
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    """The metric of the original and of the candidate: on the set, then on each resample."""

    @property
    def drop(self) -> float:
        """The loss on the set."""
        return self.before[0] - self.after[0]

    @property
    def spread(self) -> float:
        """Standard deviation of what is lost, over the resamples."""
        return float(np.subtract(self.before[1:], self.after[1:]).std())

    def counts(self, rows: int) -> NDArray[np.int64]:
        """Return (rows, samples) how often each sample of the population counts: in the set, or in a new resample."""
        labels = len(self.places)
        return self._counted(self.rng.integers(labels, size=(rows, labels)) if self.before else np.arange(labels)[None])

    @cached_property
    def parted(self) -> list[tuple[float, ...]]:
        """The metric of the original and of the candidate: the mean over the parts of each partition of the set."""
        parts = quarters(len(self.places))
        counts = np.concatenate([self._counted(np.flatnonzero(part)[None]) for part in parts])
        both = (self.population.before, self.population.after)
        return [tuple(mean_of_parts(self.population.score(one, counts), parts).tolist()) for one in both]

    def _counted(self, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (rows, samples of the population) from (rows, drawn) places in the set."""
        rows, samples = len(drawn), self.population.samples
        flat = self.places[drawn] + samples * np.arange(rows)[:, None]
        return np.bincount(flat.reshape(-1), minlength=rows * samples).reshape(rows, samples)

    def is_kept(self, allowed: float, level: float) -> bool:
        """Return whether the product's rule says KEPT."""
        if self.population.is_share:
            scored = [
                _rights(self.population, one[self.places]) for one in (self.population.before, self.population.after)
            ]
        else:
            scored = [self._scored(one) for one in (self.before, self.after)]
            judged = judge_scores(scored[0], scored[1], allowed, level=level)
            if judged is None or judged.word is not Word.KEPT:
                return False  # partitions move a bound outwards only
            scored = [replace(one, parted=parted) for one, parted in zip(scored, self.parted, strict=True)]
        judged = judge_scores(scored[0], scored[1], allowed, level=level)
        assert judged is not None
        return judged.word is Word.KEPT

    def _scored(self, values: Sequence[float]) -> Scored:
        count = len(self.places)
        return Scored(Accuracy(self.population.metric, values[0], count), tuple(values[1:]), "", "0", count)


def _rights(population: Population, right: NDArray[np.float64]) -> Scored:
    marks = right.astype(np.uint8) + ord("0")
    accuracy = Accuracy(population.metric, float(right.mean()), len(right))
    return Scored(accuracy, (), "", "0", len(right), marks.tobytes().decode("ascii"))


def _score(drawn: Sequence[Labelled], rows: int) -> None:
    """Score sets of one population, or so many resamples of each, which a share needs none of.

    The rows of several sets go in one call, as the metric is fast so.
    """
    if not drawn:
        return
    population = drawn[0].population
    if population.is_share:
        for one in drawn:
            one.before.append(float(population.before[one.places].mean()))
            one.after.append(float(population.after[one.places].mean()))
        return
    at_once = max(_ROWS // rows, 1)
    for start in range(0, len(drawn), at_once):
        some = drawn[start : start + at_once]
        counts = np.concatenate([one.counts(rows) for one in some])
        for evidence, name in ((population.before, "before"), (population.after, "after")):
            values = population.score(evidence, counts).reshape(len(some), rows)
            for one, row in zip(some, values.tolist(), strict=True):
                getattr(one, name).extend(row)


def _kept(drawn: Sequence[Labelled], allowed: float) -> tuple[int, int]:
    """Return how many of these sets the rule calls KEPT at each level; resamples are drawn only while it may say so."""
    still, reach, done = [one for one in drawn if one.drop <= allowed], NormalDist().inv_cdf(1 - LEVEL), 0
    if not drawn[0].population.is_share:
        if most_unseen(len(drawn[0].places), LEVEL) > allowed:
            return 0, 0  # no bound lies below it
        for rows, share in (*_STAGES, (RESAMPLES, 0.0)):
            _score(still, rows - done)
            still, done = [one for one in still if one.drop + share * reach * one.spread <= allowed], rows
    first, second = (sum(one.is_kept(allowed, level) for one in still) for level in _LEVELS)
    return first, second


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


@dataclass
class Counted:
    """How often a candidate that loses more than is allowed was called KEPT, so far."""

    repeats: int = 0
    kept: int = 0
    """At the levels of `optimize`."""
    kept_alone: int = 0
    """At that of `quantize`, which looks once."""
    otherwise: int = 0
    """By another rule."""

    def rate(self, kept: int) -> str:
        """Return a rate with the upper end of its 95 % interval, as two columns."""
        most = 1.0
        if kept < self.repeats:
            most = bisect(lambda rate: 0.025 - binomial_cdf(kept, self.repeats, rate), 0.0, 1.0)
        return f"{kept / self.repeats:.1%} | {most:.1%}"


@dataclass
class Store:
    """Counts on disk: an ended run goes on where it was."""

    file: Path | None = None
    known: dict[str, Counted] = field(default_factory=dict)
    _saved: float = 0.0

    def __post_init__(self) -> None:
        """Read what is there."""
        if self.file and self.file.is_file():
            self.known = {name: Counted(**one) for name, one in json.loads(self.file.read_text()).items()}

    def count(self, name: str, repeats: int) -> Iterator[tuple[Sequence[np.random.Generator], Counted]]:
        """Give random generators for sets that are still to be drawn, and what they are counted in."""
        counted = self.known.setdefault(name, Counted())
        while numbers := range(counted.repeats, min(counted.repeats + _CHUNK, repeats)):
            yield [np.random.default_rng((0, number)) for number in numbers], counted
            counted.repeats = numbers.stop
            self._save(is_last=numbers.stop == repeats)

    def _save(self, *, is_last: bool) -> None:
        if self.file and (is_last or monotonic() > self._saved + _SAVED_S):
            self._saved = monotonic()
            write_beside(self.file, json.dumps({name: asdict(one) for name, one in self.known.items()}, indent=1))


def judge_often(population: Population, labels: int, repeats: int, store: Store | None = None) -> Counted:
    """Return how often the rule is wrong on labelled sets drawn from a population, at the limit of what is allowed.

    The other rule asks for the point estimate alone.
    """
    store, allowed = store or Store(), population.drop - _HAIR
    name = f"{population.name}, {population.drop:.6f}, {labels} labels, {_LEVELS}"
    for generators, counted in store.count(name, repeats):
        drawn = [population.draw(labels, rng) for rng in generators]
        _score(drawn, 1)
        kept, kept_alone = _kept(drawn, allowed)
        counted.kept += kept
        counted.kept_alone += kept_alone
        counted.otherwise += sum(one.drop <= allowed for one in drawn)
    return store.known.get(name, Counted())


def look_often(population: Population, looks: Sequence[int], repeats: int, store: Store | None = None) -> Counted:
    """Return how often the rule is wrong at some look, where labels are added from look to look.

    The other rule asks each look at the full level.

    Args:
        population: Of a share of right answers; it loses a hair more than is allowed.
        looks: Labels of each look, those of the looks before among them.
        repeats: Labelled sets.
        store: Of what was counted.
    """
    store, allowed = store or Store(), population.drop - _HAIR
    name = f"{population.name}, {population.drop:.6f}, looks at {looks}, {LEVELS_OF_LOOKS}"
    for generators, counted in store.count(name, repeats):
        for rng in generators:
            whole = population.draw(max(looks), rng).places
            drawn = [Labelled(population, whole[:labels], rng) for labels in looks]
            pairs = zip(drawn, LEVELS_OF_LOOKS, strict=True)
            counted.kept += any(one.is_kept(allowed, level) for one, level in pairs)
            counted.otherwise += any(one.is_kept(allowed, LEVEL) for one in drawn)
    return store.known.get(name, Counted())


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
        judged = judge_pairs(int((some == 1).sum()), int((some == -1).sum()), known, 0.01, level=LEVELS_IN_STAGES[0])
        kept += judged.word is Word.KEPT
        given.append(labels)
    return kept / repeats, float(np.mean(given))


def detector(scenes: int) -> list[Population]:
    """Return the shipped detector on so many scenes, against itself with weights of fewer bits."""
    from edgeopt.executors import SessionOptions
    from edgeopt.executors.onnxruntime import EXECUTOR
    from edgeopt.graph.model import find_model
    from edgeopt.measurement.opening.given import open_given
    from edgeopt.tasks import make_task
    from edgeopt.tasks.detection import Detection

    folder = find_model("digits_detector").parent
    sys.path.insert(0, str(folder))
    from scenes import compose_scene, split_digits  # the shipped detector's own; it reads scikit-learn's digits

    rng, (_, held_out) = np.random.default_rng(1), split_digits(0)
    opened = open_given("digits_detector", "cpu", None)
    model, recipe = opened.model, opened.recipe
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    assert isinstance(task, Detection)
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
    tables = {bits: task.match(found, labels) for bits, found in answered.items()}
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


def show_rates(populations: Sequence[Population], sizes: Sequence[int], repeats: int, store: Store) -> None:
    """Print a row for each population and number of labels."""
    first, alone = (f"KEPT at {100 * level:g} % though beyond | upper end" for level in _LEVELS)
    print(f"| population | true drop | labels | sets | {first} | {alone} | point estimate |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for population in populations:
        for labels in sizes:
            counted = judge_often(population, labels, repeats, store)
            rates = f"{counted.rate(counted.kept)} | {counted.rate(counted.kept_alone)}"
            point = f"{counted.otherwise / counted.repeats:.0%}"
            print(f"| {population.name} | {population.drop:+.4f} | {labels} | {counted.repeats} | {rates} | {point} |")
            sys.stdout.flush()


def show_looks(populations: Sequence[Population], repeats: int, store: Store) -> None:
    """Print a row for each population whose labels are added to twice."""
    levels = ", ".join(f"{100 * level:g}" for level in LEVELS_OF_LOOKS)
    print(f"\n| population | labels | sets | KEPT at {levels} % | upper end | at 5 % each |")
    print("|---|---|--:|--:|--:|--:|")
    for population in populations:
        counted = look_often(population, _LOOKED, repeats, store)
        kept, each = counted.rate(counted.kept), counted.otherwise / counted.repeats
        sizes = ", ".join(map(str, _LOOKED))
        print(f"| {population.name} | {sizes} | {counted.repeats} | {kept} | {each:.1%} |")


def main() -> None:
    """Print the tables of `benchmarks/results/accuracy_truth.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--labels", type=int, nargs="+", default=[64, 400, 2000])
    parser.add_argument("--detector", action="store_true", help="AP of the shipped detector on composed scenes")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--store", type=Path, help="a JSON file of what was counted")
    given = parser.parse_args()
    store = Store(given.store)
    if given.detector:
        show_rates(detector(given.scenes), given.labels, given.repeats, store)
        return
    show_rates(POPULATIONS, given.labels, given.repeats, store)
    show_looks([one for one in POPULATIONS if one.is_share], given.repeats, store)
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
