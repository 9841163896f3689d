"""Who runs next on cores that several models share: the rules alone, without threads and without a clock.

1. Who waited for `patience_ms` without a turn goes, whatever its priority: nobody starves.
2. Otherwise the highest priority goes; among equals the frame that is due first, then the one that came first.
3. A model of lower priority begins only what is done before a frame of a higher one is expected. A frame is expected
   where its stream has a rhythm, or the app says its rate; one out of rhythm waits for a single run at most.
4. Frames of one model go together, up to `max_batch`, as many as the oldest's budget allows. Where more streams are
   active than frames wait, it waits for theirs: no longer than `max_delay_ms`, and only while the budget allows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edgeopt.system.order_statistic import order_statistic

_GAPS: Final = 8
_LEAST_GAPS: Final = 4
_REGULAR_RATIO: Final = 0.25
"""A stream whose gaps differ from their median by more has no rhythm."""
_KNOWN_RATIO: Final = 0.1
"""Where the app says the period, a frame is expected this share of it early or late."""
_MOST_ABSENT: Final = 4
"""Frames that may be missing in a row; after that the stream has stopped."""


class Rhythm:
    """The arrivals of one stream. One gap in eight may be of any length: a camera loses a frame now and then."""

    def __init__(self, period_ns: int = 0) -> None:
        """Begin without a frame.

        Args:
            period_ns: Between two frames, where the app knows it; 0: it is learnt.
        """
        self._known_ns = period_ns
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._last_ns = self._period_ns = self._margin_ns = 0
        self._follows = False

    def note(self, now_ns: int, *, is_exact: bool = True) -> None:
        """Take in a frame.

        Args:
            now_ns: When it is offered.
            is_exact: Whether it arrives just now; otherwise it has waited elsewhere, and tells nothing.
        """
        follows, self._follows = self._follows, is_exact
        if not is_exact:
            return
        if follows:
            self._gaps.append(now_ns - self._last_ns)
        self._last_ns = now_ns
        if self._known_ns:
            self._period_ns, self._margin_ns = self._known_ns, int(_KNOWN_RATIO * self._known_ns)
        elif len(self._gaps) >= _LEAST_GAPS:
            period = sorted(self._gaps)[len(self._gaps) // 2]
            margin = sorted(abs(gap - period) for gap in self._gaps)[-2]
            is_regular = margin <= _REGULAR_RATIO * period
            self._period_ns, self._margin_ns = (period, margin) if is_regular else (0, 0)

    def expected(self, now_ns: int) -> tuple[int, int] | None:
        """Return from when to when the next frame is due, the end not before now; None where there is no rhythm."""
        if not self._period_ns:
            return None
        absent = max(0, -(-(now_ns - self._last_ns - self._margin_ns) // self._period_ns) - 1)
        if absent > _MOST_ABSENT:
            return None
        due = self._last_ns + (absent + 1) * self._period_ns
        return due - self._margin_ns, due + self._margin_ns


NEVER: Final = math.inf
_KEPT: Final = 16
_SAFE: Final = 0.9
"""A run is taken to last as long as this quantile of the last runs."""
_MOST_STREAMS: Final = 64
_AT_ONCE_NS: Final = 1_000_000
_ACTIVE_NS: Final = 1_000_000_000
"""A stream that brought no frame for so long is not waited for."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Priority, budget and rate of a model in a schedule."""

    priority: int = 0
    """A model with a higher number goes first."""
    budget_ms: float | None = None
    """Time allowed from a frame's arrival to its answer."""
    fps: float | None = None
    """Frames a second of each stream; None: learnt from streams that come at a steady pace."""
    patience_ms: float = 1000.0
    """A frame that has waited this long, while its model had no turn, goes next."""
    max_batch: int = 1
    """Frames that may go together in a batch."""
    max_delay_ms: float = 0.0
    """How long the first frame of a batch may wait for the others."""

    def __post_init__(self) -> None:
        given = [one for one in (self.budget_ms, self.fps) if one is not None]
        positive = (self.patience_ms, self.max_batch, *given)
        if not (min(positive) > 0 and 0 <= self.max_delay_ms < math.inf):
            raise ValueError("patience_ms, budget_ms, fps and max_batch are above 0, max_delay_ms is not below 0")


@dataclass(slots=True, eq=False)
class Ticket:
    """A frame that waits."""

    name: str
    """Name of its model."""
    stream: int
    arrived_ns: int
    due_ns: float
    turn: Turn | None = None
    load: Any = None
    """Whatever the caller wants to keep with it."""

    @property
    def is_first(self) -> bool:
        """Whether it has its turn, before the others of the turn."""
        return self.turn is not None and self.turn.tickets[0] is self


@dataclass(slots=True, eq=False)
class Turn:
    """Frames of one model that run now, the oldest first."""

    name: str
    tickets: tuple[Ticket, ...]
    begun_ns: int
    is_over: bool = False


@dataclass(slots=True)
class _Stream:
    """The state of one stream of a model."""

    rhythm: Rhythm
    came_ns: int = 0
    """When its last frame was offered."""
    done_ns: int = -_ACTIVE_NS
    """When its last turn was over."""
    on_their_way: int = 0

    def offer(self, now_ns: int) -> None:
        """Take in a frame. One that comes as soon as the one before is done has waited for that elsewhere."""
        self.rhythm.note(now_ns, is_exact=bool(self.on_their_way) or now_ns - self.done_ns > _AT_ONCE_NS)
        self.came_ns = now_ns
        self.on_their_way += 1


@dataclass(slots=True)
class _Model:
    """The state of one model."""

    terms: Terms
    waiting: deque[Ticket] = field(default_factory=deque)
    had_turn_ns: int = 0
    streams: dict[int, _Stream] = field(default_factory=dict)
    times_ns: dict[int, deque[int]] = field(default_factory=dict)
    """Times of the last runs, by their number of frames."""
    safe_ns: dict[int, int] = field(default_factory=dict)
    """Nanoseconds within which nine of ten such runs end."""

    def learn(self, size: int, time_ns: int) -> None:
        """Take in how long it ran for so many frames."""
        times = self.times_ns.setdefault(size, deque(maxlen=_KEPT))
        times.append(time_ns)
        self.safe_ns[size] = order_statistic(np.sort(times), _SAFE)

    def service_ns(self, size: int) -> float:
        """Return how long a run of so many frames may take; 0 before the first run of any size.

        A size that never ran takes no longer than a larger one, and no longer a frame than a smaller one.
        """
        if size in self.safe_ns:
            return self.safe_ns[size]
        return min((safe * max(1.0, size / number) for number, safe in self.safe_ns.items()), default=0.0)

    def forget(self, now_ns: int) -> None:
        """Forget streams that have ended: an app may number each connection anew."""
        if len(self.streams) >= _MOST_STREAMS:
            gone = [
                number
                for number, it in self.streams.items()
                if not it.on_their_way and now_ns - it.came_ns > _ACTIVE_NS
            ]
            for index in gone:
                del self.streams[index]

    def hungry_ns(self) -> float:
        """Return when its patience ends."""
        return max(self.waiting[0].arrived_ns, self.had_turn_ns) + self.terms.patience_ms * 1e6

    def rank(self) -> tuple[float, ...]:
        """Return its place by the second rule, the smallest first."""
        first = self.waiting[0]
        return (-self.terms.priority, first.due_ns, first.arrived_ns)

    def size(self, now_ns: int) -> int:
        """Return how many of the waiting frames go together by the oldest's budget; all, where it is lost already."""
        most = min(len(self.waiting), self.terms.max_batch)
        if most == 1:
            return 1
        due = self.waiting[0].due_ns
        fitting = [other for other in range(1, most + 1) if now_ns + self.service_ns(other) <= due]
        return fitting[-1] if fitting else most

    def gathers_until_ns(self, now_ns: int) -> float:
        """Return until when it waits for frames of other streams; what is not in the future is: not at all."""
        if self.terms.max_batch == 1:
            return 0.0
        size, first = self.size(now_ns), self.waiting[0]
        active = sum(now_ns - stream.came_ns <= _ACTIVE_NS for stream in self.streams.values())
        if len(self.waiting) >= min(self.terms.max_batch, active):
            return 0.0
        delay = first.arrived_ns + self.terms.max_delay_ms * 1e6
        return min(delay, first.due_ns - self.service_ns(size + 1))


Waiting = Sequence[tuple[str, _Model]]
"""Models of which a frame waits."""


class CoreTurns:
    """The frames of all models that share some cores: one run at a time."""

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        """Begin with nobody waiting.

        Args:
            terms: Of each model, by name.
        """
        self._models = {name: _Model(term) for name, term in terms.items()}
        self._running: Turn | None = None
        self.again_ns: float = NEVER
        """When `decide`, which just gave nobody a turn, is to be asked again if nothing else happens before."""

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return sum(len(model.waiting) for model in self._models.values())

    def offer(self, name: str, now_ns: int, stream: int = 0) -> Ticket:
        """Let a frame wait for its turn."""
        model = self._models[name]
        terms = model.terms
        if stream not in model.streams:
            model.forget(now_ns)
            model.streams[stream] = _Stream(Rhythm(int(1e9 / terms.fps) if terms.fps else 0))
        model.streams[stream].offer(now_ns)
        budget = terms.budget_ms
        ticket = Ticket(name, stream, now_ns, NEVER if budget is None else now_ns + budget * 1e6)
        model.waiting.append(ticket)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a frame that waits; one that had its turn stays."""
        if ticket.turn is None:
            model = self._models[ticket.name]
            model.waiting.remove(ticket)
            model.streams[ticket.stream].on_their_way -= 1

    def decide(self, now_ns: int) -> Turn | None:
        """Return the frames that run now; None: one turn is not over, or nobody may begin yet."""
        self.again_ns = NEVER
        if self._running is not None:
            return None
        waiting = [(name, model) for name, model in self._models.items() if model.waiting]
        chosen = self._hungry(waiting, now_ns) or self._next(waiting, now_ns)
        if chosen is None:
            return None
        name, model = chosen
        tickets = tuple(model.waiting.popleft() for _ in range(model.size(now_ns)))
        self._running = Turn(name, tickets, now_ns)
        for ticket in tickets:
            ticket.turn = self._running
        return self._running

    def done(self, turn: Turn, now_ns: int, *, is_typical: bool = True) -> None:
        """End a turn.

        Args:
            turn: The one that `decide` gave.
            now_ns: Now.
            is_typical: Whether its time says how long the next ones take: not where it failed.
        """
        model = self._models[turn.name]
        model.had_turn_ns = now_ns
        for ticket in turn.tickets:
            stream = model.streams[ticket.stream]
            stream.done_ns, stream.on_their_way = now_ns, stream.on_their_way - 1
        self._running, turn.is_over = None, True
        if is_typical:
            self.learn(turn.name, len(turn.tickets), now_ns - turn.begun_ns)

    def learn(self, name: str, size: int, time_ns: int) -> None:
        """Take in how long a model ran for so many frames."""
        self._models[name].learn(size, time_ns)

    def _hungry(self, waiting: Waiting, now_ns: int) -> tuple[str, _Model] | None:
        """Return the model that has waited longest beyond its patience."""
        if not waiting:
            return None
        first = min(waiting, key=lambda pair: pair[1].hungry_ns())
        self._ask_again(ends := first[1].hungry_ns())
        return first if ends <= now_ns else None

    def _next(self, waiting: Waiting, now_ns: int) -> tuple[str, _Model] | None:
        """Return the first model by priority that may begin now."""
        free_until = NEVER
        for name, model in sorted(waiting, key=lambda pair: pair[1].rank()):
            until = model.gathers_until_ns(now_ns)
            if until > now_ns:
                self._ask_again(until)
                free_until = min(free_until, until)
                continue
            done = now_ns + model.service_ns(model.size(now_ns))
            ends = [end for begin, end in self._expected(model.terms.priority, now_ns) if begin < done]
            if done > free_until or ends:
                self._ask_again(min(ends, default=NEVER) + 1)
                continue
            return name, model
        return None

    def _expected(self, priority: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """Yield from when to when the next frame of each stream of a higher priority is due."""
        for model in self._models.values():
            if model.terms.priority > priority and not model.waiting:
                for stream in model.streams.values():
                    if (window := stream.rhythm.expected(now_ns)) is not None:
                        yield window

    def _ask_again(self, when_ns: float) -> None:
        self.again_ns = min(self.again_ns, when_ns)
