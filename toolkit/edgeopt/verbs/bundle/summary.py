"""The lines of `edgeopt bundle`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.runtime.bundle import Artefact, Bundle, ranked
from edgeopt.runtime.bundle_targets import Fit, Standing, frame_ms, measured_on
from edgeopt.system.text import format_bytes, format_ms, plural

_HERE = {
    Fit.MEASURED: "measured here",
    Fit.SAME_INSTRUCTIONS: "same instructions",
    Fit.MADE_FOR: "fits",
    Fit.BY_NUMBERS: "by its numbers",
    Fit.NOT_HERE: "falls back",
}


def summarize(bundle: Bundle, wrote: str = "") -> Document:
    """Return what is shown of a bundle: its targets, and which of them runs here.

    Args:
        bundle: As it was read.
        wrote: What a command did, as a sentence; empty: it was looked at.
    """
    targets = [bundle, *bundle.others] if bundle.standing else ranked([bundle])
    sizes = _sizes(targets)
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
    alone = sum(sum(_sizes([each]).values()) for each in targets)
    size = format_bytes(sum(sizes.values()))
    saved = f"; {format_bytes(alone)} as bundles for one target each" if len(targets) > 1 else ""
    facts = (Value("size", f"{size} in {plural(len(sizes), 'file')}{saved}"),)
    first = targets[0]
    picks = f"{first.label} is the first that this machine tries" if first.leads else "no target of it runs here"
    verdict = VerdictLines(
        CommandOutcome.DONE,
        f"{wrote}{picks} of {plural(len(targets), 'target')}",
        facts,
        bundle=str(bundle.folder) if wrote else "",
        next_command=f"edgeopt bench {shlex.quote(str(bundle.folder))}",
    )
    sections = (Section(table=table), Section("Why", values=reasons))
    data = as_json(targets, sizes)
    return Document("bundle", str(bundle.folder), f"Bundle {bundle.folder}", data, sections, verdict=verdict)


def as_json(targets: list[Bundle], sizes: dict[str, int]) -> dict[str, Any]:
    """Return plain values."""
    return {
        "schema": 1,
        "folder": str(targets[0].folder),
        "size_bytes": sum(sizes.values()),
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


def _standing(bundle: Bundle) -> Standing:
    assert bundle.standing
    return bundle.standing


def _sizes(targets: list[Bundle]) -> dict[str, int]:
    """Return the files that targets name, each once."""
    named = [each for bundle in targets for each in bundle.named]
    weights = [each.weights for each in named if isinstance(each, Artefact) and each.weights]
    return {each.file: each.size_bytes for each in (*named, *weights)}
