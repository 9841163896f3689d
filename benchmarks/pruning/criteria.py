"""Accuracy that a model keeps when channels go: by way of ranking, by repair, by share of channels.

    python benchmarks/pruning/criteria.py squeezenet|yolox [--images 100] [--shares 5,10,20] [--step 16]

Two ways to spread what goes: the same share of every group, and counts on the step, the cheapest first by what obs
says is lost for each multiply-add saved. Statistics and repairs see three quarters of the calibration pictures; the
loss is that of the others; labels judge in the end, and choose nothing. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.facts.multiply_adds import count_multiply_adds
from edgeopt.graph.graph import Graph
from edgeopt.graph.groups import ChannelGroups, keep_channels, trace
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, model_inputs, open_labelled
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.fuse import fuse
from edgeopt.steps.prune.loss import HeldOutLoss, held_out
from edgeopt.steps.prune.ranking import DEFAULT, Ranking, rank
from edgeopt.steps.prune.repair import collect_targets, repair
from edgeopt.steps.prune.statistics import Statistics, collect
from edgeopt.steps.simplify import simplify
from edgeopt.tasks import Task, make_task

DATA = Path(__file__).parents[3] / "shared" / "data"
CASES = {
    "squeezenet": ("squeezenet_224.onnx", "imagenet_caffe", "imagenet/calib", "imagenet/val_labels.csv"),
    "yolox": ("yolox_nano_416.onnx", "yolox", "coco/calib", "coco/instances_val.json"),
}
WAYS = ("l1", "activation", "obs")
HEAD = (
    "| model | channels gone | multiply-adds gone | ranked by | none | local | sequential | kept by loss |\n"
    "|---|--:|--:|---|--:|--:|--:|---|"
)
Keep = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Bench:
    """A model, ready to be cut."""

    name: str
    model: Model
    task: Task
    labelled: LabelledFrames
    groups: ChannelGroups
    statistics: Statistics
    fitted: list[Tensors]
    loss: HeldOutLoss

    @classmethod
    def open(cls, name: str, images: int) -> Bench:
        """Open a model, and run it over the pictures once."""
        file, recipe, calib, labels = CASES[name]
        raw = load_model(DATA / "models" / file)
        chosen = choose_recipe(recipe, None, raw.inputs, raw.outputs, raw.metadata).recipe
        task = make_task(chosen, raw.inputs, raw.outputs, evaluating=True)
        pictures = list(model_inputs(task, open_frames(DATA / calib).spread(images)))
        model = fuse(simplify(raw, {}, pictures[:2]).model, pictures[:2]).model
        fitted, judged = held_out(pictures)
        groups, began = trace(model), time.process_time()
        statistics = collect(model, iter(fitted), groups)
        tell("statistics", began)
        loss = HeldOutLoss(model, task, judged, 1)
        return cls(name, model, task, open_labelled(DATA / labels), groups, statistics, fitted, loss)

    def metric(self, model: Model) -> float:
        """Return the metric on labels."""
        session = EXECUTOR.open(model.data, SessionOptions(threads=1))
        found = self.task.score(answers(session, self.task, self.labelled.frames), self.labelled.labels)
        session.close()
        return found.value

    def saved(self, keep: Keep) -> float:
        """Return the share of multiply-adds that is saved."""
        whole, left = (
            count_multiply_adds(Graph.to_model(infer(one)))
            for one in (self.model, keep_channels(self.model, self.groups, keep))
        )
        return 1 - (left or 0) / (whole or 1)


def infer(model: Model) -> Graph:
    graph = Graph.from_model(model)
    graph.infer_shapes()
    return graph


def tell(what: str, began: float) -> None:
    print(f"{what}: {time.process_time() - began:.1f} s of processor time", file=sys.stderr, flush=True)


def uniform(bench: Bench, ranked: Mapping[str, Ranking], share: float) -> Keep:
    """Return what stays when every group loses the same share, not rounded to any step."""
    return {one.name: ranked[one.name].kept(max(1, round(one.channels * (1 - share)))) for one in bench.groups.free}


def on_step(bench: Bench, ranked: Mapping[str, Ranking], shares: list[float], step: int) -> list[Keep]:
    """Return what stays at each share when the cheapest cut goes first, in counts on the step."""
    free = bench.groups.free
    worth = {
        one.name: bench.saved({one.name: np.arange(one.channels // 2)}) / (one.channels - one.channels // 2)
        for one in free
        if one.channels > step
    }
    count, total, found = {one.name: one.channels for one in free}, sum(one.channels for one in free), []
    for share in shares:
        while sum(count.values()) > total * (1 - share):
            cuts = [
                (worth[name] * (count[name] - left) / max(cost(ranked[name], count[name], left), 1e-9), name, left)
                for name in worth
                for left in range((count[name] - 1) // step * step, 0, -step)
            ]
            _, name, left = max(cuts)
            count[name] = left
        found.append({name: ranked[name].kept(left) for name, left in count.items()})
    return found


def cost(ranking: Ranking, before: int, after: int) -> float:
    channels = len(ranking.order)
    return float(ranking.error[channels - after] - ranking.error[channels - before])


def print_row(bench: Bench, keep: Keep, how: str, targets: Mapping[str, NDArray[np.float32]]) -> None:
    pruned = keep_channels(bench.model, bench.groups, keep)
    tried: list[Model] = []

    def loss(model: Model) -> float:
        tried.append(model)
        return bench.loss(model)

    began = time.process_time()
    found = repair(bench.model, pruned, bench.groups, keep, bench.statistics, bench.fitted, loss, targets=targets)
    tell(f"repairs, {how}", began)
    figures = " | ".join(f"{bench.metric(one):.4f}" for one in tried)
    total = sum(one.channels for one in bench.groups.free)
    gone = sum(one.channels - len(keep[one.name]) for one in bench.groups.free if one.name in keep) / total
    losses = ", ".join(f"{value:.4f}" for value in found.losses.values())
    told = f"{found.how} ({losses})"
    print(f"| {bench.name} | {gone:.1%} | {bench.saved(keep):.1%} | {how} | {figures} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=sorted(CASES))
    parser.add_argument("--images", type=int, default=100, help="calibration pictures")
    parser.add_argument("--shares", default="5,10,20", help="channels that go, in percent")
    parser.add_argument("--step", type=int, default=16, help="counts that stay are multiples of it")
    parser.add_argument("--ways", default=",".join(WAYS), help="of ranking, for the same share of every group")
    given = parser.parse_args()
    if not DATA.is_dir():
        parser.exit(2, f"{DATA} is absent: the real models are not part of the repository\n")
    bench = Bench.open(given.model, given.images)
    targets = collect_targets(bench.model, iter(bench.fitted))
    shares = [float(one) / 100 for one in given.shares.split(",")]
    print(f"{HEAD}\n| {bench.name} | 0 % | 0 % | | {bench.metric(bench.model):.4f} | | | |", flush=True)
    ranked: dict[str, dict[str, Ranking]] = {}
    for how in dict.fromkeys((DEFAULT, *filter(None, given.ways.split(",")))):
        began = time.process_time()
        ranked[how] = {one.name: rank(one, bench.model, bench.statistics, how) for one in bench.groups.free}
        tell(f"ranking by {how}", began)
    for keep in on_step(bench, ranked[DEFAULT], shares, given.step):
        print_row(bench, keep, f"{DEFAULT}, step {given.step}", targets)
    for how in filter(None, given.ways.split(",")):
        for share in shares:
            print_row(bench, uniform(bench, ranked[how], share), how, targets)


if __name__ == "__main__":
    main()
