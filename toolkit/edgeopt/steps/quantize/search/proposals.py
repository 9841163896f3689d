"""Propose the variants that a search tries, one after another: each change is built on what leads so far.

The order follows what was learned on real models: islands first (nearly all of a collapse sits in one or two
tensors), then the form, then layers that are faster in float, then what changes only the answer: rounding,
ranges, equalization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.formats.matmul_integer import is_made_of_products
from edgeopt.steps.quantize.forms import WRITERS, Form
from edgeopt.steps.quantize.grids.ranges import LAST_METHODS, NEXT_METHODS, Method
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes
from edgeopt.steps.quantize.keep_float.layers import fastest_float, fastest_front
from edgeopt.steps.quantize.patterns import is_silu, key
from edgeopt.steps.quantize.repairs import Repair, all_repairs, model_repairs, weight_repairs
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.state import SearchState
from edgeopt.steps.quantize.search.variant import ALL_SUMS, Variant, first_variant

Proposal: TypeAlias = tuple[Variant, Variant | None]
"""A variant to try, and a measured variant of the same speed if it has the same operators."""
_STRICTER_DB = (13.0, 16.0, 20.0)
_BORDER_WEIGHTS = (4.0, 2.0, 1.0)
"""A border is one or two passes over the tensor where the engine joins them with others, four where it does not or
where caches are shared with other programs."""


def proposals(state: SearchState, forms: Sequence[Form], threads: int) -> Iterator[Proposal]:
    """Yield variants; before the next one is asked for, `state` must know what became of the last.

    Args:
        state: Of the search.
        forms: What the target's engine reads.
        threads: With which layers are timed.
    """
    order = form_order(state.sources.model, forms)
    for variant in _forms(state, order, threads):
        yield variant, None
    if not state.attempts:
        return
    for variant in _faster(state, first_variant(order[0])):
        yield variant, None
    for variant in _more_accurate(state):
        yield variant, state.best()
    for variant in _last(state, is_dynamic=Form.DYNAMIC in order[1:]):
        yield variant, None


def form_order(model: Model, forms: Sequence[Form]) -> list[Form]:
    """Return the forms of a target that a model is tried in, in their order; grids found as it runs come last.

    Args:
        model: The float model.
        forms: What the target's engine reads.
    """
    order = sorted({*forms} - {Form.DYNAMIC}, key=lambda form: (form is not Form.NHWC, -forms.index(form)))
    is_dynamic = Form.DYNAMIC in forms and is_made_of_products(open_graph(model))
    return [*order, Form.DYNAMIC] if is_dynamic else order


def untried_forms(model: Model, forms: Sequence[Form]) -> list[Note]:
    """Return a note where ONNX Runtime's own ops are tried, and its products on grids that are found are not named.

    Args:
        model: The float model.
        forms: What the profile names.
    """
    if Form.NHWC not in forms or Form.DYNAMIC in forms or not is_made_of_products(open_graph(model)):
        return []
    named = ", ".join(f'"{form}"' for form in (*forms, Form.DYNAMIC))
    detail = f"the form {Form.DYNAMIC} was not tried: the target does not name it"
    return [Note(NoteKind.INFO, detail, f"forms = [{named}] in [int8] tries it, which is for models of products")]


def _forms(state: SearchState, forms: Sequence[Form], threads: int) -> Iterator[Variant]:
    """Yield the first variant of each form, and the first form's with layers in float for speed."""
    first, *others = map(first_variant, forms)
    yield first
    is_timed = state.speed is not None and first.form is Form.NHWC and first in state.attempts
    if is_timed and state.has_time("layers in float for speed"):
        twin, model = state.attempts[first].outcome.model, state.sources.model
        times = state.times = state.time_layers(model, twin, state.sources.frames[0], threads)
        for weight in _BORDER_WEIGHTS:
            yield with_float(model, first, times, weight)
        yield with_front(model, first, times)
    yield from others


def _faster(state: SearchState, first: Variant) -> Iterator[Variant]:
    """Yield changes that may change the operators: repairs of the float model, and ways of writing between them."""
    for name, repair in model_repairs().items():
        if not repair.keeps_operators and not repair.follows_form:
            yield from _repaired(state, name, repair, first if repair.tries_first_form else None)
    yield from _ways(state, state.best())
    yield from _behind_the_form(state)


def _repaired(state: SearchState, name: str, repair: Repair, first: Variant | None = None) -> Iterator[Variant]:
    """Yield the best so far with a repair, in all its settings; the first setting also on another variant."""
    for i, setting in enumerate(repair.settings(state)):
        if setting:
            yield state.best().repaired(**{name: setting})
            if first is not None and i == 0:
                yield first.repaired(**{name: setting})


def _behind_the_form(state: SearchState) -> Iterator[Variant]:
    for name, repair in model_repairs().items():
        if repair.follows_form:
            yield from _repaired(state, name, repair)


def _ways(state: SearchState, start: Variant) -> Iterator[Variant]:
    graph = open_graph(state.sources.model)
    depthwise = frozenset(key(node) for node in graph.nodes("Conv") if attribute(node, "group", 1) > 1)
    if start.form is Form.INPUTS and depthwise:  # they gain little from integers, and pay for pairs of their own
        yield replace(start, front=start.front | depthwise)
    if start.form is Form.NHWC and any(is_silu(graph, node) for node in graph.nodes("Mul")):
        yield replace(start, options=replace(start.options, direct_up_to=ALL_SUMS))
        yield replace(start, options=replace(start.options, direct_up_to=0))
        yield replace(start, options=replace(start.options, integer_silu=True))


def _more_accurate(state: SearchState) -> Iterator[Variant]:
    """Yield changes that leave the operators as they are."""
    for name, weights in weight_repairs().items():
        yield from _repaired(state, name, weights)
    for method in NEXT_METHODS:
        yield from _with_ranges(state.best(), method)
    for name, repair in model_repairs().items():
        if repair.keeps_operators:
            yield from _repaired(state, name, repair)


def _last(state: SearchState, *, is_dynamic: bool) -> Iterator[Variant]:
    """Yield what is left: repairs behind the form, grids for each picture, more float where the best does not agree."""
    yield from _behind_the_form(state)
    if is_dynamic:  # on ONNX Runtime slower than grids for all pictures, but labels may refuse those
        by_rule = {name: repair.by_rule(state) for name, repair in all_repairs().items()}
        settings = {name: state.setting(name) or setting for name, setting in by_rule.items() if setting}
        yield first_variant(Form.DYNAMIC).repaired(**settings)
    if not state.agrees:
        yield from _more_float(state)


def _more_float(state: SearchState) -> Iterator[Variant]:
    """Yield the most sensitive tensors in float, then all that score badly."""
    state.learn_sensitivities()
    order = [*state.sensitivities_db]
    for count in (2, 4, 8) if order else ():
        if not state.agrees:
            yield replace(state.best(), kept=frozenset(order[:count]))
    for least_db in _STRICTER_DB:
        if not state.agrees:
            yield replace(state.best(), least_db=least_db)
    for method in LAST_METHODS:
        if not state.agrees:
            yield from _with_ranges(state.best(), method)


def _with_ranges(variant: Variant, method: Method) -> Iterator[Variant]:
    """Yield the variant with ranges chosen by another method, where its form stores grids."""
    if WRITERS[variant.form].stores_grids:
        yield replace(variant, method=method)


def with_front(model: Model, variant: Variant, times: LayerTimes) -> Variant:
    """Return the variant with the layers at the entrance in float that are faster so."""
    graph = open_graph(model)
    return replace(variant, front=_beyond_noise(times, lambda layer_times: fastest_front(graph, layer_times.layers)[0]))


def with_float(model: Model, variant: Variant, times: LayerTimes, weight: float = 1.0) -> Variant:
    """Return the variant with all layers in float that are faster so, wherever they are.

    Args:
        model: The float model.
        variant: What else holds.
        times: Of its layers.
        weight: How much more than one pass over a tensor a border costs.
    """
    graph = open_graph(model)

    def fastest(layer_times: LayerTimes) -> set[Node]:
        border = replace(
            layer_times.border,
            call_ns=layer_times.border.call_ns * weight,
            element_ns=layer_times.border.element_ns * weight,
        )
        return fastest_float(graph, layer_times.layers, border)[0]

    return replace(variant, front=_beyond_noise(times, fastest))


def _beyond_noise(times: LayerTimes, fastest: Callable[[LayerTimes], set[Node]]) -> frozenset[str]:
    """Return the keys of the layers that are faster in float in every round, and not by noise in some."""
    chosen = [frozenset(key(node) for node in fastest(layer_times)) for layer_times in times.rounds or (times,)]
    return frozenset.intersection(*chosen)
