"""The lines of `edgeopt bundle`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.runtime.bundle import Bundle, ranked
from edgeopt.runtime.bundles.targets import TargetFit, TargetStanding, frame_ms, measured_on
from edgeopt.system.text import format_bytes, format_ms
from edgeopt.verbs.bundle.combine import size_of

_HERE = {
    TargetFit.MEASURED: "measured here",
    TargetFit.SAME_INSTRUCTIONS: "same instructions",
    TargetFit.MADE_FOR: "fits",
    TargetFit.BY_NUMBERS: "by its numbers",
    TargetFit.NOT_HERE: "falls back",
}


def summarize(bundle: Bundle, wrote: str = "") -> Document:
    """Return what is shown of a bundle: its targets, and which of them runs here.

    Args:
        bundle: As it was read.
        wrote: What a command did, as a sentence; empty: it was looked at.
    """
    targets = [bundle, *bundle.others] if bundle.standing else ranked([bundle])
    size, alone = size_of(bundle), sum(size_of(replace(each, others=())) for each in targets)
    columns: dict[str, Callable[[Bundle], str]] = {
        "target": lambda each: each.label,
        "engine": lambda each: each.artefacts[0].executor,
        "precision": lambda each: each.artefacts[0].precision,
        "p50 ms": lambda each: format_ms(ms * 1e6) if (ms := frame_ms(each.expected)) else "",
        "measured on": lambda each: there.processor if (there := measured_on(each.expected)) else "",
        "here": lambda each: _HERE[_standing(each).fit],
    }
    table = make_table(targets, columns, words=["engine", "precision", "measured on", "here"], less=["measured on"])
    reasons = tuple(Value(each.label, _standing(each).reason) for each in targets)
    saved = f", {format_bytes(alone)} as bundles for one target each" if len(targets) > 1 else ""
    facts = (Value("size", f"{format_bytes(size)}{saved}"),)
    first = targets[0]
    which = f"{first.label} first" if len(targets) > 1 else first.label
    picks = f"this machine tries {which}" if first.leads else "this machine runs what it falls back to alone"
    verdict = VerdictLines(
        CommandOutcome.DONE,
        f"{wrote}{picks}" + (f", of {len(targets)} targets" if len(targets) > 1 else ""),
        facts,
        bundle=str(bundle.folder) if wrote else "",
        next_command=f"edgeopt bench {shlex.quote(str(bundle.folder))}",
    )
    sections = (Section(table=table), Section("Why", values=reasons))
    data = as_json(targets, size)
    return Document("bundle", str(bundle.folder), f"Bundle {bundle.folder}", data, sections, verdict=verdict)


def as_json(targets: list[Bundle], size_bytes: int) -> dict[str, Any]:
    """Return plain values."""
    return {
        "schema": 1,
        "folder": str(targets[0].folder),
        "size_bytes": size_bytes,
        "targets": [
            {
                "name": each.label,
                "target": each.target.name,
                "device": each.device,
                "model": each.artefacts[0].file,
                "executor": each.artefacts[0].executor,
                "precision": each.artefacts[0].precision,
                "measured_on": there.to_json() if (there := measured_on(each.expected)) else None,
                "p50_ms": frame_ms(each.expected),
                "fit": _HERE[_standing(each).fit],
                "reason": _standing(each).reason,
            }
            for each in targets
        ],
    }


def _standing(bundle: Bundle) -> TargetStanding:
    assert bundle.standing
    return bundle.standing
