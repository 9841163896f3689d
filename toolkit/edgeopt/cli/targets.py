"""List the device profiles, and which of them run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show
from edgeopt.cli._values import TargetName

if TYPE_CHECKING:
    from edgeopt.report.document import Document, Table, Value
    from edgeopt.runtime.devices.reach import Reach
    from edgeopt.system.declared.target import Target


@click.command(cls=HelpCommand)
@click.argument("name", required=False, type=TargetName())
@format_option
def targets(*, name: str | None, form: str) -> None:
    """List the device profiles, and which of them run here; or show the one called NAME."""
    from edgeopt.errors import NotFoundError
    from edgeopt.runtime.devices.reach import find_reach

    reach = find_reach()
    if name is None:
        show(list_targets(reach), form)
        return
    named = {other.name: other for other in reach}
    if name not in named:
        raise NotFoundError("target", name, named)
    show(show_target(named[name], reach), form)


def list_targets(reaches: Sequence[Reach]) -> Document:
    """Return what is shown of all targets."""
    from edgeopt.report.document import Document, Section
    from edgeopt.report.result import PlainResult
    from edgeopt.runtime.devices.reach import Where

    tables = [_table(where, [reach for reach in reaches if reach.where is where]) for where in Where]
    hint = Section(text="edgeopt targets NAME shows one of them, and what it lacks here.")
    sections = (*(Section(table=table) for table in tables if table.rows), hint)
    figures = {"targets": [asdict(reach.target) for reach in reaches]}
    return Document(PlainResult(command="targets", figures=figures), "targets", "Device profiles", sections)


def _table(where: str, reaches: Sequence[Reach]) -> Table:
    """Return one row a target, or a family of chips that differ in nothing else."""
    from edgeopt.report.document import Table
    from edgeopt.runtime.devices.reach import family

    rows: dict[tuple[str, str], list[Reach]] = {}
    for reach in reaches:
        head = reach.name.rpartition("-")[0]
        rows.setdefault((reach.reason, head if reach.remedy and _is_npu(reach) else reach.name), []).append(reach)
    cells = tuple((family([reach.name for reach in row]), _precisions(row), _device(row)) for row in rows.values())
    return Table((where, "precisions", "device"), cells, frozenset({"precisions", "device"}), less=("precisions",))


def _is_npu(reach: Reach) -> bool:
    return getattr(reach.target, "device", "") == "npu"


def _precisions(row: Sequence[Reach]) -> str:
    return ", ".join(dict.fromkeys(word for reach in row for word in getattr(reach.target, "precisions", ())))


def _device(row: Sequence[Reach]) -> str:
    """Return what the device is; of a family what its descriptions share, then its chips."""
    first, *others = (reach.target.description.split() for reach in row)
    if not others:
        return row[0].target.description
    shared = takewhile(lambda words: len(set(words)) == 1, zip(first, *others, strict=False))
    chips = ", ".join(reach.name.rpartition("-")[2] for reach in row)
    return f"{' '.join(words[0] for words in shared)}: {chips}"


def show_target(reach: Reach, known: Sequence[Reach]) -> Document:
    """Return what is shown of one target.

    Args:
        reach: Of the target.
        known: Of all targets: one that chooses says what brings each that it may choose.
    """
    from edgeopt.report.document import Document, Section, Value
    from edgeopt.report.result import PlainResult
    from edgeopt.system.declared.target import TargetChoice
    from edgeopt.system.disk import assets
    from edgeopt.system.text import shown_path

    target = reach.target
    figures = asdict(target) | {"runs": str(reach.where), "reason": reach.why_not}
    file = Value("file", shown_path(assets.folder("targets") / f"{target.name}.toml"))
    here = [Value("runs", f"{reach.where}{f': {reach.reason}' if reach.reason else ''}")]
    here += [Value("get it", reach.remedy, is_command=True)] if reach.remedy else []
    command = f"edgeopt optimize MODEL --target {target.name}" if reach.takes_models else "edgeopt targets"
    next_one = Value("next", command, is_command=True)
    if isinstance(target, TargetChoice):
        may = [] if reach.takes_models else [each for each in known if each.name in target.choose]
        here += [Value(each.name, each.remedy or each.reason) for each in may]
        facts = [Value("device", target.description), Value("one of", ", ".join(target.choose))]
    else:
        facts = _facts(reach)
    sections = (Section(values=(Value("target", target.name), *facts, *here, file, next_one)),)
    result = PlainResult(command="targets", figures=figures)
    return Document(result, target.name, f"Target {target.name}", sections)


def _facts(reach: Reach) -> list[Value]:
    from edgeopt.report.document import Value
    from edgeopt.system.declared.target import TargetChoice

    target = reach.target
    assert not isinstance(target, TargetChoice)
    rules = target.int8
    known = {
        "device": f"{target.device}: {target.description}",
        "form": target.form,
        "engine": f"{target.executor}: {', '.join(target.providers)}",
        "precisions": ", ".join(target.precisions),
        "INT8": f"{rules.activation_dtype} activations, {rules.weight_dtype} weights {rules.weight_granularity}"
        if any(precision.startswith("w8a8") for precision in target.precisions)
        else "",
        "budget": f"{target.budget_ms:.1f} ms a frame, unless --budget says otherwise",
        "opset": str(target.opset),
        "sparsity": _sparsity(target),
        "shapes": "every dimension a number" if target.static_only else "",
        "options": ", ".join(f"{key}={value}" for key, value in target.options.items()),
        "also tries": ", ".join(target.alternatives),
    }
    return [Value(label, text) for label, text in known.items() if text]


def _sparsity(target: Target) -> str:
    """Return what zeros in single weights save on a target."""
    if target.sparsity:
        return f"{target.sparsity} zeros in weights are faster, by its maker's word: not run, and edgeopt makes none"
    return "zeros in single weights save bytes of a packed file, no time that is known; prune takes whole channels"


COMMAND = targets
