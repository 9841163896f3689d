"""Where does edgeopt say NOISY, and was a close figure really wrong there? A model against itself, again and again.

`record` runs a model in turns with itself and writes what is judged by: the ratio of each round and the
machine's counters. `score` judges stored runs anew. A close figure was wrong where the ratio is off by more
than 2 %, the margin by which models are told apart, where its interval does not hold 1, or where the median frame is
more than 5 % longer than in the fastest run of the file.

python benchmarks/noise_truth.py record digits_detector 20 runs.json
python benchmarks/noise_truth.py score runs.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.resources.trust import Trust, TrustLevel, judge_turns
from edgeopt.measurement.statistics.ratio import ratio_of_rounds, round_logs
from edgeopt.measurement.turns.interleaved import AGAIN, Pace, Turns, take_turns
from edgeopt.measurement.turns.side_by_side import open_sides
from edgeopt.recipes.inputs.frames import open_frames

MARGIN = 0.02
FRAME_MARGIN = 0.05


def run_record(turns: Turns) -> dict[str, Any]:
    """Return what a run is judged by, as plain values."""
    baseline, again = turns.samples[turns.baseline], turns.samples[turns.baseline + AGAIN]
    return {
        "workers": turns.workers,
        "seconds": round(turns.seconds, 1),
        "rounds": [round(float(one), 5) for one in round_logs(again, baseline, "frame")],
        "p50_us": round(float(np.median(baseline.steady().frame_ns)) / 1e3),
        "readings": [asdict(turns.readings[0]), asdict(turns.readings[-1])],
    }


def judge(record: Mapping[str, Any]) -> Trust:
    """Return what edgeopt says of a stored run."""
    readings = [CounterReading(**_tuples(one)) for one in record["readings"]]
    return judge_turns(np.array(record["rounds"]), readings, workers=record["workers"])


def is_wrong(record: Mapping[str, Any], fastest_us: float) -> bool:
    """Return whether a close figure of this run would have been wrong."""
    logs = np.array(record["rounds"])
    ratio = ratio_of_rounds(logs, pairs=2 * len(logs), margin=MARGIN)
    is_ratio_wrong = not ratio.low <= 1 <= ratio.high or abs(ratio.speedup - 1) > MARGIN
    return is_ratio_wrong or record["p50_us"] > (1 + FRAME_MARGIN) * fastest_us


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def record(model: str, count: int, seconds: float, out: Path) -> None:
    (side,) = open_sides([model], target="cpu", recipe=None, threads=1)
    subject = side.subject
    frames = open_frames(Path(subject.path).parent / "calib")
    runs = []
    for i in range(count):
        turns = take_turns({model: subject.open_again}, frames, Pace(seconds), workers=1, seed=i)
        runs.append(run_record(turns))
        out.write_text(json.dumps(runs), "utf-8")
        print(f"{i:3d}  {turns.null('frame')}  {turns.seconds:.0f} s", flush=True)


def score(path: Path) -> None:
    runs = json.loads(path.read_text("utf-8"))
    counts = {(said, wrong): 0 for said in (False, True) for wrong in (False, True)}
    fastest_us = min(one["p50_us"] for one in runs)
    for i, one in enumerate(runs):
        trust, wrong = judge(one), is_wrong(one, fastest_us)
        counts[trust.level is not TrustLevel.TRUSTED, wrong] += 1
        logs = np.array(one["rounds"])
        print(f"{i:3d}  {ratio_of_rounds(logs, pairs=len(logs))}  {'wrong' if wrong else '     '}  {trust}")
    print("                close figure right   wrong")
    for said, word in ((False, "TRUSTED"), (True, "NOISY")):
        print(f"  {word:8s}      {counts[said, False]:10d}   {counts[said, True]:13d}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("model")
    recording.add_argument("runs", type=int)
    recording.add_argument("out", type=Path)
    recording.add_argument("--seconds", type=float, default=15.0)
    scoring = commands.add_parser("score")
    scoring.add_argument("file", type=Path)
    asked = parser.parse_args()
    if asked.command == "record":
        record(asked.model, asked.runs, asked.seconds, asked.out)
    else:
        score(asked.file)


if __name__ == "__main__":
    main()
