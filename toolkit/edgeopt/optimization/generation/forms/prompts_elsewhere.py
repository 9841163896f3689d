"""Prompts by OpenVINO, tokens by the fastest form on ONNX Runtime: candidates of two graphs over one cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.onnxruntime.decoder import SHARING_OP
from edgeopt.executors.openvino.prefill import PRECISION, OpenVinoPrefill, options_of_prompts, why_no_prompts
from edgeopt.graph.graph import Graph, attribute
from edgeopt.graph.model import Model, load_model
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.forms.kinds import FUSED
from edgeopt.optimization.generation.forms.split import PREFILL, enter_pair, fastest_for_tokens
from edgeopt.optimization.generation.workplace import Workplace
from edgeopt.steps.convert.bfloat16_weights import store_in_bfloat16

_MOST_INPUTS = 9
"""Inputs of an attention that OpenVINO reads: up to the tables of positions."""
_BLOCKS = "w8"


@dataclass(frozen=True, slots=True)
class PromptForm:
    """One way to compute prompts on OpenVINO."""

    name: str
    told: str
    scheme: str
    """In the words of targets, the arithmetic behind the `+`."""
    make: Callable[[Workplace], Model | None]
    """Returns its graph; None: what it is made of is not there."""


def _in_bfloat16(place: Workplace) -> Model | None:
    fused = place.file_of(FUSED.name)
    made = store_in_bfloat16(load_model(fused if fused.is_file() else place.start.file))
    return made.model if made.changes else None  # matrices that came in blocks stay in them: that is no bf16


def _in_blocks(place: Workplace) -> Model | None:
    file = place.file_of(_BLOCKS)
    return load_model(file) if file.is_file() else None


PROMPT_FORMS = (
    PromptForm(f"{PRECISION}+{OPENVINO}", f"{PRECISION} on OpenVINO, not quantized", PRECISION, _in_bfloat16),
    PromptForm(f"{_BLOCKS}+{OPENVINO}", f"{_BLOCKS} on OpenVINO, in INT8", f"{_BLOCKS}+{PRECISION}", _in_blocks),
)


def scheme_of(prompts_by: str) -> str:
    """Return the scheme of a form of prompts that OpenVINO computes; empty: it is another engine's."""
    return next((form.scheme for form in PROMPT_FORMS if form.name == prompts_by), "")


def enter_prompts_elsewhere(contest: FormContest, place: Workplace, entrants: list[Entrant]) -> list[Note]:
    """Let prompts by OpenVINO and tokens by the fastest form for them in; return why not, where that is no use."""
    tokens = fastest_for_tokens(contest, entrants)
    if tokens is None:
        return []
    if reason := why_no_prompts() or why_not_read(load_model(tokens.file, in_place=True)):
        return [Note(NoteKind.INFO, f"prompts by OpenVINO are not tried: {reason}")]
    notes = list[Note]()
    for form in PROMPT_FORMS:
        notes += _enter(contest, place, entrants, form, tokens)
    return notes


def _enter(
    contest: FormContest,
    place: Workplace,
    entrants: list[Entrant],
    form: PromptForm,
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
        prompts = form.make(place)
        return None if prompts is None else (prompts, load_model(tokens.file))

    return enter_pair(contest, place, entrant, entrants, models, engine=OPENVINO, proved=_opens)


def _opens(file: Path, threads: int) -> None:
    """Raise where OpenVINO does not open a graph of prompts: ONNX Runtime would take over, and be judged for it."""
    try:
        OpenVinoPrefill(file.with_name(PREFILL), options_of_prompts(threads)).close()
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
