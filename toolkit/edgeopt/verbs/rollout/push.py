"""`push`: a bundle into its place on a device, if it is proven there; and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, EdgeoptError
from edgeopt.report.result import Result, fields_as_json
from edgeopt.system.machine.environment import Environment, read_environment
from edgeopt.verbs.rollout.canary import Canary, CanaryOptions, prove
from edgeopt.verbs.rollout.place import Fate, Version, open_place

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Pushed(Result):
    """The outcome of a push."""

    command: ClassVar[str] = "push"

    place: Path
    version: Version
    before: str
    """Name of the version that ran before; empty: none did."""
    canary: Canary | None
    """None: nothing had to be proven, as it runs already or ran before."""
    went_back: bool = False
    environment: Environment | None = None
    """The device on which it was proven; None: nothing had to be."""

    @property
    def exit_code(self) -> int:
        """0: it runs; 2: it was refused, and the one before runs on."""
        return EXIT_MISSED if self.version.fate is Fate.REFUSED else EXIT_PASS

    @property
    def verdict_word(self) -> str:
        """PASS or FAIL of what was proven; empty: nothing had to be."""
        refused = "FAIL" if self.version.fate is Fate.REFUSED else ""
        return refused or ("PASS" if self.canary else "")

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return fields_as_json(self) | {"place": str(self.place)}


def push(
    bundle: Path,
    place: Path,
    *,
    options: CanaryOptions = CanaryOptions(),  # noqa: B008, frozen
    trust: Path | None = None,
    tell: Tell | None = None,
) -> Pushed:
    """Put a bundle beside the running one, prove it, and let it run in its place; else the running one stays.

    Args:
        bundle: The new one; its signature lies beside it.
        place: Folder of the device; an app loads `place/current`.
        options: The demands.
        trust: Public key with which every release must be signed from now on; None: as it was.
        tell: Hears progress.

    Raises:
        EdgeoptError: If the bundle is damaged, not signed with the trusted key, or an old release; if the place holds
            something else; or if frames or labels cannot be used. The running bundle stays.
    """
    with open_place(place) as held:
        if trust is not None:
            held.trust(trust)
        before = held.running
        version = held.take_in(bundle)
        if version.fate is Fate.RUNNING:
            return Pushed(place, version, before, None)
        running = held.bundle_of(before) if before else None
        try:
            canary = prove(held.bundle_of(version.name), running, options, tell)
        except BaseException:
            held.refuse(version, "the proof ended before its time")
            raise
        if canary.refused:
            held.refuse(version, canary.refused)
        else:
            held.switch(version)
        return Pushed(place, held.state.versions[-1], before, canary, environment=read_environment())


def go_back(place: Path) -> Pushed:
    """Let the version run that ran before.

    Raises:
        EdgeoptError: If there is none.
    """
    if not place.is_dir():
        raise EdgeoptError(f"{place} is not there", remedy="name the folder into which bundles were pushed")
    with open_place(place) as held:
        before = held.running
        return Pushed(place, held.go_back(), before, None, went_back=True)
