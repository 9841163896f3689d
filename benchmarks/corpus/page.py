"""The rows of models as Markdown, and as lines of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown, and the sums that count."""
    lines = [
        "| model | package | task | fed apart | edgeopt says | of accuracy | judged apart | others judged "
        "| compared again | s |",
        f"|---|---|---|{'---|' * 6}--:|",
    ]
    for one in rows:
        fed = one.get("fed")
        told = (
            *(one["model"], one["package"], one["task"], "-" if fed is None else f"{fed:.1%}", _said(one)),
            *(one.get("accuracy") or "-", _judged(one), _others(one), _again(one), f"{one['seconds']:.0f}"),
        )
        lines.append(f"| {' | '.join(told)} |")
    bundles = [one for one in rows if one["result"] == "bundle"]
    right = sum(one["agrees"] for one in bundles)
    refused = sum(one["result"] == "refused" and not one["traceback"] for one in rows)
    kept = [agrees for one in bundles for agrees, _ in one["others"].values()]
    own = sum(one["task"] != "tensors" or one["fed"] is not None for one in bundles)
    lines += [
        "",
        f"{own} take pictures or sounds, or have a task of their own; {len(rows) - own} take arrays.",
        f"{right} of {len(rows)} ({right / len(rows):.0%}) end with a bundle whose answers agree, "
        f"{len(bundles) - right} with one whose answers do not, {refused} are refused with a line, "
        f"{sum(one['traceback'] for one in rows)} end in a traceback.",
        f"Of {len(kept)} other candidates that keep their accuracy by edgeopt, {sum(kept)} agree.",
        _claims(bundles),
        *(f"- {one['model']}: {line}" for one in bundles for line in one["failed"]),
    ]
    return "\n".join(lines) + "\n"


def _claims(bundles: Sequence[dict[str, Any]]) -> str:
    """Return how many were called faster, and which of them a comparison of its own does not call so."""
    claims = [one for one in bundles if isinstance(one.get("compared"), dict)]
    if not claims:
        return "No claim of speed was compared again."
    verdicts = {one["model"]: one["compared"]["verdict"] for one in claims}
    others = [f"{model} {verdict}" for model, verdict in verdicts.items() if verdict != "FASTER"]
    told = f"{len(claims)} were called faster; compared again, {len(claims) - len(others)} are FASTER"
    return f"{told}, {', '.join(others)}." if others else f"{told}."


def _said(row: dict[str, Any]) -> str:
    if row["result"] == "refused":
        return row["line"] or "TRACEBACK"
    speed = row["speed"]
    told = f" {speed['speedup']:.2f}x [{speed['low']:.2f}, {speed['high']:.2f}]" if speed else ""
    size = f", {row['bytes_ratio']:.1f} times the file" if row["bytes_ratio"] > 1.2 else ""
    return f"{row['chosen']}{told}{size}"


def _judged(row: dict[str, Any]) -> str:
    return "-" if row["result"] == "refused" else f"{'' if row['agrees'] else '**differs** '}{row['judged']}"


def _others(row: dict[str, Any]) -> str:
    told = row.get("others") or {}
    return ", ".join(f"{name} {'' if agrees else '**differs** '}{line}" for name, (agrees, line) in told.items()) or "-"


def _again(row: dict[str, Any]) -> str:
    found = row.get("compared")
    if not isinstance(found, dict):
        return found or "-"
    return f"{found['verdict']} {found['speedup']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def told_of(row: dict[str, Any]) -> str:
    """Return a row in one line of the terminal."""
    parts = (row["task"], _said(row), _judged(row), f"{row['seconds']:.0f} s")
    return ", ".join(one for one in parts if one != "-")
