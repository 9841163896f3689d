"""`edgeopt targets`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show

if TYPE_CHECKING:
    from edgeopt.system.target import Target


@click.command()
@format_option
def targets(*, form: str) -> None:
    """List the device profiles, and which of them run here."""
    from edgeopt.report.document import Document, Section, make_table
    from edgeopt.runtime.availability import why_unavailable
    from edgeopt.system import assets
    from edgeopt.system.target import Choice, Target, read_target, target_names

    found = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]

    targets = [one for one in found if isinstance(one, Target)]
    here = {one.name for one in targets if not (one.why_not_here() or why_unavailable(one))}

    def runs(one: Target | Choice) -> bool:
        return not here.isdisjoint(one.choose) if isinstance(one, Choice) else one.name in here

    def what(one: Target | Choice) -> str:
        return f"{one.description}: one of {', '.join(one.choose)}" if isinstance(one, Choice) else one.description

    columns: dict[str, Callable[[Target | Choice], str]] = {
        "name": lambda one: one.name,
        "precisions": lambda one: "" if isinstance(one, Choice) else ", ".join(one.precisions),
        "runs here": lambda one: "yes" if runs(one) else "no",
        "device": what,
    }
    table = make_table(found, columns, words=["device", "precisions", "runs here"])
    data = [asdict(target) for target in found]
    show(Document("targets", "targets", "Device profiles", data, (Section(table=table),)), form)


COMMAND = targets
