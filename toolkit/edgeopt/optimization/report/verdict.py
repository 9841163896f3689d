"""The verdict of `optimize`: what was chosen, how much faster it is, what it costs, where it lies, what comes next."""

from __future__ import annotations

import math
import shlex

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_NOISY
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.resources.trust import warning_of
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.choice.selection import is_proven
from edgeopt.optimization.report.result import NOT_THE_TARGET, FramesReport
from edgeopt.optimization.result import ModelReport
from edgeopt.report.document import CommandOutcome, JudgedCase, Value, VerdictLines
from edgeopt.system.text import format_bytes, format_score, typed_duration


def judge(report: ModelReport) -> VerdictLines:
    """Return what a reader of nothing else must know; its outcome is that of the exit code where there is a gate."""
    return VerdictLines(
        outcome_of(report), _sentence(report), tuple(_facts(report)), str(report.bundle), _next_command(report)
    )


def judgements_of(report: FramesReport) -> tuple[JudgedCase, ...]:
    """Return what was judged, each a test case where a format has such: the budget, and the accuracy."""
    judgements = list[JudgedCase]()
    if report.is_gate:
        judgements.append(JudgedCase.by_exit("budget", report.budget_code, report.verdict_line))
    if report.accuracy_asked and not report.is_as_given:
        verdict = "INCONCLUSIVE" if report.is_accuracy_open else "PASS"
        judgements.append(JudgedCase("accuracy", verdict, accuracy_words(report)))
    return tuple(judgements)


def outcome_of(report: FramesReport) -> CommandOutcome:
    """Return how the command ended: in the word of the exit code where there is a gate."""
    if not report.was_cut and (report.is_gate or report.is_accuracy_open):
        return CommandOutcome.by_exit(report.exit_code)
    is_passed = report.verdict_word == "PASS" and not report.was_cut
    return CommandOutcome.PASS if is_passed else CommandOutcome.DONE


def _sentence(report: ModelReport) -> str:
    best, first = report.best, report.candidates[0]
    if report.off_target:
        return f"nothing runs on {report.target} itself; {best.name} is what runs in its place"
    if best.name == BASELINE and report.unproven:
        return f"the original stays: {report.unproven}"
    if best.name == BASELINE and report.reduced and report.reduced.speed:
        return f"the original, with JPEG files decoded smaller, is {report.reduced.speed} as fast{kept(best)}"
    if best.name == BASELINE:
        return "the original stays: no candidate is proven faster and accurate enough"
    if best.speed is None and best.predicted and best.predicted.speed.is_faster:
        return f"{best.name} is predicted {best.predicted.speed} as fast as the original; it is not measured yet"
    if best.speed is None:
        return f"{best.name} is chosen for its accuracy; its speed is not measured yet"
    if not is_proven(best):
        return f"{best.name} is {best.size_bytes / first.size_bytes:.0%} of the original's size and not proven slower"
    total = report.reduced.total if report.reduced else None
    if total is not None:
        whole = f"{best.speed} with pictures decoded whole"
        return f"{best.name} is {total} as fast as the original on JPEG files ({whole}){kept(best)}"
    return f"{best.name} is {best.speed} as fast as the original{kept(best)}"


def kept(best: Candidate) -> str:
    """Return what is proven of the accuracy of what was chosen, in words that follow its speed."""
    if best.judgement is None:
        return ""
    said = {
        Word.KEPT: ", its accuracy KEPT",
        Word.AGREES: " and AGREES with it",
        Word.NOT_DECIDED: ", its accuracy NOT DECIDED",
    }
    return said.get(best.judgement.word, f", its accuracy {best.judgement.word}")


def _facts(report: ModelReport) -> list[Value]:
    best, first = report.best, report.candidates[0]
    size = f"{format_bytes(best.size_bytes)}, was {format_bytes(first.size_bytes)}"
    faster = _faster_unproven(report)
    values = [
        Value("speed", _speed(best)),
        *accuracy_of_choice(report),
        Value("as fast", _told_equal(report)),
        Value("faster", _told_faster(faster) if faster else ""),
        Value("to get it", _how_to_get(faster) if faster else ""),
        Value("to label", report.to_label if best.word != Word.KEPT else ""),
        budget_of_choice(report),
        Value("input", _smaller(best)),
        Value("decoding", _decoding(report)),
        Value("embedded", str(report.inside) if report.inside else ""),
        Value("size", size if best is not first else ""),
        Value(
            "wire",
            "" if best.wire_bytes is None else f"{format_bytes(best.wire_bytes)} in brotli, each time an app loads it",
        ),
        machine_of(report),
        Value("emitted", ", ".join(str(report.folder / name) for name in report.emitted), is_command=True),
        Value("report", str(report.folder / "report.html"), is_command=True),
    ]
    return [value for value in values if value.text]


def _speed(best: Candidate) -> str:
    """Return what proves the speed of the choice; empty where nothing does."""
    if best.speed is None:
        return ""
    rests = f"whole frames in {best.speed.processes} fresh processes"
    alone = f"; execution alone {best.execute}" if best.execute else ""
    where = rests if best.speed.processes > 1 else "whole frames in turns"
    return f"{best.speed.verdict}: {where}{alone}; confidence 95%"


def _told_equal(report: ModelReport) -> str:
    """Return why the fastest in the table is not the choice, where both are proven: they are equal in speed."""
    best = report.best
    if best.speed is None or best.judgement is None or not best.judgement.is_proven:
        return ""
    mine, risk = best.speed, best.judgement.risk
    rivals = [one for one in report.candidates if one is not best and is_proven(one) and one.judgement]
    equal = [
        (one.speed, one.judgement, one)
        for one in rivals
        if one.speed and one.judgement and one.judgement.is_proven and one.judgement.risk >= risk
        if round(mine.speedup, 2) < round(one.speed.speedup, 2) and one.speed.low <= mine.high  # as they are shown
    ]
    if not equal:
        return ""
    speed, judged, rival = max(equal, key=lambda each: each[0].speedup)
    sizes = format_bytes(best.size_bytes), format_bytes(rival.size_bytes)
    if judged.risk > risk:
        why = f"may lose more: {judged}"
    elif sizes[0] != sizes[1]:
        why = f"may lose as much, and has {sizes[1]}"
    else:
        why = "may lose as much, and does no better on these samples"
    return f"{rival.name}, {speed}, is not proven faster than {best.name}; it {why}"


def _faster_unproven(report: ModelReport) -> Candidate | None:
    """Return the fastest that is proven faster than the original, looks faster than the choice, and is not decided."""
    mine = report.best.speed.speedup if report.best.speed else 1.0
    not_decided = [
        candidate for candidate in report.candidates if candidate.word == Word.NOT_DECIDED and is_proven(candidate)
    ]
    faster = [
        candidate
        for candidate in not_decided
        if candidate is not report.best and candidate.speed and candidate.speed.speedup > mine
    ]
    return max(faster, key=lambda candidate: candidate.speed.speedup if candidate.speed else 0.0, default=None)


def _told_faster(candidate: Candidate) -> str:
    return f"{candidate.name} is proven {candidate.speed} as fast; its accuracy is NOT DECIDED: {candidate.judgement}"


def _how_to_get(candidate: Candidate) -> str:
    """Return what would let a candidate be chosen whose accuracy is not decided: samples, or a larger drop allowed."""
    assert candidate.judgement is not None
    ways = [candidate.judgement.remedy] if candidate.judgement.is_open else []
    if candidate.judgement.drop_most is not None and candidate.judgement.samples:
        ways.append(
            f"--max-drop {math.ceil(1000 * candidate.judgement.drop_most) / 1000:g} allows what is lost at most"
        )
    return "; or ".join(ways)


def _smaller(best: Candidate) -> str:
    """Return that the choice takes smaller pictures; empty where it does not."""
    size = "x".join(map(str, best.input_size))
    return f"{size}, smaller than the original's: small things are lost first; the bundle feeds it so" if size else ""


def _decoding(report: ModelReport) -> str:
    """Return what it gains to decode JPEG files smaller, and for which frames it gains nothing; empty: nothing."""
    if report.reduced is None:
        return ""
    gain = str(report.reduced).partition(": ")[2]
    arrays = "frames that come as arrays, such as a camera's, are resized as before and gain nothing"
    return f"JPEG files at a part of their size, as the bundle's recipe says: {gain}; {arrays}"


def budget_of_choice(report: FramesReport) -> Value:
    """Return what the frames prove; where nobody asked for the budget, nothing else says it."""
    if report.latency is None:
        predicted = report.best.predicted
        of_budget = f"of {report.budget_ms:.1f} ms, execution alone"
        known = f"; predicted {predicted.time} ms {of_budget}" if predicted else ""
        return Value("budget", f"not measured: {report.untimed}{known}")
    latency = report.latency
    detail = ", ".join(part for part in (latency.detail, report.timed_otherwise) if part)
    if report.budget_asked:
        return Value("budget", detail)
    word = {"PASS": "", "FAIL": "missed: "}.get(report.noise or latency.verdict, "not decided: ")
    return Value("budget", f"{word}{detail}", more="the target's own; --budget makes it a gate")


def machine_of(report: FramesReport) -> Value:
    """Return the warning of a machine that was not quiet; without a text where it was."""
    return Value("machine", warning_of(report.trust), more=report.trust.partition("; ")[2])


def accuracy_of_choice(report: FramesReport) -> tuple[Value, ...]:
    """Return what is proven of the accuracy of the choice, and what would decide it."""
    best = report.best
    return (
        Value("accuracy", accuracy_words(report) if not report.is_as_given else ""),
        Value("to decide", best.judgement.remedy if best.judgement else ""),
    )


def accuracy_words(report: FramesReport) -> str:
    """Return what is proven of what is deployed: on labels, or else of how far its answers are the original's."""
    first, score, judged = report.candidates[0], report.score, report.best.judgement
    if judged is None:
        return ""
    figures = f"{score.short} (was {format_score(first.score.value)}), " if score and first.score else ""
    figures = figures if judged.drop is not None and judged.samples else ""
    without = "; no labels judge it" if judged.drop is None and judged.samples else ""
    return f"{judged.word}: {figures}{judged}{without}{judged.confidence_words}"


def _next_command(report: ModelReport) -> str:
    """Return what follows: measuring where that is missing or undecided, else looking at the answers."""
    bundle = shlex.quote(str(report.bundle))
    if report.foreign_runtime:
        return ""
    address = report.environment.address
    bundle += f" --on {address}" if address else ""
    if report.best.latency is None:
        is_elsewhere = report.untimed.startswith(NOT_THE_TARGET) and not address
        return f"edgeopt bench {bundle}{' --on ssh://USER@HOST' if is_elsewhere else ''}"
    if report.budget_asked and report.exit_code:
        longer = " --seconds 60" if report.exit_code in (EXIT_INCONCLUSIVE, EXIT_NOISY) else " --profile"
        return f"edgeopt bench {bundle} --budget {typed_duration(report.budget_ms)}{longer}"
    return f"edgeopt bench {bundle}"
