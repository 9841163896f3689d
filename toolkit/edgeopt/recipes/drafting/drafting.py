"""A recipe drafted from what a model tells of itself; what it does not tell is asked, or guessed and marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ARRAYS_RECIPE, Choice, bind_recipe
from edgeopt.recipes.drafting.drafted import Draft, Facts
from edgeopt.recipes.drafting.questions import (
    NORMS,
    Ask,
    RecipeQuestion,
    about_alphabet,
    about_colour,
    about_dimension,
    about_labels,
    about_recipe,
    about_resize,
    about_size,
    about_values,
)
from edgeopt.recipes.drafting.readings import (
    LINE_SIZE,
    are_features,
    class_count,
    is_surely_text,
    map_readings,
    scores_of_step,
    text_reading,
)
from edgeopt.recipes.drafting.rows import row_kind
from edgeopt.recipes.drafting.sound_drafting import sound_draft
from edgeopt.recipes.drafting.sound_reading import sound_recipe
from edgeopt.recipes.drafting.state_drafting import draft_states
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN, TOKENIZER, takes_tokens, text_recipe
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.inputs.picture_inputs import are_bands, fixed_batch, may_be_picture, picture_layout, plane_of
from edgeopt.recipes.inputs.preprocess import Colour, Input, Layout, Preprocess, Resize
from edgeopt.recipes.matching import recognised, shipped_recipes, unlikeness
from edgeopt.recipes.metadata import (
    class_names_of,
    input_size_of,
    is_ultralytics,
    named_task,
    other_task,
    strides_of,
    with_points,
)
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS, SPREADING, count_classes, why_unfit
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.recipes.recognise import choose_recipe, configured
from edgeopt.recipes.scoring.keypoints import Keypoints
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.system.text import plural

_CLASSIFIER = "imagenet"
"""The shipped recipe whose numbers a classifier of unknown making gets."""
_PROBABLE = ("Softmax", "QLinearSoftmax", "Sigmoid", "HardSigmoid", "QLinearSigmoid")
"""Ops after which scores are probabilities; of Sigmoid each of its own, as of tags."""
_BIASING = frozenset({"Add", "Div", "Mul", "Sub"})
"""Ops on the input itself, with which a graph normalises its pictures."""
_LEAST_CROPPED = 100
"""Pixels of a classifier's picture; smaller ones are trained on as they are."""
_SIDE_OF_CLASSES, _SIDE = 224, 640
"""Pixels of a picture whose size nobody told: of a classifier, of any other model."""


def draft_recipe(facts: Facts, asked: str | None, ask: Ask) -> Draft:
    """Return a recipe for a model, bound to its tensors.

    Args:
        facts: Of the model.
        asked: The recipe to begin with, by shipped name or path; None: the one beside the model, or what
            the model tells.
        ask: Answers what the model does not tell.

    Raises:
        EdgeoptError: If the recipe that is asked for, or what lies beside the model, does not fit.
    """
    if asked is not None or (facts.path.parent / "recipe.toml").is_file():
        choice = choose_recipe(asked, facts.path, facts.inputs, facts.outputs, facts.metadata)
        return _of_given(choice, facts)
    by_files = configured(facts.path, facts.inputs, facts.outputs)
    if by_files and (by_files.recipe.task != ARRAYS_RECIPE or not recognised(facts.interface)[0]):
        return _of_given(bind_recipe(by_files, facts.inputs, facts.outputs, facts.metadata, {}), facts)
    if found := text_recipe(facts.path.parent, None, facts.inputs, facts.outputs):
        recipe, comments = found
        recipe = replace(recipe, name=facts.name, source=facts.path.name)
        bound = facts.bound(recipe)
        return Draft(replace(recipe, class_names=bound.class_names), comments)
    if heard := sound_recipe(facts.inputs, facts.outputs):
        recipe, comments = heard
        recipe = replace(recipe, name=facts.name, source=facts.path.name)
        return Draft(facts.bound(recipe), comments)
    if drafted := sound_draft(facts, ask):
        return drafted
    fitting, _ = recognised(facts.interface)
    if len(fitting) == 1 and len(facts.inputs[0].shape) == 3:  # a picture without a batch is seen by its recipe alone
        return _of_given(choose_recipe(None, None, facts.inputs, facts.outputs, facts.metadata), facts)
    return _Drafting(facts, ask).draft()


def _of_given(choice: Choice, facts: Facts) -> Draft:
    recipe = choice.recipe
    comments = {"task": f"recipe {recipe.name}: {choice.reason}", **_comments_of_input(recipe, facts)}
    return Draft(recipe, comments)


def _comments_of_input(recipe: Recipe, facts: Facts) -> dict[str, str]:
    if not recipe.input.size:
        return {}
    spec = next(input_ for input_ in facts.inputs if input_.name == recipe.input.tensor)
    comments = {"input.tensor": "from the model", "input.layout": f"from the model: {spec}"}
    free = not all(isinstance(size, int) for size in plane_of(spec.shape, recipe.input.layout))
    comments["input.size"] = "from the recipe; the model takes any" if free else "from the model: height, width"
    return comments


_GREY_OR_BANDS = "a grey picture, or frames of a sound's bands, which [audio] makes"


class _Drafting:
    """One draft on its way."""

    def __init__(self, facts: Facts, ask: Ask) -> None:
        self._facts, self._ask = facts, ask
        self._comments: dict[str, str] = {}
        self._inputs = facts.inputs
        picture = facts.inputs[0] if len(facts.inputs) == 1 and may_be_picture(facts.inputs[0]) else None
        self._hears = picture is not None and are_bands(picture, facts.outputs)
        picture = None if self._hears else picture
        self._layout = picture_layout(picture) if picture else Layout.NCHW
        self._is_grey = picture is not None and picture.shape[1 if self._layout is Layout.NCHW else 3] == 1
        self._size: tuple[int, int] | None = None
        if picture:
            self._size = self._size_of(picture)
            self._inputs = (replace(picture, shape=self._shape(1 if self._is_grey else 3)),)

    def draft(self) -> Draft:
        """Return it."""
        recipe = self._kind()
        recipe = replace(recipe, preprocess=self._preprocess(recipe), input=self._input())
        recipe = self._facts.bound(recipe)
        if recipe.alphabet.characters and Alphabet().or_of(self._facts.metadata).characters:
            self._comments["alphabet.file"] = "from the metadata"
        if (
            recipe.keypoints.count
            and with_points(replace(recipe, keypoints=Keypoints()), self._facts.metadata) == recipe
        ):
            self._comments |= {"keypoints.count": "from the metadata", "keypoints.values": "from the metadata"}
        recipe = self._named(self._labelled(recipe))
        return Draft(replace(recipe, match=(), model="", folder=Path()), self._comments)

    def _tell(self, key: str, question: RecipeQuestion, why: str) -> Any:
        """Return the answer to a question, and note at its key that it was told, or that nobody knew."""
        answer = self._ask(question)
        self._comments[key] = f"{NOT_KNOWN}{why}" if answer is None else "as answered"
        return question.default if answer is None else answer

    def _is_guess(self, key: str) -> bool:
        return self._comments.get(key, "").startswith(NOT_KNOWN)

    def _shape(self, channels: int) -> tuple[int | str | None, ...]:
        assert self._size
        height, width = self._size
        return (1, channels, height, width) if self._layout is Layout.NCHW else (1, height, width, channels)

    def _size_of(self, picture: TensorSpec) -> tuple[int, int]:
        height, width = plane_of(picture.shape, self._layout)
        self._comments["input.size"] = "from the model: height, width"
        if isinstance(height, int) and isinstance(width, int):
            return height, width
        if input_size := input_size_of(self._facts.metadata):
            self._comments["input.size"] = "from the metadata: height, width"
            return input_size
        usual = (_SIDE_OF_CLASSES if self._are_classes() else _SIDE,) * 2
        if scores_of_step((height, width), self._facts.outputs):
            usual = LINE_SIZE
        likely = tuple(
            value if isinstance(value, int) else side for value, side in zip((height, width), usual, strict=True)
        )
        question = about_size(picture.name, (likely[0], likely[1]))
        result = self._tell("input.size", question, "height, width; the model takes any")
        return result[0], result[1]

    def _are_classes(self) -> bool:
        recipe, (first, *others) = replace(find_recipe(_CLASSIFIER), match=()), self._facts.outputs
        is_counted = first.op in SPREADING or count_classes(recipe, [first]) > 0
        return is_counted and not others and not are_features(first) and not why_unfit(recipe, [first])

    def _kind(self) -> Recipe:
        """Return the shipped recipe of the model's kind, with what the graph and the metadata say of its outputs."""
        facts, arrays = self._facts, find_recipe(ARRAYS_RECIPE)
        outputs = ", ".join(map(str, facts.outputs))
        if self._size is None:
            text = f"; beside a {TOKENIZER} it would take texts" if takes_tokens(facts.inputs) else ""
            text = "bands of a sound, by their shape, and features of them" if self._hears else f"no picture{text}"
            if batch := max((fixed_batch(spec) for spec in facts.inputs), default=0):
                text = f"{batch} pictures at once, if it takes pictures: export it with a batch of 1 to feed them"
            self._comments["task"] = f"the model takes {text}"
            return arrays
        shape = (facts.inputs[0].shape[0], *self._shape(3)[1:])
        seen = (replace(self._inputs[0], shape=shape),)
        fitting, possible = recognised(replace(facts.interface, inputs=seen))
        if not fitting and (reader := self._reader()):
            return reader
        head = head_of(fitting[0].postprocess.decoder) if len(fitting) == 1 else None
        if head and (doubt := head.why_unlikely(fitting[0].postprocess, facts.outputs[0], facts.answers)):
            result = self._tell("task", about_recipe([arrays, *fitting]), f"{doubt}: {outputs}")
            return self._decoding(result) if result.decodes else result
        if len(fitting) == 1:
            self._comments["task"] = f"outputs as recipe {fitting[0].name} reads: {outputs}"
            return self._decoding(fitting[0])
        if self._are_classes() and not other_task(facts.metadata, shipped_recipes()):
            return self._row(outputs)
        if task := other_task(facts.metadata, shipped_recipes()):
            self._comments["task"] = f"the exporter says {named_task(task)}, which no recipe reads: outputs as they are"
            return arrays
        possible.sort(key=lambda recipe: unlikeness(recipe, facts.outputs, self._layout, facts.metadata))
        readings = [*(fitting or [*map_readings(self._size, self._layout, facts.outputs), *possible]), arrays]
        if len(facts.outputs) > 1 and readings[0].postprocess.decoder in CLASSIFIERS:  # it would leave heads unread
            readings = [arrays, *readings[:-1]]
        if len(readings) == 1:
            self._comments["task"] = f"no decoder reads these outputs: {outputs}"
            return arrays
        result = self._tell("task", about_recipe(readings), f"outputs are {outputs}")
        assert isinstance(result, Recipe)
        return self._decoding(result)

    def _row(self, outputs: str) -> Recipe:
        """Return the recipe of a classifier, or of tensors where the numbers are rather no scores."""
        facts, classifier, arrays = self._facts, find_recipe(_CLASSIFIER), find_recipe(ARRAYS_RECIPE)
        kind = row_kind(facts.outputs[0], facts.answers, has_names=bool(class_names_of(facts.metadata)))
        recipe = classifier if kind.are_classes else arrays
        if kind.is_sure:
            self._comments["task"] = f"{kind.why}: {outputs}"
        else:
            readings = [classifier, arrays] if kind.are_classes else [arrays, classifier]
            recipe = self._tell("task", about_recipe(readings), f"{kind.why}: {outputs}")
        return self._decoding(recipe) if recipe.decodes else recipe

    def _reader(self) -> Recipe | None:
        """Return the recipe of a recogniser of text, if the outputs are one's, or may be and its alphabet is known."""
        outputs, told = self._facts.outputs, Alphabet().or_of(self._facts.metadata)
        size = plane_of(self._facts.inputs[0].shape, self._layout)
        if not (count := scores_of_step(size, outputs)):
            return None
        alphabet, place = told, "from the metadata"
        if not told.of_scores(count):
            question = about_alphabet(count, is_sure=is_surely_text(size, outputs))
            answer = self._ask(question)
            place = "as answered" if answer else f"{NOT_KNOWN}put its {count - 2} or {count - 1} characters there"
            alphabet = answer or question.default
        if not alphabet.characters:
            return None
        self._comments["task"] = f"a score a character, step by step: {outputs[0]}"
        self._comments["alphabet.file"] = place
        if place.startswith(NOT_KNOWN):
            self._comments["alphabet.blank"] = f"{NOT_KNOWN}first or last"
        return text_reading(alphabet)

    def _decoding(self, recipe: Recipe) -> Recipe:
        """Return the recipe with decoder and strides as graph and metadata say."""
        post, last = recipe.postprocess, self._facts.outputs[0].op
        if post.decoder in CLASSIFIERS:
            decoder = "probabilities" if last in _PROBABLE else "logits"
            if is_ultralytics(self._facts.metadata):
                decoder = post.decoder
            self._comments["postprocess.decoder"] = f"the graph ends in {last or 'an unknown op'}"
            return replace(recipe, postprocess=replace(post, decoder=decoder))
        is_named = any(match.output_names for match in recipe.match)
        head = head_of(post.decoder)
        if head and head.numbers_classes and not (is_named and not self._is_guess("task")):
            text = "class 0 is the background" if post.background else "class 0 is the first"
            self._comments["postprocess.background"] = f"{NOT_KNOWN}{text}, as recipe {recipe.name} has it"
        if not post.strides:
            return recipe
        if strides := strides_of(self._facts.metadata):
            self._comments["postprocess.strides"] = "from the metadata"
            return recipe if post.anchors else replace(recipe, postprocess=replace(post, strides=strides))
        explained = "they explain the number of boxes" if self._counts_cells(recipe) else f"{NOT_KNOWN}as usual"
        self._comments["postprocess.strides"] = explained
        return recipe

    def _counts_cells(self, recipe: Recipe) -> bool:
        terms = {term for match in recipe.match for shape in match.outputs for term in shape}
        outputs, strides = self._facts.outputs, recipe.postprocess.strides
        counts = any("cells" in term or "height" in term for term in terms) or len(outputs) == 2 * len(strides)
        return counts and all(output.is_static for output in outputs)

    def _input(self) -> Input:
        """Return sizes of what the model leaves free, and states."""
        if self._size is None:
            states, comments = draft_states(self._facts.inputs, self._facts.outputs, self._ask)
            self._comments |= comments
            return Input(shapes=self._shapes(), states=states)
        spec = self._facts.inputs[0]
        self._comments["input.tensor"] = "from the model"
        self._comments["input.layout"] = f"from the model: {spec}"
        return Input(size=self._size, layout=self._layout)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return whole shapes of inputs with free dimensions: axis 0 is a batch of 1, others are asked."""
        known: dict[str, int] = {}
        shapes = {}
        for one in (one for one in self._facts.inputs if not one.is_static):
            sizes = []
            for axis, size in enumerate(one.shape):
                name = size if isinstance(size, str) else f"{axis} of {one.name}"
                if isinstance(size, int):
                    sizes.append(size)
                elif axis == 0:
                    sizes.append(known.setdefault(name, 1))
                else:
                    sizes.append(known[name] if name in known else known.setdefault(name, self._dimension(name, one)))
            shapes[one.name] = tuple(sizes)
        return shapes

    def _dimension(self, name: str, tensor: TensorSpec) -> int:
        before = self._comments.get("input.shapes", "")
        size = self._tell("input.shapes", about_dimension(name, [tensor.name]), "sizes that the model leaves free")
        if before.startswith(NOT_KNOWN):
            self._comments["input.shapes"] = before
        return int(size)

    def _preprocess(self, recipe: Recipe) -> Preprocess:
        own, spec = recipe.preprocess, self._facts.inputs[0]
        if self._size is None:
            return own
        if recipe.name == _CLASSIFIER:
            own = _cropped(own, min(self._size))
        if is_ultralytics(self._facts.metadata) and recipe.decodes:
            for key in ("colour", "resize", "scale"):
                self._comments[f"preprocess.{key}"] = "as Ultralytics trains"
            return own
        if self._is_grey:
            own = replace(own, colour=Colour.GREY, mean=(0.0,), std=(1.0,), scale=1 / 255)
            is_picture = recipe.decodes or self._size[0] == self._size[1]
            why = "from the model: one channel" if is_picture else f"{NOT_KNOWN}one channel: {_GREY_OR_BANDS}"
            self._comments["preprocess.colour"] = why
        else:
            told_by = f"as recipe {recipe.name} has it" if recipe.match else "as usual"
            usual = f"channel order; {own.colour} {told_by}"
            colour = self._tell("preprocess.colour", about_colour(own.colour), usual)
            order = 1 if colour is own.colour else -1
            own = replace(own, colour=colour, mean=own.mean[::order], std=own.std[::order])
        question = about_resize(own.resize, own.anchor)
        resize, anchor = self._tell("preprocess.resize", question, "how a picture becomes the input's size")
        if (resize, anchor) != question.default:
            own = replace(own, resize=resize, anchor=anchor, crop_from=0)
        if resize is Resize.LETTERBOX:
            is_guess = self._is_guess("preprocess.resize")
            self._comments["preprocess.anchor"] = f"{NOT_KNOWN}top_left or centre" if is_guess else "as answered"
        if "float" not in spec.dtype:
            self._comments["preprocess.scale"] = f"the model takes {spec.dtype}"
            middle = 128.0 if spec.dtype == "int8" else 0.0
            return replace(own, scale=1.0, mean=(middle,), std=(1.0,))
        return self._valued(own, recipe.decodes)

    def _valued(self, own: Preprocess, decodes: bool) -> Preprocess:
        """Return scale, mean and std as told; those of the kind, or none where the graph normalises by itself."""
        order = -1 if own.colour is Colour.BGR else 1
        likely = (own.scale, own.mean[::order], own.std[::order])
        if not decodes:
            likely = (1 / 255, (0.0,), (1.0,))
        why = "pixels become (value * scale - mean) / std"
        if biasing := [op for op in self._facts.first_ops if op in _BIASING]:
            likely = next(iter(NORMS.values()))
            why = f"the graph begins with {biasing[0]} on its input, so it may normalise by itself"
        if set(likely[1]) == {0.0} and set(likely[2]) == {1.0}:
            likely = (likely[0], (0.0,), (1.0,))
        scale, mean, std = self._tell("preprocess.scale", about_values(likely), why)
        text = f"{NOT_KNOWN}as scale" if self._is_guess("preprocess.scale") else "as answered"
        self._comments |= {"preprocess.mean": text, "preprocess.std": text}
        if self._is_grey:
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        elif (mean, std) == ((0.0,), (1.0,)):
            mean, std = Preprocess().mean, Preprocess().std
        return replace(own, scale=scale, mean=tuple(mean[::order]), std=tuple(std[::order]))

    def _labelled(self, recipe: Recipe) -> Recipe:
        if recipe.task not in ("classification", "detection", "instances", "keypoints", "segmentation"):
            return recipe
        if class_names_of(self._facts.metadata):
            self._comments["labels"] = "from the metadata"
            return recipe
        if recipe.class_names:
            self._comments["labels"] = f"{NOT_KNOWN}the number of classes is that of recipe {recipe.name}"
            return recipe
        count = class_count if recipe.task == "segmentation" else count_classes
        names = self._tell("labels", about_labels(count(recipe, self._facts.outputs)), _LABELS)
        return replace(recipe, class_names=tuple(names))

    def _named(self, recipe: Recipe) -> Recipe:
        """Return the recipe with name, description, licence and source as the metadata tell."""
        metadata, name = self._facts.metadata, self._facts.name
        values = {key: metadata.get(key, "").strip() for key in ("description", "license", "docs", "author")}
        if not values["license"]:
            self._comments["license"] = "the model does not tell it"
        return replace(
            recipe,
            name=name,
            description=values["description"] or f"{name}, {plural(len(self._facts.outputs), 'output')}",
            license=values["license"] or "unknown",
            source=values["docs"] or values["author"] or self._facts.path.name,
        )


_LABELS = 'names of the classes; write labels = "labels.txt", one name a line'


def _cropped(own: Preprocess, side: int) -> Preprocess:
    """Return how a classifier's pictures are cut to this side: thumbnails are taken whole."""
    if side < _LEAST_CROPPED:
        return replace(own, resize=Resize.STRETCH, crop_from=0)
    return replace(own, crop_from=round(own.crop_from * side / _SIDE_OF_CLASSES))
