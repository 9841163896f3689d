"""Which of a bundle's models runs here: the first that opens and whose numbers are right.

Of a bundle for several targets the first models of all targets come first, as this machine ranks them, then what each
of them falls back to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors._prompt_graph import OPENVINO, PromptGraph, TokenGraph, open_prompt_graph, open_token_graph
from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.executors.onnxruntime.flash_attention import flash_attention
from edgeopt.executors.openvino.pages import why_not_on_openvino
from edgeopt.graph.files.in_place import mapped
from edgeopt.graph.tensors import Sample, TensorSpec
from edgeopt.recipes.outputs.tensor_outputs import require_bound
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.runtime.bundle import Bundle, require_whole
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.runtime.decoding.binding import bind_language_model, tokens_of
from edgeopt.runtime.decoding.language_model import LanguageModel, Origin
from edgeopt.runtime.decoding.memory import held_by_openvino, require_memory
from edgeopt.runtime.decoding.no_frames import NoFrames
from edgeopt.runtime.decoding.selftest import check_logits
from edgeopt.runtime.opening import Opening, opening_of
from edgeopt.runtime.selftest import StoredTest, check, read_stored
from edgeopt.system.machine.huge_pages import huge_pages
from edgeopt.system.processes.in_background import InBackground
from edgeopt.tasks import Task, make_task

if TYPE_CHECKING:
    from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder


@dataclass(frozen=True, slots=True)
class OpenedArtefact:
    """A bundle's artefact that runs."""

    bundle: Bundle
    """The artefact's bundle; of a bundle for several targets, that of the artefact's target."""
    artefact: Artefact
    opening: Opening
    """How it was opened."""
    session: Session
    task: Task
    """Bound to the session's tensors."""
    notes: tuple[Note, ...]
    """Why artefacts before it do not run, and what is not as it was measured."""
    samples: tuple[Sample, ...] = ()
    """The stored inputs of the bundle."""
    writer: LanguageModel | EncoderDecoder | None = None
    """Writer of a language model, which answers prompts and no frames, or of a decoder with its encoder."""


def open_first(bundle: Bundle, threads: int = 0, *, strict: bool = False) -> OpenedArtefact:
    """Open a bundle's artefacts in their order, until one opens.

    Args:
        bundle: Its artefacts, the preferred one first; of one for several targets the target that is preferred here.
        threads: 0: as the artefact was measured, but no more than logical cores.
        strict: Whether the first one opens or none does; of one for several targets the first one of a target.

    Raises:
        InvalidFileError: If the stored inputs are damaged.
        EdgeoptError: If none opens; with `strict` what is wrong with the first.
    """
    notes: list[Note] = []
    bundle, hashing = replace(bundle, hashing=None), bundle.hashing
    if hashing and bundle.recipe.generation.encoder:
        hashing.take()
    tried, tests = [*_in_order(bundle, strict=strict)], dict[str, StoredTest | None]()
    for each, artefact in tried:
        name = artefact.file if each.standing is None else f"{artefact.file} ({each.label})"
        test = each.selftest.file if each.selftest else ""
        if test not in tests:
            tests[test] = read_stored(each)
        try:
            opened = _open(each, artefact, tests[test], threads, hashing)
        except EdgeoptError as error:
            if bundle.recipe.task == GENERATION and len(tried) == 1:
                raise  # with its own remedy: there is nothing to fall back to
            if strict and artefact is tried[-1][1]:
                problem = f"{name} cannot be used, and strict forbids the others: {error.problem}"
                raise UnavailableError(problem, remedy=error.remedy) from error
            notes.append(Note(NoteKind.WARNING, f"{name} not used: {error.problem}", error.remedy))
            continue
        picked = bundle.led_by(each)
        # two artefacts may be one file in two arithmetics, which fail for one reason
        return replace(opened, bundle=picked, notes=(*dict.fromkeys(notes), *picked.notes_on(artefact), *opened.notes))
    reasons = [note.detail for note in notes]
    reasons += [
        f"{each.label}: {each.standing.reason}" for each in _targets(bundle) if each.standing and not each.leads
    ]
    raise EdgeoptError(f"no model of {bundle.folder} opens here: {'; '.join(reasons)}", remedy="run edgeopt doctor")


def _targets(bundle: Bundle) -> tuple[Bundle, ...]:
    return (bundle,) if bundle.is_asked else (bundle, *bundle.others)


def _in_order(bundle: Bundle, *, strict: bool) -> Iterator[tuple[Bundle, Artefact]]:
    """Yield what is tried, one model opened in one way once; with `strict` nothing that is fallen back to."""
    targets = _targets(bundle)
    first = [(each, each.artefacts[0]) for each in targets if each.leads]
    others = [] if strict else [(each, artefact) for each in targets for artefact in each.artefacts[1:]]
    known = list[tuple[object, ...]]()
    for each, artefact in (*first, *others):
        way = artefact.sha256, artefact.executor, artefact.providers, artefact.options, artefact.precision, each.recipe
        if bundle.others and way in known:
            continue
        known.append(way)
        yield each, artefact


def open_artefact(bundle: Bundle, artefact: Artefact, threads: int = 0) -> OpenedArtefact:
    """Open one artefact of a bundle as it was measured, and test its numbers on the stored inputs.

    Args:
        bundle: It is of.
        artefact: Any of its models.
        threads: 0: as it was measured, but no more than logical cores.

    Raises:
        InvalidFileError: If its file, or the test, is damaged.
        UnavailableError: If its numbers are wrong on this device.
        EdgeoptError: If it does not open.
    """
    require_whole(bundle, artefact)
    return _open(bundle, artefact, read_stored(bundle), threads)


def _open(
    bundle: Bundle,
    artefact: Artefact,
    stored: StoredTest | None,
    threads: int,
    hashing: InBackground[None] | None = None,
) -> OpenedArtefact:
    opening = opening_of(artefact)
    opening = opening.with_threads(threads) if threads else opening
    if bundle.recipe.generation.encoder:
        from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder  # with what speech needs

        pair = open_encoder_decoder(bundle, opening.options.threads)
        notes = (*pair.files.notes, *_fewer_cores(artefact, threads))
        return OpenedArtefact(bundle, artefact, opening, pair.session, cast("Task", NoFrames()), notes, (), pair)
    if bundle.recipe.task == GENERATION:
        return _open_writer(bundle, artefact, opening, _fewer_cores(artefact, threads), stored, hashing)
    session = opening.open(bundle.path_of(artefact))
    try:
        require_bound(bundle.recipe, session.inputs, session.outputs)
        task = make_task(bundle.recipe, session.inputs, session.outputs, evaluating=False)
        notes = _tested(bundle, artefact, session, task, stored) if stored else ()
    except BaseException:
        session.close()
        raise
    notes = (*notes, *_fewer_cores(artefact, threads))
    return OpenedArtefact(bundle, artefact, opening, session, task, notes, stored.samples if stored else ())


def _open_writer(
    bundle: Bundle,
    artefact: Artefact,
    opening: Opening,
    notes: tuple[Note, ...],
    stored: StoredTest | None,
    hashing: InBackground[None] | None,
) -> OpenedArtefact:
    """Open a language model: weights are hashed and the tokenizer is read while the engine makes its sessions."""
    recipe = bundle.recipe
    beside = _parts_of(bundle, recipe.generation.prefill)
    size = _size_of(artefact, *beside)
    require_memory(_bytes_of_writer(bundle, artefact), _token_bytes(artefact), recipe)
    threads, digest = opening.options.threads, "-".join(graph.sha256 for graph in (artefact, *beside))
    origin = Origin(bundle.path_of(artefact), size, threads, artefact.precision, digest, notes)
    tokens = InBackground(lambda: tokens_of(recipe))
    with ExitStack() as undone:
        prefill = None
        try:
            with huge_pages(size, bundle.folder), flash_attention(recipe.generation.flash_attention):
                session, more = _open_tokens(bundle.path_of(artefact), opening)
                undone.callback(session.close)
                for graph in beside:
                    prefill, of_prompts = _open_prompts(bundle.path_of(graph), graph, opening, threads)
                    more = (*more, *of_prompts)
                    undone.callback(prefill.close)
        finally:
            if hashing:
                hashing.take()  # before anything runs; what the engine says of a damaged file explains nothing
        origin = replace(origin, notes=(*origin.notes, *more))
        writer = bind_language_model(session, recipe, origin, prefill, tokens.take)
        undone.callback(writer.close)
        told = check_logits(stored, artefact, writer) if stored else ()
        undone.pop_all()
    writer.origin = replace(writer.origin, notes=(*writer.origin.notes, *told))
    notes = writer.origin.notes
    frames = session, cast("Task", NoFrames())
    return OpenedArtefact(bundle, artefact, opening, *frames, notes, (), writer)


def _open_tokens(file: Path, how: Opening) -> tuple[TokenGraph, tuple[Note, ...]]:
    """Open a decoder as it was measured; where OpenVINO is not here, on ONNX Runtime."""
    if how.executor != OPENVINO:
        return how.open(mapped(file)), ()
    here = Opening("onnxruntime", SessionOptions(threads=how.options.threads))
    return open_token_graph(file, OPENVINO, how.options.threads, lambda: here.open(mapped(file)), how.options)


def _open_prompts(file: Path, graph: Artefact, tokens: Opening, threads: int) -> tuple[PromptGraph, tuple[Note, ...]]:
    """Open a graph of prompts as it was measured; where its engine is not here, as that of tokens is opened."""
    how = opening_of(graph).with_threads(threads)
    on_tokens_engine = how if how.executor == tokens.executor else tokens
    return open_prompt_graph(file, graph.executor, threads, lambda: on_tokens_engine.open(mapped(file)), how.options)


def least_bytes(bundle: Bundle, tokens: int) -> int:
    """Return the memory that a bundle's first artefact takes at least: its weights, and a cache of so many tokens."""
    artefact = bundle.artefacts[0]
    return _bytes_of_writer(bundle, artefact) + tokens * _token_bytes(artefact)


def _bytes_of_writer(bundle: Bundle, artefact: Artefact) -> int:
    """Return the memory of an artefact with the graphs that run beside it, and what OpenVINO holds of those it runs."""
    prompts, encoder = bundle.recipe.generation.prefill, bundle.recipe.image.encoder
    graphs = (artefact, *_parts_of(bundle, prompts), *_parts_of(bundle, encoder))
    is_writer = bundle.recipe.task == GENERATION
    elsewhere = [graph for graph in graphs if is_writer and graph.executor == OPENVINO]
    held = (held_by_openvino(bundle.path_of(graph), is_alone=graph is artefact) for graph in elsewhere)
    return _size_of(*graphs) + sum(held)


def _parts_of(bundle: Bundle, file: str) -> tuple[Artefact, ...]:
    return tuple(part for part in bundle.parts if part.file == file)


def _size_of(*artefacts: Artefact) -> int:
    """Return the size of graphs, with weights that several of them share once."""
    weights = {artefact.weights.file: artefact.weights.size_bytes for artefact in artefacts if artefact.weights}
    return sum(artefact.size_bytes for artefact in artefacts) + sum(weights.values())


def _token_bytes(artefact: Artefact) -> int:
    """Return the memory of one token in the cache; 0 where the manifest's ports do not tell it."""
    inputs, outputs = (
        [
            TensorSpec(port.name, port.dtype, tuple("free" if size is None else size for size in port.shape))
            for port in ports
        ]
        for ports in (artefact.inputs, artefact.outputs)
    )
    try:
        in_floats = sum(part.token_bytes for part in cache_parts(inputs, outputs))
        is_elsewhere = artefact.executor == OPENVINO and not why_not_on_openvino()
        return in_floats // 2 if is_elsewhere else in_floats  # its pages are in bf16
    except UnsupportedError:
        return 0  # it is told once the model is open


def _tested(bundle: Bundle, artefact: Artefact, session: Session, task: Task, stored: StoredTest) -> tuple[Note, ...]:
    """Compare numbers as frames will be run, and free the memory of that."""
    beside = session.beside(reuse=not task.holds_outputs) or session
    try:
        return check(stored, bundle, artefact, beside, task)
    finally:
        if beside is not session:
            beside.close()


def _fewer_cores(artefact: Artefact, asked: int) -> tuple[Note, ...]:
    used = opening_of(artefact).options.threads
    if asked or used >= artefact.threads:
        return ()
    detail = f"{artefact.file} was measured on {artefact.threads} threads, this machine runs {used}: {used} are used"
    return (Note(NoteKind.INFO, detail),)
