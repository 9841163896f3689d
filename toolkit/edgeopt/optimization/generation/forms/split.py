"""The fastest form for prompts and the fastest for tokens as two graphs over one cache: one further candidate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.decoder import SHARING_OP
from edgeopt.executors.onnxruntime.image_rows import IMAGE_ROWS
from edgeopt.executors.onnxruntime.state_parts import STATE
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.files.outside_weights import read_whole
from edgeopt.graph.model import Model, load_model
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.optimization.generation.contest import Entrant, FormContest, no_time
from edgeopt.optimization.generation.workplace import Workplace
from edgeopt.runtime.bundles.models import in_bundle_together
from edgeopt.runtime.bundles.parts import Weights
from edgeopt.steps.convert.prefill_graph import write_two_graphs

PREFILL = "prefill.onnx"
"""The graph of prompts, beside the model."""
NO_SECOND = "no second graph"
_OF_RUNS = "w8a8"
"""Forms with a grid for all tokens of a run: an answer by them would depend on guesses and neighbours."""


def enter_split(contest: FormContest, place: Workplace, entrants: list[Entrant]) -> list[Note]:
    """Let the fastest form for prompts and the fastest for tokens in as one; return why not, where that is no use.

    Where one form is the fastest for both, the fastest for prompts of those whose accuracy is not decided yet is put
    beside it: the pair is judged as a whole, and its tokens are of a form that is KEPT.
    """
    tokens = fastest_for_tokens(contest, entrants)
    alone = _alone(entrants)
    prompts = contest.fastest(_kept(contest, alone), "TTFT")
    if tokens is None or prompts is None:
        return []
    if tokens is prompts:
        if not contest.has_time(entrants):
            return []
        prompts = contest.fastest(_in(alone), "TTFT")
    if prompts is None or tokens is prompts:
        return [Note(NoteKind.INFO, f"{tokens.name} is the fastest form for prompts and for tokens: {NO_SECOND}")]
    name = f"{prompts.name}-{tokens.name}"
    entrant = Entrant(
        name,
        f"prompts by {prompts.name}, tokens by {tokens.name}: two graphs, one cache",
        f"{prompts.precision}-{tokens.precision}",
        place.file_of(name),
        prompts_by=prompts.name,
        tokens_by=tokens.name,
    )

    def models() -> tuple[Model, Model]:
        prompts_file = place.file_of(entrant.prompts_by)
        tokens_file = place.file_of(entrant.tokens_by)
        return load_model(prompts_file, in_place=True), load_model(tokens_file, in_place=True)

    return enter_pair(contest, place, entrant, entrants, models)


def fastest_for_tokens(contest: FormContest, entrants: list[Entrant]) -> Entrant | None:
    """Return the fastest single form for the tokens of an answer; None: there is none."""
    alone = [other for other in _alone(entrants) if other.precision != _OF_RUNS]
    return contest.fastest(_kept(contest, alone), "TPOT")


def _alone(entrants: list[Entrant]) -> list[Entrant]:
    """Return those of one graph on ONNX Runtime, of which two graphs are put together."""
    return [entrant for entrant in entrants if not entrant.prompts_by and not entrant.engine]


def _in(entrants: list[Entrant]) -> list[Entrant]:
    """Return those that are timed and not refused."""
    return [entrant for entrant in entrants if entrant.turns and not entrant.out]


def _kept(contest: FormContest, entrants: list[Entrant]) -> list[Entrant]:
    """Return those that are KEPT by the windows so far, or all where none is: the choice prefers what is KEPT."""
    left = _in(entrants)
    kept = [entrant for entrant in left if contest.word(entrant) == Word.KEPT]
    return kept or left


def models_in_bundle(file: Path, weights: dict[str, PieceLayout]) -> list[tuple[Model, bytes, Weights | None]]:
    """Return the graph of tokens and that of prompts as the bundle stores them.

    Args:
        file: Of the graph of tokens.
        weights: By name, files with weights; theirs is put in.
    """
    models = [Model(read_whole(path, may_stay=True), path.stem) for path in (file, file.with_name(PREFILL))]
    stored = in_bundle_together(models, weights)
    return [(model, *kept) for model, kept in zip(models, stored, strict=True)]


def enter_pair(
    contest: FormContest,
    place: Workplace,
    entrant: Entrant,
    entrants: list[Entrant],
    make: Callable[[], tuple[Model, Model] | None],
    *,
    engine: str = "",
    proved: Callable[[Path, int], None] | None = None,
) -> list[Note]:
    """Write two graphs, and judge and time them as one entrant; return why not, where that cannot be.

    Args:
        contest: Which it enters.
        place: Where it is written.
        entrant: It.
        entrants: All; it is put in.
        make: Returns the form for prompts and the form for tokens; None: what they are made of is not there.
        engine: That computes prompts; empty: ONNX Runtime.
        proved: Raises where that engine does not open what was written; given the file, and threads.
    """
    if entrant.name in contest.tried:
        return []
    if not contest.has_time(entrants):
        return [no_time(entrant.name)]
    contest.tried.add(entrant.name)
    try:
        models = make()
        if models is None:
            return []
        if not all(model.op_counts.get(SHARING_OP) for model in models):
            return [Note(NoteKind.INFO, f"{entrant.name} is left out: two graphs share a cache only with {SHARING_OP}")]
        if any(spec.name == IMAGE_ROWS or STATE.fullmatch(spec.name) for spec in models[0].inputs):
            return [Note(NoteKind.INFO, f"{entrant.name} is left out: none is made for models that see or have states")]
        _write(place, entrant.name, *models, engine)
        del models  # the engine holds weights of its own
        if proved is not None:
            proved(entrant.file, contest.threads)
        return contest.admit(entrant, entrants)
    except EdgeoptError as error:
        return [Note(NoteKind.INFO, f"{entrant.name} is left out: {error.problem}", error.remedy)]


def _write(place: Workplace, name: str, prompts: Model, tokens: Model, engine: str) -> None:
    """Write both graphs into a folder of their own, with weights that both need once, recipe and tokenizer."""
    file = place.file_of(name)
    write_two_graphs(prompts, tokens, file, file.with_name(PREFILL))
    place.copy_beside(file.parent, prompts, prefill=PREFILL, engine=engine)
