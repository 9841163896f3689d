"""The models that ONNX ships for backends, through `simplify` and `fuse`: how many stay equal, and how large.

Each is judged by plain ONNX Runtime, on its own inputs and on the same floats in the opposite order, which neither step
saw. A model that ONNX Runtime does not run itself is counted apart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fixtures"))

from onnx_cases import KINDS, Verdict, cases, judge

_RUN = ("equal", "refused", "differs", "traceback")


def judge_all(folder: Path, kinds: Sequence[str] = KINDS) -> list[Verdict]:
    """Judge every case of these kinds; what `folder` holds of an earlier run is not judged again."""
    warnings.simplefilter("ignore")  # the reference that makes the cases of nodes divides by zero on purpose
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "onnx.jsonl"
    lines = stored.read_text("utf-8").splitlines() if stored.is_file() else []
    found = [Verdict(**json.loads(line)) for line in lines]
    known = {(one.kind, one.name) for one in found}
    with tempfile.TemporaryDirectory() as scratch, stored.open("a", encoding="utf-8") as file:
        for case in (one for kind in kinds for one in cases(kind) if (kind, one.name) not in known):
            found.append(judge(case, Path(scratch)))
            file.write(json.dumps(asdict(found[-1])) + "\n")
            file.flush()
    return [one for one in found if one.kind in kinds]


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the sums as Markdown, then each exception with its reason."""
    lines = [
        "| models | shipped | ONNX Runtime runs | equal | refused | differ | traceback | grow |",
        f"|---|{'--:|' * 7}",
    ]
    for kind in (*KINDS, "all"):
        mine = [one for one in verdicts if kind in (one.kind, "all")]
        ends = Counter(one.end for one in mine)
        counts = [
            len(mine),
            sum(ends[end] for end in _RUN),
            *(ends[end] for end in _RUN),
            sum(one.grows for one in mine),
        ]
        if mine:
            lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    ran = [one for one in verdicts if one.end in _RUN]
    equal = sum(one.end == "equal" for one in ran)
    heavy = max(ran, key=lambda one: one.after_bytes - one.before_bytes)
    left_out = sum(bool(one.notes) for one in ran)
    lines += [
        "",
        f"{equal} of {len(ran)} ({equal / len(ran):.2%}) stay equal; in {left_out} a rewrite was left out, and said "
        f"so. The most that a file grew by is {heavy.after_bytes - heavy.before_bytes:,} bytes "
        f"({heavy.name}, {heavy.nodes} nodes).",
        "",
    ]
    lines += [f"- `{one.name}`: {one.end}: {one.reason}" for one in ran if one.end != "equal"]
    return "\n".join(lines) + "\n"
