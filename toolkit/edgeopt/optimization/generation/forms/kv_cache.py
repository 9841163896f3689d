"""Forms whose cache holds keys and values in 8 bits: which forms are tried so, and how each enters the contest.

How such a cache is made: `steps/convert/kv_cache.py`. The engine allocates what the model's inputs say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.executors.onnxruntime.decoder import LAST
from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.generation.contest import Entrant, FormContest, no_time
from edgeopt.optimization.generation.forms.prompts_elsewhere import scheme_of
from edgeopt.optimization.generation.forms.split import enter_pair
from edgeopt.optimization.generation.workplace import Workplace
from edgeopt.steps.convert.kv_cache import make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits

_SUFFIX = "+cache8"
_SAVED = 3 / 4
"""Share of the memory of a cache in floats that one in 8 bits does not take."""
_NO_PICTURES = "no cache in 8 bits is tried: no text that calibrates or judges it holds the rows of a picture"


def enter_with_small_cache(contest: FormContest, place: Workplace, entrants: list[Entrant]) -> Iterator[Note]:
    """Let the leaders in again with their cache in 8 bits; yield why not, where that is not possible.

    Forms that memory does not hold go out, but only behind the choice of leaders: a small cache saves memory.
    """
    leaders = _leaders(contest, entrants)
    if contest.image_bytes:
        yield Note(NoteKind.INFO, _NO_PICTURES)
    contest.drop_large(entrants)
    for leader in leaders:
        enter = _enter_two_graphs if leader.prompts_by else _enter_one_graph
        yield from enter(leader, contest, place, entrants)
        contest.drop_large(entrants)


def leader_with_small_cache(contest: FormContest, entrants: Sequence[Entrant]) -> Entrant | None:
    """Return the fastest that memory holds, or would hold if its cache were in 8 bits; None: nobody.

    Of a model that sees nobody: no text that calibrates or judges such a cache holds the rows of a picture.
    """
    if contest.image_bytes:
        return None
    tokens = contest.clients * contest.answer_tokens
    saved = 0.0 if contest.most_bytes == math.inf else _SAVED * tokens * contest.original.token_bytes
    return contest.leader([entrant for entrant in entrants if entrant.needs_bytes - saved <= contest.most_bytes])


def _leaders(contest: FormContest, entrants: Sequence[Entrant]) -> list[Entrant]:
    """Return who is let in again with a small cache: the fastest, and of two graphs the fastest single one beside it.

    Two graphs may go out later for a single one, which then has a small cache to choose. Another engine than ONNX
    Runtime writes into no cache in integers.
    """
    here = [entrant for entrant in entrants if not (entrant.engine or scheme_of(entrant.prompts_by))]
    leaders = [leader_with_small_cache(contest, here)]
    if leaders[0] is not None and leaders[0].prompts_by:
        leaders.append(leader_with_small_cache(contest, [entrant for entrant in here if not entrant.prompts_by]))
    return [leader for leader in leaders if leader is not None]


def _told(leader: Entrant) -> str:
    return f"{leader.name}, keys and values of the cache in 8 bits"


def _enter_one_graph(leader: Entrant, contest: FormContest, place: Workplace, entrants: list[Entrant]) -> list[Note]:
    name = leader.name + _SUFFIX
    if not contest.has_time(entrants):
        return [no_time(name)]
    try:
        made = make_integer_cache(load_model(leader.file, in_place=True), place.cache_ranges())
    except InvalidFileError as error:
        return [Note(NoteKind.INFO, f"{name} is left out: {error.problem}", error.remedy)]
    if not made.changes:
        return [Note(NoteKind.INFO, f"{name} is left out: only GroupQueryAttention reads a cache in integers")]
    file = place.write(name, made.model)
    entrant = Entrant(name, _told(leader), leader.precision, file, cache_of=leader.name)
    try:
        return contest.admit(entrant, entrants)
    except EdgeoptError as error:
        return [Note(NoteKind.INFO, f"{name} is left out: {error.problem}", "ONNX Runtime 1.32 reads such a cache")]


def _enter_two_graphs(leader: Entrant, contest: FormContest, place: Workplace, entrants: list[Entrant]) -> list[Note]:
    name = leader.name + _SUFFIX
    entrant = Entrant(
        name,
        _told(leader),
        leader.precision,
        place.file_of(name),
        prompts_by=leader.prompts_by,
        tokens_by=leader.tokens_by,
        cache_of=leader.name,
    )

    def small(form: str) -> Model:
        made = make_integer_cache(load_model(place.file_of(form), in_place=True), place.cache_ranges()).model
        return keep_last_logits(made).model if LAST in made.optional_inputs else made

    return enter_pair(contest, place, entrant, entrants, lambda: (small(entrant.prompts_by), small(entrant.tokens_by)))
