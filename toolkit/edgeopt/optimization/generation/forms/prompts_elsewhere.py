"""Candidates that OpenVINO computes: prompts alone, before tokens by the fastest form on ONNX Runtime, or both.

Both are tried in bf16, which ONNX Runtime has no products in on x86, and in blocks of 8 bits. One text's tokens by such
blocks are faster on ONNX Runtime, those of several texts at once on OpenVINO (`benchmarks/results/served_rivals.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.onnxruntime.decoder import SHARING_OP
from edgeopt.executors.onnxruntime.image_rows import IMAGE_ROWS
from edgeopt.executors.onnxruntime.state_parts import STATE
from edgeopt.executors.openvino.decoder import OpenVinoDecoder
from edgeopt.executors.openvino.pages import PRECISION, options_on_openvino, why_not_on_openvino
from edgeopt.executors.openvino.prefill import OpenVinoPrefill
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.optimization.generation.contest import Entrant, FormContest, no_time
from edgeopt.optimization.generation.forms.kinds import EIGHT_BITS_BLOCK, FUSED
from edgeopt.optimization.generation.forms.split import PREFILL, enter_pair, fastest_for_tokens
from edgeopt.optimization.generation.workplace import Workplace
from edgeopt.steps.convert.bfloat16_weights import store_in_bfloat16
from edgeopt.steps.convert.kept_blocks import bits_of_blocks
from edgeopt.steps.convert.weight_only import make_weight_only

_MOST_INPUTS = 9
"""Inputs of an attention that OpenVINO reads: up to the tables of positions."""
_BLOCKS = "w8"
WHOLE = f"{PRECISION}+{OPENVINO}"
"""The form whose prompts and tokens OpenVINO computes."""


@dataclass(frozen=True, slots=True)
class FormElsewhere:
    """One way to compute prompts on OpenVINO, and tokens too."""

    name: str
    told: str
    scheme: str
    """Scheme in the words of targets, the arithmetic behind the `+`."""
    make_prompts: Callable[[Workplace], Model | None]
    """Returns the graph of prompts; None: what it is made of is not there."""
    make_whole: Callable[[Workplace], Model | None]
    """Returns the graph of prompts and tokens; None: it would be no other than the one that was given."""


def _fused(place: Workplace) -> Model:
    fused = place.file_of(FUSED.name)
    return load_model(fused if fused.is_file() else place.start.file, in_place=True)


def _in_bfloat16(place: Workplace) -> Model | None:
    model = _fused(place)
    if bits_of_blocks(model):  # matrices that came in blocks stay in them, and what corrects their offsets in floats
        return None
    made = store_in_bfloat16(model)
    return made.model if made.changes else None


def _whole_in_blocks(place: Workplace) -> Model | None:
    """Return blocks of 8 bits beside a table of floats: OpenVINO reads no table that is the head's blocks."""
    made = make_weight_only(_fused(place), 8, EIGHT_BITS_BLOCK, tables=False)
    return made.model if made.changes else None


def _in_blocks(place: Workplace) -> Model | None:
    file = place.file_of(_BLOCKS)
    return load_model(file, in_place=True) if file.is_file() else None


FORMS_ELSEWHERE = (
    FormElsewhere(WHOLE, f"{PRECISION} on OpenVINO, not quantized", PRECISION, _in_bfloat16, _in_bfloat16),
    FormElsewhere(
        f"{_BLOCKS}+{OPENVINO}",
        f"{_BLOCKS} on OpenVINO, in INT8",
        f"{_BLOCKS}+{PRECISION}",
        _in_blocks,
        _whole_in_blocks,
    ),
)


def scheme_of(prompts_by: str) -> str:
    """Return the scheme of a form of prompts that OpenVINO computes; empty: it is another engine's."""
    return next((form.scheme for form in FORMS_ELSEWHERE if form.name == prompts_by), "")


def enter_elsewhere(contest: FormContest, place: Workplace, entrants: list[Entrant]) -> list[Note]:
    """Let forms by OpenVINO in; return why not, where that is no use.

    They are prompts by it with tokens by the fastest form for them, and both by it.
    """
    tokens = fastest_for_tokens(contest, entrants)
    if tokens is None:
        return []
    if reason := why_not_on_openvino() or why_not_read(load_model(tokens.file, in_place=True)):
        return [Note(NoteKind.INFO, f"forms by OpenVINO are not tried: {reason}")]
    notes = list[Note]()
    for form in FORMS_ELSEWHERE:
        notes += _enter(contest, place, entrants, form, tokens)
    for form in FORMS_ELSEWHERE:
        notes += _enter_whole(contest, place, entrants, form)
    return notes


def _enter_whole(contest: FormContest, place: Workplace, entrants: list[Entrant], form: FormElsewhere) -> list[Note]:
    """Let in what computes prompts and tokens; return why not, where that cannot be."""
    file = place.file_of(form.name)
    if form.name in contest.tried:
        return []
    if not contest.has_time(entrants):
        return [no_time(form.name)]
    contest.tried.add(form.name)
    entrant = Entrant(form.name, f"prompts and tokens by {form.told}", form.scheme, file, engine=OPENVINO)
    try:
        model = form.make_whole(place)
        if model is None:
            return []
        if any(spec.name == IMAGE_ROWS or STATE.fullmatch(spec.name) for spec in model.inputs):
            return [Note(NoteKind.INFO, f"{form.name} is left out: none is made for models that see or have states")]
        save_model(model, file)
        place.copy_beside(file.parent, model, engine=OPENVINO)
        del model  # the engine holds weights of its own, up to twice as large
        OpenVinoDecoder(file, options_on_openvino(contest.threads)).close()  # else ONNX Runtime would be judged for it
        return contest.admit(entrant, entrants)
    except EdgeoptError as error:
        return [Note(NoteKind.INFO, f"{form.name} is left out: {error.problem}", "the other forms go on")]


def _enter(
    contest: FormContest,
    place: Workplace,
    entrants: list[Entrant],
    form: FormElsewhere,
    tokens: Entrant,
) -> list[Note]:
    name = f"{form.name}-{tokens.name}"
    entrant = Entrant(
        name,
        f"prompts by {form.told}, tokens by {tokens.name}: two graphs, one cache",
        f"{form.scheme.partition('+')[0]}-{tokens.precision}",
        place.file_of(name),
        prompts_by=form.name,
        tokens_by=tokens.name,
    )

    def models() -> tuple[Model, Model] | None:
        prompts = form.make_prompts(place)
        return None if prompts is None else (prompts, load_model(tokens.file, in_place=True))

    return enter_pair(contest, place, entrant, entrants, models, engine=OPENVINO, proved=_opens)


def _opens(file: Path, threads: int) -> None:
    """Raise where OpenVINO does not open a graph of prompts: ONNX Runtime would take over, and be judged for it."""
    try:
        OpenVinoPrefill(file.with_name(PREFILL), options_on_openvino(threads)).close()
    except EdgeoptError as error:
        raise UnsupportedError(error.problem, remedy="the other forms go on") from error


def why_not_read(model: Model) -> str:
    """Return what of a model's attention OpenVINO would leave out in silence; empty: nothing."""
    for node in Graph.from_model(model).nodes(SHARING_OP, domain="com.microsoft"):
        if attribute(node, "local_window_size", -1) > 0:
            return "it reads no window of attention"
        if attribute(node, "softcap", 0.0) or attribute(node, "smooth_softmax", 0):
            return "it reads no limited scores of attention"
        if any(value is not None and value.name for value in node.inputs[_MOST_INPUTS:]):
            return "it reads no further inputs of attention"
    return ""
