"""A recipe bound to a model's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.recipes.inputs.picture_inputs import (
    fixed_batch,
    has_axes_of_picture,
    layout_of,
    size_of,
    why_other_channels,
)
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Colour
from edgeopt.recipes.inputs.sound_input import sized_for
from edgeopt.recipes.inputs.text_input import bind_texts
from edgeopt.recipes.matching import Interface, possible_recipes, shape_matches, with_told_columns
from edgeopt.recipes.metadata import class_names_of, input_size_of, with_points
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS, why_unfit
from edgeopt.recipes.outputs.tensor_outputs import recurrent_notes, require_states, with_outputs
from edgeopt.recipes.recipe import READERS, Recipe, Scores
from edgeopt.recipes.texts.generation import GENERATION

ARRAYS_RECIPE = "tensors"
"""The shipped recipe of any model: arrays in, outputs as they are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe bound to a model, and why it was chosen."""

    recipe: Recipe
    reason: str
    notes: tuple[Note, ...] = ()
    is_given: bool = False
    """Whether the user named the recipe or laid it beside the model; else it was recognised."""
    rivals: tuple[Choice, ...] = ()
    """Others that fit as well: labels must tell."""


@dataclass(frozen=True, slots=True)
class ChosenRecipe:
    """A recipe chosen for a model, not bound to its tensors yet."""

    recipe: Recipe
    reason: str = ""
    notes: tuple[Note, ...] = ()
    is_given: bool = False


def bind_recipe(
    chosen: ChosenRecipe,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    taken: Shapes,
) -> Choice:
    """Return a recipe bound to a model's tensors, and what a user should know of it.

    Args:
        chosen: Any recipe, and why it was chosen.
        inputs: Of the model.
        outputs: Of the model.
        metadata: What the exporter wrote.
        taken: Shapes of the tensors that are fed, of inputs with free dimensions.

    Raises:
        UnsupportedError: If it does not fit, or a height or width is free and nothing fixes it.
    """
    recipe, notes = with_told_scores(with_told_columns(chosen.recipe, outputs), outputs)
    choice = _bound(recipe, chosen.reason, inputs, outputs, metadata, taken)
    notes = (*chosen.notes, *choice.notes, *notes, *notes_of_unread(choice.recipe, outputs))
    return replace(choice, notes=(*notes, *notes_of_guesses(choice.recipe)), is_given=chosen.is_given)


def _bound(
    recipe: Recipe,
    reason: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    taken: Shapes,
) -> Choice:
    if recipe.task == GENERATION:
        raise UnsupportedError(
            f"recipe {recipe.name!r} is of a language model, which writes token after token; this takes models that "
            "answer in one run",
            remedy="edgeopt run MODEL --prompt TEXT, or edgeopt bench MODEL --prompt-tokens 128",
        )
    if taken:
        recipe = replace(recipe, input=replace(recipe.input, shapes={**recipe.input.shapes, **taken}))
        text = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in taken.items())
        choice = _bound(recipe, reason, inputs, outputs, metadata, {})
        return replace(choice, notes=(*choice.notes, Note(NoteKind.INFO, f"shapes fixed as the tensors have: {text}")))
    if recipe.kind == "text":
        return _bind_texts(recipe, reason, inputs, outputs, metadata)
    require_states(recipe, inputs, outputs)
    recipe = with_points(recipe, metadata)
    if not recipe.decodes or recipe.kind == "sound":
        recipe = with_outputs(recipe, inputs, outputs)
    if recipe.kind == "sound":
        names, notes = _class_names(recipe, outputs, metadata)
        recipe = replace(hear(recipe, inputs), class_names=names)
        return Choice(recipe, reason, (*notes, *recurrent_notes(recipe)))
    if recipe.takes_arrays and not _takes_pictures(recipe, inputs, metadata):
        return Choice(replace(recipe, input=replace(recipe.input, size=())), reason, recurrent_notes(recipe))
    tensor = _input_tensor(recipe, inputs)
    if batch := fixed_batch(tensor):
        raise UnsupportedError(
            f"input {tensor} takes {batch} pictures at once, and one is fed at a time",
            remedy=f"export it with a batch of 1 or a free one, or feed arrays: --recipe {ARRAYS_RECIPE} and --calib "
            "FILE.npz",
        )
    if why := why_other_channels(recipe, tensor):
        raise UnsupportedError(
            f"recipe {recipe.name!r} cannot feed input {tensor}: {why}",
            remedy=f'write colour = "GREY" under [preprocess] in a recipe.toml where one channel is grey, or feed the '
            f"inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    size = size_of(tensor, recipe, metadata)
    if size is None:
        raise UnsupportedError(
            f"input {tensor} has a free height or width and recipe {recipe.name!r} does not fix it",
            remedy="write size = [height, width] under [input] in a recipe.toml and pass it with --recipe",
        )
    if why := why_unfit(recipe.with_size(*size), outputs):
        raise UnsupportedError(
            f"recipe {recipe.name!r} does not fit this model: {why}",
            remedy=_other_recipes(inputs, outputs, metadata) + "correct the recipe's [postprocess]",
        )
    layout = layout_of(tensor, recipe)
    if not isinstance(tensor.shape[layout.plane[0]], int) and recipe.input.size == () and input_size_of(metadata):
        reason += f"; size {size[0]}x{size[1]} from the metadata"
    names, notes = _class_names(recipe, outputs, metadata)
    if recipe.postprocess.decoder in READERS:
        recipe = replace(recipe, alphabet=recipe.alphabet.or_of(metadata))
    bound = replace(recipe.input, tensor=tensor.name, size=size, layout=layout, dtype=tensor.dtype)
    return Choice(replace(recipe, input=bound, class_names=names), reason, notes)


def _bind_texts(
    recipe: Recipe,
    reason: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
) -> Choice:
    """Return a recipe of texts bound to a model's tensors."""
    if recipe.task != "token_classification" and recipe.decodes and (why := why_unfit(recipe, outputs)):
        raise UnsupportedError(
            f"recipe {recipe.name!r} does not fit this model: {why}", remedy="correct the recipe's [postprocess]"
        )
    names = recipe.class_names or class_names_of(metadata)
    return Choice(replace(bind_texts(recipe, inputs), class_names=names), reason)


def _takes_pictures(recipe: Recipe, inputs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bool:
    """Whether the only input has the type and the shape of a picture."""
    channels = (1,) if recipe.preprocess.colour is Colour.GREY else (3,)
    if len(inputs) != 1 or inputs[0].dtype not in PICTURE_TYPES or size_of(inputs[0], recipe, metadata) is None:
        return False
    if fixed_batch(inputs[0]):
        return False
    result = inputs[0].shape[layout_of(inputs[0], recipe).channels]
    return recipe.input.tensor in ("", inputs[0].name) and (result in channels or not isinstance(result, int))


def _input_tensor(recipe: Recipe, inputs: Sequence[TensorSpec]) -> TensorSpec:
    wanted = recipe.input.tensor
    specs = [spec for spec in inputs if not wanted or spec.name == wanted]
    shown = ", ".join(map(str, inputs))
    if wanted and not specs:
        raise UnsupportedError(
            f"recipe {recipe.name!r} feeds the input {wanted!r}, and the model has inputs {shown}",
            remedy="name the model's own input as tensor under [input], or pass another recipe with --recipe",
        )
    if len(specs) != 1 or len(inputs) != 1:
        raise UnsupportedError(
            f"recipe {recipe.name!r} feeds one picture, the model has inputs {shown}",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    if not has_axes_of_picture(specs[0], recipe):
        raise UnsupportedError(
            f"input {specs[0]} is no picture of four dimensions",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    if specs[0].dtype not in PICTURE_TYPES:
        raise UnsupportedError(
            f"input {specs[0]} is no picture: its type is none of {', '.join(PICTURE_TYPES)}",
            remedy=f"feed the inputs as they are: --recipe {ARRAYS_RECIPE} and --calib FILE.npz",
        )
    return specs[0]


def _class_names(
    recipe: Recipe, outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    if names := class_names_of(metadata):
        return names, ()
    known: dict[str, int] = {}
    for match in recipe.match:
        for pattern, output in zip(match.outputs, outputs, strict=False):
            shape_matches([t if "classes" in t else "any" for t in pattern], output.shape, known)
    count = known.get("classes")
    if count is None or not recipe.class_names or count == len(recipe.class_names):
        return recipe.class_names, ()
    note = Note(
        NoteKind.WARNING,
        f"the {len(recipe.class_names)} class names of recipe {recipe.name!r} do not fit {count} classes; "
        "classes are numbered",
        "put labels.txt in a recipe of your own",
    )
    return (), (note,)


def _other_recipes(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> str:
    """Return the advice to pass a shipped recipe that fits, `tensors` among them."""
    names = [possible_recipe.name for possible_recipe in possible_recipes(Interface(inputs, outputs, metadata))]
    return f"pass --recipe with one of {', '.join([*names, ARRAYS_RECIPE])}; or "


# A recipe of sounds bound to a model: which input hears, which are states, which hold one number.

_RATE = frozenset({"sr", "rate", "sample_rate", "sampling_rate", "samplerate"})
"""Inputs of one number that are the rate."""


def hear(recipe: Recipe, inputs: Sequence[TensorSpec]) -> Recipe:
    """Return the recipe with the input that hears, the samples of a window, all shapes and constants.

    Raises:
        UnsupportedError: If inputs are left whose values nothing tells, or the window does not fit.
    """
    rates = {spec.name: float(recipe.audio.rate_hz) for spec in inputs if is_rate(spec)}
    constants = {**rates, **recipe.input.constants}
    known = {*constants, *recipe.input.states}
    left = [spec for spec in inputs if spec.name not in known]
    wanted = recipe.input.tensor
    hearing = [spec for spec in left if spec.name == wanted] if wanted else left
    others = ", ".join(str(spec) for spec in left if spec not in hearing[:1])
    if not hearing or others:
        text = f"it does not tell {others}" if hearing else "no input is left for it"
        raise UnsupportedError(
            f"recipe {recipe.name!r} feeds one sound; {text}",
            remedy="under [input]: tensor = the input that hears, states = { input = output } of what is fed back, "
            "constants = { input = number } of what is always the same",
        )
    audio, shape = sized_for(recipe.audio, hearing[0], recipe.name)
    shapes = {
        spec.name: tuple(size if isinstance(size, int) and size > 0 else 1 for size in spec.shape)
        for spec in inputs
        if spec.name in known and spec.shape
    }
    shapes |= {hearing[0].name: shape}
    taken = replace(
        recipe.input, tensor=hearing[0].name, size=(), constants=constants, shapes={**shapes, **recipe.input.shapes}
    )
    return replace(recipe, audio=audio, input=taken)


def is_rate(spec: TensorSpec) -> bool:
    """Return whether an input is one number, by its name the rate of the sound."""
    return spec.name.lower() in _RATE and all(size in (1, None) or isinstance(size, str) for size in spec.shape)


# Facts of the outputs that a recipe reads, from the graph: are scores probabilities, and which are not read.

_SUMMING = frozenset({"Gemm", "MatMul", "Conv", "Add", "GlobalAveragePool", "AveragePool", "QLinearConv"})
"""Ops that make sums of products: what leaves them is no probability."""
_WHOLE = ("Softmax", "QLinearSoftmax")
"""Ops whose results are probabilities that exclude one another."""
_FIRST_ALONE = frozenset({*CLASSIFIERS, *READERS, "argmax", "class_map", "heatmaps"})
"""Decoders that read the first output, whatever else there is; those of detectors say so."""


def with_told_scores(recipe: Recipe, outputs: Sequence[TensorSpec]) -> tuple[Recipe, tuple[Note, ...]]:
    """Return the recipe with scores as the graph ends, and a note where that changes it.

    Logits that are shown as probabilities, and probabilities that go through another softmax, are never meant.

    Args:
        recipe: Any.
        outputs: Of the model, in its order.
    """
    numbers, read = recipe.postprocess, _without_states(recipe, outputs)
    if not read or recipe.embedded:
        return recipe, ()
    if (head := head_of(numbers.decoder)) and head.scored:
        scores = head.scored(read)
        if numbers.scores is not Scores.USUAL or scores.op not in _SUMMING:
            return recipe, ()
        changed = replace(numbers, scores=Scores.LOGITS)
        text = f"{scores} ends in {scores.op}: its scores are read as logits"
    elif numbers.decoder == "probabilities" and read[0].op in _SUMMING:
        changed = replace(numbers, decoder="logits")
        text = f"{read[0]} ends in {read[0].op}: its scores are read as logits, and shown as probabilities"
    elif numbers.decoder == "logits" and read[0].op in _WHOLE:
        changed = replace(numbers, decoder="probabilities")
        text = f"{read[0]} ends in {read[0].op}: its scores are probabilities already"
    else:
        return recipe, ()
    return replace(recipe, postprocess=changed), (Note(NoteKind.INFO, text),)


def notes_of_unread(recipe: Recipe, outputs: Sequence[TensorSpec]) -> tuple[Note, ...]:
    """Return a warning of outputs that a recipe leaves unread; none where all are read."""
    own = _without_states(recipe, outputs) or [*outputs]
    decoder, first = recipe.postprocess.decoder, own[0]
    head = head_of(decoder)
    read = head.read(own) if head else own[:1] if decoder in _FIRST_ALONE else own
    others = [output for output in own if output not in read]
    if not others or recipe.embedded:
        return ()
    seen = f"output{'s' if len(read) > 1 else ''} {' and '.join(map(str, read))}"
    text = f"recipe {recipe.name!r} reads {seen} alone; not read: {', '.join(map(str, others))}"
    is_spare = all(output.shape == first.shape for output in others)  # as of a head that only training reads
    kind = NoteKind.INFO if is_spare else NoteKind.WARNING
    return (Note(kind, text, "where they belong to the answer, read all as they are: --recipe tensors"),)


def notes_of_guesses(recipe: Recipe) -> tuple[Note, ...]:
    """Return a warning of values of a recipe that nobody told; none where it names none."""
    if not recipe.guesses:
        return ()
    text = f"guesses in recipe {recipe.name!r}, which nobody checked: {', '.join(recipe.guesses)}"
    return (Note(NoteKind.WARNING, text, "correct them, then take each out of guesses in the recipe"),)


def _without_states(recipe: Recipe, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    states = set(recipe.input.states.values())
    return [output for output in outputs if output.name not in states]
