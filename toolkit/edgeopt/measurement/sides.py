"""Workloads side by side: what `compare` and `check` ask of a kind of workload, and all that they know of it.

A kind has both verbs where its folder holds a file `sides.py` with what `SidesOfKind` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgeopt.errors import Note
from edgeopt.measurement.check.result import CheckResult
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.recipes.default_limits import Check
from edgeopt.system.machine.environment import Environment

Tell = Callable[[str, int, int], None]
"""Hears what is done, how far, of how much."""


@dataclass(frozen=True, slots=True)
class SideFigure:
    """A figure of one workload with its 95 % interval."""

    value: float
    low: float | None
    """None: too few samples for an interval."""
    high: float | None
    unit: str

    def __str__(self) -> str:
        return f"{self.value:.{self._digits}f}"

    @property
    def interval(self) -> str:
        """The interval as text; empty: there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{self.low:.{self._digits}f}, {self.high:.{self._digits}f}]"

    @property
    def _digits(self) -> int:
        return next(i for i, least in enumerate((1000, 100, 10, 1, 0.0)) if self.value >= least)


@dataclass(frozen=True, slots=True)
class SideFacts:
    """One workload, as far as it is known without running it."""

    label: str
    given: str
    """As the user named it."""
    size_bytes: int | None
    """Bytes of the model with its external data; None: not known, as of an earlier result."""
    sha256: str
    """SHA-256 of its models; empty: not known."""
    threads: int
    environment: Environment
    more: Mapping[str, str] = field(default_factory=dict)
    """Columns of its own for a table, such as `cache a token`."""
    figures: Mapping[str, SideFigure] = field(default_factory=dict)
    """Figures beside those that are judged, such as `peak memory`, in the order of their table."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The engine's settings, where engines differ in them."""


class Loss(Protocol):
    """Quality lost against another workload on the same samples; as text the estimate, a blank, the interval."""

    @property
    def value(self) -> float:
        """The estimate, in the unit of the metric or as a share."""
        ...

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        ...

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        ...


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the answers of one workload are."""

    metric: str
    value: float
    loss: Loss | None = None
    """Loss against the first; None: this is the first, or the samples cannot be paired."""
    loss_name: str = "drop"
    more_is_better: bool = True
    agreement: float | None = None
    """Share of answers that are the first one's; None where the metric says it all."""

    @property
    def worth(self) -> float:
        """The metric so that more is better."""
        return self.value if self.more_is_better else -self.value


class Timed(Protocol):
    """Times of workloads side by side."""

    @property
    def samples(self) -> Mapping[str, Samples]:
        """Raw samples by label."""
        ...

    @property
    def seconds(self) -> float:
        """How long it took; 0: they are earlier results."""
        ...

    @property
    def trust(self) -> Trust | None:
        """Whether the run can be believed; None: nobody recorded it."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that can be judged, the whole among them."""
        ...

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio | None:
        """Return how many times as fast a workload is as another (the first); None: too few samples."""
        ...

    def null(self, part: str, margin: float = 0.02) -> Ratio | None:
        """Return the ratio of the first to itself; None: they did not run in turns."""
        ...


@dataclass(frozen=True, slots=True)
class Baselined:
    """The baseline, as a guard sees it."""

    held: Any
    """The guard's value in the baseline, as `CheckGuard.read` returned it; None: the baseline has none."""
    is_open: bool
    """Whether its workload is open too, as the first of the sides."""
    why_gone: str = ""
    """Why it is not."""
    why_not_comparable: str = ""
    """Why figures of the file cannot be compared with those of this run; empty: they can, or need not be."""
    blocked: str = ""
    """Why the machine is too noisy to judge times; empty: it is not."""


class CheckGuard(Protocol):
    """One property that `check` guards besides times."""

    def hold(self, tell: Tell | None) -> Any:
        """Return what the baseline's file holds of it, as plain values for JSON; None: nothing can be held."""
        ...

    def read(self, held: Any) -> Any:
        """Return what `hold` returned, as it came back from the file.

        Raises:
            KeyError, TypeError, ValueError: If it is something else.
        """
        ...

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> Sequence[CheckResult]:
        """Judge this run against the baseline."""
        ...

    def note_unheld(self) -> tuple[Note, ...]:
        """Return what a baseline without it cannot guard; none: nothing that needs words."""
        ...


class Sides(Protocol):
    """Workloads of one kind, open side by side: the first is the standard."""

    @property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each, in order."""
        ...

    @property
    def notes(self) -> tuple[Note, ...]:
        """Differences between them beyond the models, and notes of each."""
        ...

    @property
    def source(self) -> str:
        """Samples or prompts that they are fed, in words."""
        ...

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return how good the answers are, by label; empty where nothing judges."""
        ...

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Timed:
        """Run all of them in turns, and a second copy of the first."""
        ...

    def close(self) -> None:
        """Free them all."""
        ...


class CheckedSides(Sides, Protocol):
    """The checked workload, as the last of the sides; before it the baseline's, where it is still there."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Plain values with which a later `check` opens and feeds both alike; figures of others are not compared."""
        ...

    @property
    def judged_parts(self) -> tuple[str, ...]:
        """Parts that a change of the workload can slow down: those that `check` judges."""
        ...

    @property
    def guards(self) -> Mapping[str, CheckGuard]:
        """Guards of `check` that its kind alone has, by the name that `--skip` takes; others: `check/guards.py`."""
        ...

    def limits(self, wishes: Mapping[str, float]) -> Check:
        """Return what `check` allows: wishes, over the recipe's own, over what `optimize` may lose.

        Raises:
            EdgeoptError: If a wish is unknown or refused.
        """
        ...

    def run_alone(self, seconds: float, tell: Tell | None) -> tuple[Samples, Trust]:
        """Run the last one alone."""
        ...

    def without_first(self) -> CheckedSides:
        """Close the first, and return the others."""
        ...


class SidesOpener(Protocol):
    """The opener of the sides of a comparison."""

    def open_sides(self, sources: Sequence[str], options: Any) -> Sides:
        """Open workloads of the kind for `compare`.

        Args:
            sources: As the user named them.
            options: The kind's options of `compare`.

        Raises:
            EdgeoptError: If one cannot be opened, or they do not fit each other.
        """
        ...


class SidesOfKind(SidesOpener, Protocol):
    """The file `sides.py` of a kind of workload."""

    def open_checked(self, sources: Sequence[str], options: Any, settings: Mapping[str, Any]) -> CheckedSides:
        """Open what `check` works on.

        Args:
            sources: What is checked; before it the baseline's workload, if it is there.
            options: The kind's options of `check`.
            settings: Those of the baseline; empty: one is written now.

        Raises:
            EdgeoptError: If one cannot be opened, or they do not fit each other.
        """
        ...
