"""`inspect`: the facts of a workload, and where a device runs its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from edgeopt.report.facts import WorkloadFacts
from edgeopt.system.machine.environment import read_environment
from edgeopt.verbs._perform import Performed, prepare, with_options_of_kinds
from edgeopt.verbs.wishes import InspectWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("inspect")
def inspect(
    workload: str | Path,
    *,
    options: object = None,
    on: str | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[InspectWishes],
) -> WorkloadFacts:
    """Return the facts of a workload; nothing is timed.

    Args:
        workload: An ONNX file, a shipped model's name, or a language model: its file, folder or bundle.
        options: What is looked at, the dataclass of its kind; None: all defaults.
        on: The device that looks, `ssh://USER@HOST`: its engines say where nodes run. None: this machine.
        tell: Hears what is sent to it.
        **wishes: Fields of the options that differ: `target="cpu"`, `quantized=True`, `shapes={"x": (1, 8)}`.

    Returns:
        An `Inspection`; with `quantized=True` a `QuantizedView`.

    Raises:
        EdgeoptError: If the workload cannot be read, its kind refuses, or a wish is for another kind.
    """
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        remote: WorkloadFacts = result_on(RemoteCall("inspect", (str(workload),), options, wishes, on), tell)
        return remote
    return inspected(str(workload), options, wishes).result


def inspected(workload: str, options: object, wishes: Mapping[str, Any]) -> Performed[WorkloadFacts]:
    """Do what `inspect` does, and say how it is shown.

    Raises:
        EdgeoptError: As `inspect`.
    """
    kind, chosen = prepare("inspect", (workload,), options, wishes)
    module = kind.module("inspect")
    facts = replace(module.work(workload, chosen), kind=kind.name, environment=read_environment())
    return Performed(facts, lambda facts: module.summarize(facts, chosen))
