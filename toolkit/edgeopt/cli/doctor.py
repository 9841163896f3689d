"""`edgeopt doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show
from edgeopt.system.text import plural

if TYPE_CHECKING:
    from edgeopt.report.document import Document
    from edgeopt.runtime.checkup import Checkup


@click.command()
@format_option
@click.pass_context
def doctor(ctx: click.Context, *, form: str) -> None:
    """Show what this machine can run, and what is missing."""
    from edgeopt.runtime.checkup import examine

    found = examine()
    show(_summarize(found), form)
    ctx.exit(found.exit_code)


def _summarize(found: Checkup) -> Document:
    from edgeopt.report.document import Document, Section, Value

    machine = found.environment
    cores = plural(machine.cores, "core")
    targets: dict[str, list[str]] = {}
    for name, reason in found.targets.items():
        targets.setdefault(reason, []).append(name)
    values = (
        Value("machine", f"{machine.cpu}, {machine.architecture}, {cores}, {machine.memory_mib} MiB"),
        Value("can do", ", ".join(machine.instructions) or "nothing that INT8 gains by"),
        Value("system", f"{machine.system}, Python {machine.python}"),
        Value("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
        *(Value("executor", f"{name}: {reason or 'runs'}") for name, reason in found.executors.items()),
        *(Value("target", f"{', '.join(names)}: {reason or 'runs here'}") for reason, names in targets.items()),
    )
    return Document("doctor", machine.cpu, "This machine", asdict(found), (Section(values=values, notes=found.notes),))


COMMAND = doctor
