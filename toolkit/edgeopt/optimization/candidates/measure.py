"""Candidates measured and chosen: all in turns here, then the most promising against the original in fresh processes.

One process tells how long the stages take and which candidates are promising. What is faster is proven over processes,
by whole frames; nothing else is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.common_options import MAX_MISS_RATIO
from edgeopt.measurement.fresh_process.proof_time import (
    FEWEST_PROCESSES,
    PROOF_BLOCK_S,
    PROOF_ROUNDS,
    SLOW_S,
    SPARE,
    START_S,
    SeenTimes,
    processes_that_decide,
)
from edgeopt.measurement.fresh_process.turns import FreshTurns
from edgeopt.measurement.resources.trust import Trust, TrustLevel, judge_turns
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import judge_budget
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.interleaved import AGAIN, HERE, Opened, Pace, Turns, TurnsMachine, take_turns
from edgeopt.measurement.turns.one_open import take_turns_one_open
from edgeopt.optimization.candidate import BASELINE, Candidate, Latency
from edgeopt.optimization.choice.selection import Chosen, Wish, choose, is_answered, is_proven, loss, mark, shortlist
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.processes.time_limit import LONGER, limited, longer, time_left_s

FRAMES_FOR_P99 = 400
"""The two-sided 95 % interval of a p99 needs 368."""
MOST_SECONDS = 60.0
CONFIRM_SECONDS = 15.0
_LATE, _MOST_LATE_S = 0.05, 7.5
"""Share of a time limit that measuring may take beyond it, and the most that is; as much again is left for a bundle."""
LEAST_PROCESSES = 6
"""Below, no interval of ranks has 95 %."""
MOST_PROCESSES = 12
"""With session memory that moves each model by up to 20 %, these find one that is 1.10x as fast in most runs."""
_CLEAR = 1.25
"""A speed of one process from which the least number of processes is enough: what memory moves is no more than that."""
_MOST_LISTED = 3
_BATCHES = 2
_LEAST_BLOCK = 3
"""Slow models are timed over 30 frames at least."""
_PROOF_PACE = Pace(0.0, most_legs=1, block_seconds=PROOF_BLOCK_S, least_rounds=PROOF_ROUNDS)
_WAITING = "waiting"
"""Stage from the instant at which a frame should have arrived until it was taken, where that took time."""

Fresh = Callable[[Sequence[str], Pace, int], Turns]
"""Runs the original and these candidates in turns in one fresh process; the number is the seed of the order."""
Tell = Callable[[str, int, int], None]
Judge = Callable[[Sequence[Candidate]], Sequence[Candidate]]
"""Returns candidates, marked and with proven speeds, with their judgements."""


@dataclass(frozen=True)
class Decision:
    """The measurements, and the choice that rests on them."""

    candidates: tuple[Candidate, ...]
    chosen: Chosen
    samples: Mapping[str, Samples]
    """All candidates in turns in one process."""
    confirmed: Mapping[str, Samples]
    """The frames of fresh processes, of those that were worth a proof and of the baseline."""
    trust: Trust | None
    """None where nothing was measured."""
    notes: tuple[Note, ...]
    untimed: str = ""
    """Why nothing was measured; empty where it was."""
    unproven: str = ""
    """Clause on the candidate that looks fastest, where no time was left for a proof, and on the seconds that a proof
    would take; empty: there is no such candidate."""
    slower: float = 0.0
    """Times what was expected that fresh processes took, the median; 0: none ran, or nothing was expected."""


@dataclass(frozen=True)
class Bench:
    """The sessions and frames that candidates are measured on."""

    openers: Mapping[str, Callable[[], Opened]]
    """Openers by name, the baseline first."""
    frames: Frames
    budget_ms: float
    workers: int
    """Threads of a session."""
    fresh: Fresh | None
    """None: this device's sessions open in one process only, and its turns are the proof."""
    seconds: float = MOST_SECONDS
    confirm_seconds: float = CONFIRM_SECONDS
    machine: TurnsMachine = HERE
    seed: int = 0
    tell: Tell | None = None
    one_open: bool = False
    """Whether memory holds one session at a time; its turns are then the proof, as each opens a session anew."""
    time_limit_s: float | None = None
    """Time limit of the whole run; None: there is none."""
    limit_with: Callable[[float], float] | None = None
    """Returns the time limit that would have left so many seconds more, in seconds; None: that many more, and some to
    spare."""
    until_s: float = math.inf
    """Instant on the monotonic clock: the rest of a time limit is for judging accuracy."""
    turns_until_s: float = math.inf
    """Instant on the monotonic clock: the time from then on is for fresh processes, once two rounds are whole."""
    is_measured_late: bool = False
    """Whether two rounds of the turns are run however late it is."""
    process_s: Callable[[Sequence[str]], float] | None = None
    """Returns about how many seconds a fresh process takes with the baseline and these candidates; None: the turns tell
    it."""
    same: frozenset[str] = frozenset()
    """Names of the candidates of which the engine makes the baseline's own graph: times differ by chance alone."""

    def enough_with(self, missing_s: float) -> float:
        """Return the time limit that would have left so many seconds more; 0 without a limit."""
        if self.time_limit_s is None:
            return 0.0
        return self.limit_with(missing_s) if self.limit_with else self.time_limit_s + SPARE * missing_s


def proof_pace(frame_s: float) -> Pace:
    """Return the pace of a fresh process: a single round of what is slow, since processes differ by more than rounds.

    Args:
        frame_s: Seconds of a frame of the original.
    """
    return replace(_PROOF_PACE, least_rounds=1) if frame_s > SLOW_S else _PROOF_PACE


def late_s(limit_s: float | None) -> float:
    """Return how long measuring may go on behind a time limit, in seconds, before the bundle is written."""
    return min(_LATE * limit_s, _MOST_LATE_S) if limit_s else 0.0


def measure_and_choose(
    candidates: Sequence[Candidate], bench: Bench, wish: Wish, judge: Judge | None = None
) -> Decision:
    """Measure all candidates, prove the most promising, judge their accuracy, and choose.

    Args:
        candidates: The baseline first, scored; those that the bench does not open are not measured.
        bench: What they are measured on.
        wish: What a candidate must keep, and what is wanted of it.
        judge: Judges the accuracy of what is proven faster; None: the candidates bring their judgements.

    Raises:
        OutOfTime: Where a time limit leaves too little for two rounds.
    """
    pace = Pace(bench.seconds, enough=FRAMES_FOR_P99, least_block=_LEAST_BLOCK, until_s=bench.turns_until_s)
    told = partial(bench.tell, "measure in turns") if bench.tell else None
    opened_s = dict[str, float]()
    openers = {name: partial(_open_timed, opener, bench, opened_s, name) for name, opener in bench.openers.items()}
    take = partial(
        take_turns_one_open if bench.one_open else take_turns,
        openers,
        bench.frames,
        pace,
        workers=bench.workers,
        seed=bench.seed,
        machine=bench.machine,
        tell=told,
    )
    with limited(math.inf if bench.is_measured_late else bench.until_s):
        turns = take()
    with limited(bench.until_s):
        timed = [
            _with_turns(candidate, turns, bench) if candidate.name in bench.openers else candidate
            for candidate in candidates
        ]
        marked = mark(timed, wish)
        proof = _Proof(turns, bench, opened_s)
        if bench.fresh is not None:
            marked = proof.confirm(marked, wish)
    if bench.fresh is None:
        marked = mark(_with_rounds_that_decide(marked, turns, bench, pace, proof.notes), wish)
    if proof.trust.level is TrustLevel.INVALID:
        marked = mark([_unproven(candidate) for candidate in marked], wish)
    if judge is not None:
        marked = mark(judge(marked), wish)
    return Decision(
        candidates=marked,
        chosen=choose(marked, wish, proof.is_faster),
        samples={
            candidate.name: turns.samples[candidate.name] for candidate in candidates if candidate.name in bench.openers
        },
        confirmed=proof.samples(),
        trust=proof.trust,
        notes=tuple(proof.notes),
        unproven=proof.unproven,
        slower=proof.slower,
    )


def _open_timed(opener: Callable[[], Opened], bench: Bench, opened_s: dict[str, float], name: str) -> Opened:
    """Open a model, and keep how many seconds that took."""
    began_ns = bench.machine.clock()
    opened = opener()
    opened_s[name] = (bench.machine.clock() - began_ns) / 1e9
    return opened


def _with_turns(candidate: Candidate, turns: Turns, bench: Bench) -> Candidate:
    """Return a candidate with its latency and the speeds of one process."""
    timed = replace(candidate, latency=latency_of(turns.samples[candidate.name], bench.budget_ms))
    if candidate.name == BASELINE:
        return timed
    if candidate.name in bench.same:
        same = replace(turns.ratio(candidate.name, "frame"), speedup=1.0, low=1.0, high=1.0, verdict=Change.EQUIVALENT)
        return replace(timed, speed=same)
    speeds = {part: turns.ratio(candidate.name, part) for part in ("frame", "execute") if part in turns.parts}
    if bench.fresh is not None:
        speeds = {part: replace(speed, verdict=Change.UNCONFIRMED) for part, speed in speeds.items()}
    return replace(timed, speed=speeds["frame"], execute=speeds.get("execute"))


def _rounds_of(turns: Turns) -> int:
    """Return how many rounds are whole."""
    rounds = turns.samples[BASELINE].round_id
    assert rounds is not None
    return len(np.unique(rounds))


def _with_rounds_that_decide(
    marked: Sequence[Candidate], turns: Turns, bench: Bench, pace: Pace, notes: list[Note]
) -> list[Candidate]:
    """Return the candidates; where a time limit left too few rounds to decide on one, its speed proves nothing.

    Args:
        marked: All candidates, the baseline first.
        turns: Of this process.
        bench: What they were measured on.
        pace: How long.
        notes: Gets how many rounds were missing, and the time limit that would have been enough for them.
    """
    rounds = _rounds_of(turns)
    speeds = {candidate.name: candidate.speed for candidate in marked if candidate.speed}
    least = {name: _least_rounds(speed, bench, pace) for name, speed in speeds.items()}
    short = {name: count for name, count in least.items() if rounds < count}
    if not short:
        return [*marked]
    most, each_s = max(short.values()), turns.seconds / rounds
    what = "no speed is confirmed" if len(short) == len(least) else f"not confirmed: {', '.join(short)}"
    enough_s = bench.enough_with((most - rounds) * each_s)
    text = f"{what}: the time limit left {rounds} of {most} rounds"
    notes.append(Note(NoteKind.WARNING, text, longer(enough_s) if enough_s else LONGER))
    return [_unproven(candidate) if candidate.name in short else candidate for candidate in marked]


def _least_rounds(speed: Ratio, bench: Bench, pace: Pace) -> int:
    """Return how many rounds of this process prove a speed, where none are run in others."""
    return processes_that_decide(speed.low) if bench.one_open else pace.least_rounds


def _unproven(candidate: Candidate) -> Candidate:
    """Return a candidate whose speed proves nothing."""
    return (
        replace(candidate, speed=replace(candidate.speed, verdict=Change.UNCONFIRMED)) if candidate.speed else candidate
    )


class _TooLateError(Exception):
    """The time limit leaves none for the least number of fresh processes."""

    def __init__(self, missing_s: float) -> None:
        super().__init__()
        self.missing_s = missing_s


class _Proof:
    """The times of fresh processes, for candidates that are worth it."""

    def __init__(self, turns: Turns, bench: Bench, opened_s: Mapping[str, float]) -> None:
        self.notes: list[Note] = []
        self.unproven = ""
        self._turns, self._bench, self._opened_s = turns, bench, opened_s
        self._readings, self._anchors = list(turns.readings), list(turns.anchors)
        self._found: list[FreshTurns] = []
        self._pace_ratio = 1.0
        self._pace_ratios = list[float]()

    @property
    def trust(self) -> Trust:
        """Whether all of it can be believed."""
        return judge_turns(self._turns.null_rounds, self._readings, self._anchors, workers=self._bench.workers)

    @property
    def slower(self) -> float:
        """Times what was expected that processes took, the median; 0: none ran, or nothing was expected."""
        return median(self._pace_ratios) if self._pace_ratios and self._bench.process_s else 0.0

    def confirm(self, marked: tuple[Candidate, ...], wish: Wish) -> tuple[Candidate, ...]:
        """Return the candidates with the speeds over processes of those that were asked for."""
        asked, left_out = list[str](), tuple[str, ...]()
        for _ in range(_BATCHES):
            names = left_out or shortlist(marked, wish, asked, self._most)
            if not names:
                break
            looked = {candidate.name: candidate.speed for candidate in marked if candidate.speed}
            try:
                fresh_turns = self._ask(names, looked)
            except EdgeoptError as error:
                self.notes.append(Note(NoteKind.WARNING, f"no speed is confirmed: {error.problem}", error.remedy))
                break
            except _TooLateError as late:
                if open_to := _still_open(marked, names, wish):
                    self._leave(marked, open_to, late.missing_s)
                break
            self._found.append(fresh_turns)
            proven = fresh_turns.processes[0].samples
            known = [
                _with_proof(candidate, fresh_turns)
                if candidate.name in proven and candidate.name != BASELINE
                else candidate
                for candidate in marked
            ]
            marked = mark(known, wish)
            asked += [name for name in names if name in proven]
            left_out = tuple(name for name in names if name not in proven)
            is_found = is_answered(marked, wish)
            least = min(looked[names[0]].low, _speedup_of(marked, names[0]))
            missing = min(LEAST_PROCESSES, processes_that_decide(least)) - len(fresh_turns.processes)
            if missing > 0 and not is_found and _is_promising(marked, names[0]):
                self._leave(marked, names[:1], missing * self._each_s(names[:1]))
            if is_found and not left_out:
                break
        return marked

    @property
    def _frame_s(self) -> float:
        return float(self._turns.samples[self._turns.baseline].steady().frame_ns.mean()) / 1e9

    @property
    def _most(self) -> int:
        """How many candidates fit beside the baseline and its copy: at least one."""
        frames = LEAST_PROCESSES * (2 * self._pace.least_rounds + 1)
        return max(1, min(_MOST_LISTED, int(self._bench.confirm_seconds / (frames * self._frame_s)) - 2))

    def _ask(self, names: Sequence[str], looked: Mapping[str, Ratio]) -> FreshTurns:
        """Run processes: the least number, and more while they fit into the time.

        Where a time limit leaves too little for all, the last names are left out; for the first as few are run as prove
        what it looks.

        Args:
            names: Candidates, the one that gains most first.
            looked: Speeds of one process, by name.

        Raises:
            _TooLateError: If too little is left even so.
        """
        assert self._bench.fresh is not None
        clock, tell = self._bench.machine.clock, self._bench.tell
        is_clear = max(looked[name].speedup for name in names) >= _CLEAR
        most = LEAST_PROCESSES if is_clear else MOST_PROCESSES
        began, result, shown = clock(), list[Turns](), names
        while len(result) < most:
            names = self._that_fit(names, looked, len(result))
            shown = names or shown
            each_s = self._each_s(names)
            is_over = (clock() - began) / 1e9 + each_s > self._bench.confirm_seconds
            if not names or each_s > time_left_s() or (is_over and len(result) >= LEAST_PROCESSES):
                break
            started = clock()
            result.append(self._bench.fresh(names, self._pace, self._bench.seed + len(result)))
            self._learn(names, (clock() - started) / 1e9)
            self._readings.append(self._bench.machine.read())
            self._anchors.append(self._bench.machine.measure_anchor())
            if tell:
                tell(f"confirm {', '.join(shown)} in fresh processes", len(result), most)
        if tell:
            tell(f"confirm {', '.join(shown)} in fresh processes", most, most)
        common = set[str](result[-1].samples)
        return FreshTurns(tuple(other.with_models(common) for other in result))

    def _that_fit(self, names: Sequence[str], looked: Mapping[str, Ratio], done: int) -> Sequence[str]:
        """Return the first names, as many as the time is enough for; none where what is done may be all.

        Raises:
            _TooLateError: If it is not enough for the first.
        """
        missing_s = math.inf
        for count in range(len(names), 0, -1):
            some = names[:count]
            needed = max(_fewest(looked[name]) for name in some) - done
            if needed <= 0 and count < len(names):
                return ()  # the first are decided: what is left would not do for the others
            if (missing_s := needed * self._each_s(some) - time_left_s()) <= 0:
                return some
        if done >= FEWEST_PROCESSES:
            return ()
        first = names[:1]
        frames_s = 3 * (1 + 2 * self._pace.least_rounds) * self._frame_s
        if not done and max(self._each_s(first), _fewest(looked[names[0]]) * frames_s) <= time_left_s():
            return first  # what is expected may be too much: one process tells
        raise _TooLateError(missing_s)

    def _expected_s(self, names: Sequence[str]) -> float:
        """Return what a fresh process should take."""
        if self._bench.process_s:
            return self._bench.process_s(names)
        opened = (self._turns.baseline, self._turns.baseline, *names)
        return START_S + sum(SeenTimes(self._opened_s[name], self._frame_s).in_process_s for name in opened)

    def _each_s(self, names: Sequence[str]) -> float:
        """Return what a fresh process takes, by what the last one took."""
        return self._pace_ratio * self._expected_s(names)

    def _learn(self, names: Sequence[str], took_s: float) -> None:
        self._pace_ratio = took_s / max(self._expected_s(names), 1e-9)
        self._pace_ratios.append(self._pace_ratio)

    @property
    def _pace(self) -> Pace:
        return proof_pace(self._frame_s)

    def _leave(self, marked: Sequence[Candidate], names: Sequence[str], missing_s: float) -> None:
        """Say what looks fastest of what is not proven, and how much more time would prove it."""
        best = next(candidate for candidate in marked if candidate.name == names[0])
        enough_s = self._bench.enough_with(missing_s)
        more_s = enough_s - (self._bench.time_limit_s or 0.0) if enough_s else missing_s
        self.unproven = promise_of(best, more_s)
        what = "not proven in the time" if self._found else "no speed is confirmed"
        others = f"; not proven either: {', '.join(names[1:])}" if self._found and len(names) > 1 else ""
        remedy = longer(enough_s) if enough_s else LONGER
        self.notes.append(Note(NoteKind.WARNING, f"{what}: {self.unproven}{others}", remedy))

    def is_faster(self, name: str, other: str) -> bool:
        """Return whether the first is proven faster than the second, by whole frames."""
        if self._bench.fresh is None:
            return name != other and self._turns.ratio(name, "frame", against=other).verdict is Change.FASTER
        if name == other:
            return False
        together = [
            fresh_turns for fresh_turns in self._found if {name, other} <= fresh_turns.processes[0].samples.keys()
        ]
        if together:
            ratios = [
                (fresh_turns.ratio(name, "frame", against=other), len(fresh_turns.processes))
                for fresh_turns in together
            ]
            return any(gated(ratio, count).verdict is Change.FASTER for ratio, count in ratios)
        mine, theirs = self._speed_of(name), self._speed_of(other)
        # of different processes: their intervals are apart
        return mine is not None and theirs is not None and mine.low > theirs.high

    def _speed_of(self, name: str) -> Ratio | None:
        """Return a candidate's speed over fresh processes; None: none ran it."""
        ran = [fresh_turns for fresh_turns in self._found if name in fresh_turns.processes[0].samples]
        return ran[-1].ratio(name, "frame") if ran else None

    def samples(self) -> Mapping[str, Samples]:
        """Return the frames of all processes by name; of the baseline those of the last ones."""
        return {
            name: fresh_turns.samples(name)
            for fresh_turns in self._found
            for name in fresh_turns.processes[0].samples
            if not name.endswith(AGAIN)
        }


def _fewest(looked: Ratio) -> int:
    """Return how few processes prove a speed that was seen in one."""
    return min(LEAST_PROCESSES, processes_that_decide(looked.low))


def _with_proof(candidate: Candidate, fresh_turns: FreshTurns) -> Candidate:
    count = len(fresh_turns.processes)
    execute = gated(fresh_turns.ratio(candidate.name, "execute"), count) if candidate.execute else None
    return replace(candidate, speed=gated(fresh_turns.ratio(candidate.name, "frame"), count), execute=execute)


def gated(ratio: Ratio, processes: int) -> Ratio:
    """Return a ratio over fresh processes; UNCONFIRMED where so few do not prove a gain of its size.

    Sessions lie in few places of memory, and their ratios in few values: of three processes Student's interval alone
    would call one of eight such ratios faster that gains nothing.
    """
    is_few = processes < min(LEAST_PROCESSES, processes_that_decide(ratio.speedup))
    return replace(ratio, verdict=Change.UNCONFIRMED) if is_few and ratio.verdict is Change.FASTER else ratio


def _speedup_of(marked: Sequence[Candidate], name: str) -> float:
    speed = next(candidate.speed for candidate in marked if candidate.name == name)
    return speed.speedup if speed else 1.0


def _is_promising(marked: Sequence[Candidate], name: str) -> bool:
    """Return whether more processes may prove a candidate faster: those that ran show nothing else."""
    speed = next(candidate.speed for candidate in marked if candidate.name == name)
    return speed is None or speed.verdict not in (Change.SLOWER, Change.EQUIVALENT)


def _still_open(marked: Sequence[Candidate], names: Sequence[str], wish: Wish) -> list[str]:
    """Return which forms are worth telling of, once no time is left to prove them.

    Where one is proven, those that may beat it, that lose less, or that compute what the original does.
    """
    by_name = {candidate.name: candidate for candidate in marked}
    proven = [candidate for candidate in marked[1:] if not candidate.refused and is_proven(candidate)]
    if not is_answered(marked, wish) or not proven:
        return list(names)
    least_loss = min(map(loss, proven))
    fastest = max(candidate.speed.low for candidate in proven if candidate.speed)
    return [
        name
        for name in names
        if (other := by_name[name]).is_rewrite
        or loss(other) < least_loss
        or (other.speed is not None and other.speed.high > fastest)
    ]


def latency_of(samples: Samples, budget_ms: float | None, max_miss_ratio: float = MAX_MISS_RATIO) -> Latency:
    """Return the stage times and the verdict against a budget: as in `bench`, waiting counts, and what is lost misses.

    Args:
        samples: Of one candidate.
        budget_ms: What a frame may take; None: nothing is judged.
        max_miss_ratio: Share of frames that may take longer.
    """
    summary, rows = samples.summary(), samples.steady()
    served, lost = rows.served(), rows.lost
    result = None if budget_ms is None else judge_budget(rows.response_ns, budget_ms, max_miss_ratio, lost=lost)
    stages = {name: summary[name].stage_time for name in samples.stages}
    waited_ns = served.response_ns - served.frame_ns
    return Latency(
        frames=len(served),
        frame=summarize(served.response_ns).stage_time,
        stages={_WAITING: summarize(waited_ns).stage_time, **stages} if waited_ns.any() else stages,
        verdict=result.verdict.upper() if result else "",
        detail=result.told(" or lost" if lost.any() else "") if result else "",
    )


def promise_of(best: Candidate, more_s: float) -> str:
    """Return what looks fastest, and what more time would tell of it."""
    agrees = " and agrees" if best.agreement is not None else ""
    seconds = math.ceil(more_s)
    if best.speed and best.speed.low <= 1:
        return f"{best.name} may be faster{agrees} ({best.speed} so far); {seconds} s more would tell"
    speed = f"{best.speed.speedup:.2f}x as fast" if best.speed else "faster"
    return f"{best.name} looks {speed}{agrees}; {seconds} s more would prove it"
