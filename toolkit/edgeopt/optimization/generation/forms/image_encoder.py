"""The encoder of pictures of a language model that sees, in INT8.

One that takes tiles is searched for as models of frames are: its grids are calibrated on tiles of pictures, its rows
are compared with those of the float encoder. One that takes patches of any grid gets the forms of a decoder that need
no calibration. What either costs the whole model is told by the answers that the float model gives about pictures that
did not calibrate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter_ns

import cv2
import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.graph.model import load_model, save_model
from edgeopt.graph.tensors import Frame, Tensors
from edgeopt.measurement.generation.perplexity import Rise, TextScore, agreement_between, rise_between, score_rows
from edgeopt.measurement.statistics.ratio import LEAST_RANKED, Change, Ratio, ratio_of_rounds
from edgeopt.optimization.generation.forms.kinds import EIGHT_BITS_BLOCK
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.workplace import DecoderStart
from edgeopt.optimization.one_step.limits import SEARCH_S
from edgeopt.optimization.one_step.quantize import quantize
from edgeopt.recipes.inputs.pictures import pictures_of, read_picture
from edgeopt.recipes.inputs.preprocess import Input, Preprocess
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.inputs.seen.tiles import tiles_of
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.recipes.texts.seen_prompt import SeenPrompt
from edgeopt.runtime.decoding.binding import open_image_reader
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.image_reader import ImageReader
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.disk.files import write_beside
from edgeopt.system.processes.time_limit import LONGER, require_time
from edgeopt.system.text import plural

FOLDER = "image-encoder"
_QUESTION = "Describe this picture."
_HELD_BACK = 4
"""One picture in so many judges, and calibrates nothing."""
_LEAST = 8
"""Fewer pictures neither calibrate nor judge."""
_MOST_TILES, _MOST_JUDGING = 96, 16
_ROUNDS, _SECONDS = 40, 20.0
"""Rounds in turns with the float encoder, and the time after which fewer do."""
_SHARE = 0.15
"""Share of a time limit that the search may take."""


@dataclass(frozen=True, slots=True)
class ChosenEncoder:
    """A form of the encoder that takes the place of the float one."""

    file: Path
    precision: str
    speed: str = ""
    """How many times as fast it is, with its interval."""


def file_of_encoder(recipe: Recipe, chosen: ChosenEncoder | None) -> Path:
    """Return the file of the encoder that goes into the bundle."""
    return recipe.folder / recipe.image.encoder if chosen is None else chosen.file


def encoder_in_int8(start: DecoderStart) -> tuple[ChosenEncoder | None, Note]:
    """Return the INT8 form of the encoder that is faster and keeps the answers, or None; and what is to be told of it.

    Args:
        start: The model; `pictures` of its options names the folder of pictures, `max_rise` bounds the loss.

    Raises:
        EdgeoptError: If the folder holds too few pictures.
    """
    run, recipe, options = start.run, start.recipe, start.run.options
    listener, place, frames = run.shares.listener, start.left.folder / FOLDER, _frames(Path(options.pictures))
    if recipe.image.patch:
        return _of_any_grid(start, place, frames[:: -(-len(frames) // _MOST_JUDGING)])
    judging = frames[::_HELD_BACK][:_MOST_JUDGING]
    calibrating = [frame for i, frame in enumerate(frames) if i % _HELD_BACK]
    count = _write_tiles(calibrating, recipe.image, place / "tiles")
    recipe_file = place / "recipe.toml"
    write_beside(recipe_file, recipe_text(_recipe_of(recipe), name=f"{recipe.name}-image-encoder", labels=""))
    listener.say(f"look for an INT8 form of the encoder of pictures, calibrated on {plural(count, 'tile')}")
    try:
        made = quantize(
            recipe.folder / recipe.image.encoder,
            target=run.named,
            calib=place / "tiles",
            out=place / "image_encoder.onnx",
            recipe=str(recipe_file),
            threads=run.threads,
            time_limit_s=SEARCH_S if options.time_limit_s is None else _SHARE * options.time_limit_s,
            say=listener.say,
        )
    except UnsupportedError as error:
        return None, Note(NoteKind.INFO, f"the encoder of pictures stays in float: {error.problem}")
    if made.chosen is None or made.file is None or (made.chosen.speed_ratio or 0.0) <= 1:
        return None, Note(NoteKind.INFO, f"the encoder of pictures stays in float: {made.reason}")
    listener.say(f"{plural(len(judging), 'picture')} that did not calibrate judge it by the original's answers")
    judged = judge_encoder(start.original, recipe, made.file, judging, options.output_tokens, run.threads)
    told = judged.told(options.max_rise, len(judging), f", rows agree by {made.chosen.agreement:.4f}")
    if not judged.is_better(options.max_rise):
        return None, Note(NoteKind.INFO, f"the encoder of pictures stays in float: in INT8 {told}")
    note = Note(NoteKind.CHOICE, f"the encoder of pictures in INT8 ({made.chosen.name}): {told}")
    return ChosenEncoder(made.file, "w8a8", str(judged.speed)), note


def _of_any_grid(start: DecoderStart, place: Path, judging: Sequence[Frame]) -> tuple[ChosenEncoder | None, Note]:
    """Return the fastest form of an encoder of any grid that keeps the answers, or None; and what is to be told."""
    run, recipe, options = start.run, start.recipe, start.run.options
    place.mkdir(parents=True, exist_ok=True)
    model = load_model(recipe.folder / recipe.image.encoder)
    best, lost = None, list[str]()
    for precision in ("w8a8", "w8"):
        require_time()
        run.shares.listener.say(
            f"make the encoder of pictures in {precision}; {plural(len(judging), 'picture')} judge it"
        )
        if precision == "w8a8":
            made = make_dynamic(model, run.device.rules_here)
        else:
            made = make_weight_only(model, 8, EIGHT_BITS_BLOCK)
        if not made.changes:
            lost.append(f"{precision}: no matrix is large enough")
            continue
        file = place / f"{precision}.onnx"
        save_model(made.model, file)
        judged = judge_encoder(start.original, recipe, file, judging, options.output_tokens, run.threads)
        told = f"{precision}: {judged.told(options.max_rise, len(judging))}"
        if not judged.is_better(options.max_rise):
            lost.append(told)
        elif best is None or judged.speed.speedup > best[0]:
            best = judged.speed.speedup, ChosenEncoder(file, precision, str(judged.speed)), told
    if best is None:
        return None, Note(NoteKind.INFO, f"the encoder of pictures stays in float: {'; '.join(lost)}")
    return best[1], Note(NoteKind.CHOICE, f"the encoder of pictures in INT8 ({best[2]})")


def _frames(folder: Path) -> list[Frame]:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    files, _ = pictures_of(folder, names)
    if len(files) < _LEAST:
        raise EdgeoptError(
            f"{folder} holds {plural(len(files), 'picture')}: {_LEAST} calibrate and judge an encoder at least",
            remedy="name a folder of pictures as the app will see them",
        )
    most = np.linspace(0, len(files) - 1, min(len(files), _MOST_TILES)).round().astype(int)
    return [read_picture(folder / files[int(i)]) for i in most]


def _write_tiles(frames: Sequence[Frame], table: ImageTable, folder: Path) -> int:
    """Write tiles of pictures, each picture whole and the parts of some; return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    each = max(_MOST_TILES // len(frames), 1)
    count = 0
    for frame in frames:
        pixels = tiles_of(frame, table).pixels[::-1]  # the whole picture first
        for i in np.linspace(0, len(pixels) - 1, min(each, len(pixels))).round().astype(int):
            encoded = cv2.imencode(".png", pixels[int(i)][:, :, ::-1])[1]
            write_beside(folder / f"{count:03}.png", encoded.tobytes())
            count += 1
    return count


def _recipe_of(recipe: Recipe) -> Recipe:
    """Return how the encoder is fed as a model of frames: one tile, as it is."""
    table = recipe.image
    return Recipe(
        name=recipe.name,
        task="tensors",
        description=f"encoder of pictures of {recipe.name}",
        license=recipe.license,
        source=recipe.source,
        postprocess=Postprocess(NO_DECODER),
        evaluation=Evaluation("agreement"),
        input=Input(size=(table.tile, table.tile), smaller=False),
        preprocess=Preprocess(scale=table.scale, mean=table.mean, std=table.std),
    )


@dataclass(frozen=True, slots=True)
class JudgedEncoder:
    """The change that an encoder makes to the answers that the original gave."""

    rise: Rise
    """Rise of the perplexity of the original's answers, picture by picture."""
    agreement: float
    """Share of their tokens that stay the likeliest."""
    speed: Ratio
    """Speed on single tiles, or whole pictures in patches, in turns with the float encoder."""

    def is_better(self, max_rise: float) -> bool:
        """Whether it is proven faster, and loses no more than is allowed."""
        return self.rise.value <= max_rise and self.speed.verdict is Change.FASTER

    def told(self, max_rise: float, pictures: int, more: str = "") -> str:
        """Return what was seen, in words.

        Args:
            max_rise: Of the perplexity that is allowed.
            pictures: That judged.
            more: Stands behind the speed.
        """
        return (
            f"{self.speed} as fast in turns{more}; behind the original's answers to {plural(pictures, 'picture')} the "
            f"perplexity changes by {self.rise}, {max_rise:.1%} allowed ({self.rise.word(max_rise)}), and "
            f"{100 * self.agreement:.1f} % of tokens stay the likeliest"
        )


def judge_encoder(
    original: LanguageModel, recipe: Recipe, file: Path, frames: Sequence[Frame], most_tokens: int, threads: int
) -> JudgedEncoder:
    """Return what an encoder changes of the original's answers.

    Args:
        original: The model, open with its own encoder.
        recipe: Of the model, with the folder in which its tokenizer lies.
        file: Of the encoder.
        frames: Pictures that are asked about.
        most_tokens: Of an answer.
        threads: Of the engine.
    """
    assert original.images is not None
    before, after = TextScore((), ()), TextScore((), ())
    with open_image_reader(file, recipe, original.tokenizer, threads) as reader:
        for frame in frames:
            require_time()
            prompt = original.seen(_QUESTION, [frame])
            with original.generate(prompt, AnswerOptions(most_tokens=most_tokens, ends=False)) as answer:
                tokens = [piece.token for piece in answer]
            before = before.joined(_scored(original, original.images, prompt, recipe, tokens))
            after = after.joined(_scored(original, reader, prompt, recipe, tokens))
        runs = [list(reader.feeder.feeds(frame))[-1] for frame in frames]
        speed = _speed(original.images, reader, runs)
    return JudgedEncoder(rise_between(before, after), agreement_between(before, after), speed)


def _speed(before: ImageReader, after: ImageReader, runs: Sequence[Tensors]) -> Ratio:
    """Return how many times as fast one encoder is as the other, run by run in turns."""
    logs, began_s = list[float](), monotonic()
    while len(logs) < _ROUNDS and (len(logs) < LEAST_RANKED or monotonic() - began_s < _SECONDS):
        require_time()
        feeds = runs[len(logs) % len(runs)]
        order = (before, after, after, before) if len(logs) % 2 else (after, before, before, after)
        took_ns = {before: 0, after: 0}
        for each in order:
            begun_ns = perf_counter_ns()
            each.rows_of(feeds)
            took_ns[each] += perf_counter_ns() - begun_ns
        logs.append(math.log(took_ns[before] / took_ns[after]))
    return ratio_of_rounds(np.array(logs), pairs=2 * len(logs))


def _scored(
    original: LanguageModel, reader: ImageReader, prompt: SeenPrompt, recipe: Recipe, answer: Sequence[int]
) -> TextScore:
    """Return how well an answer is predicted behind a picture that an encoder reads."""
    before = [*recipe.generation.begin, *reader.read(prompt).tokens]
    return score_rows(original.logits([*before, *answer[:-1]])[len(before) - 1 :], answer)


def require_seeing(model: LanguageModel, options: LanguageOptions) -> None:
    """Raise where pictures are named for a model that sees none.

    Raises:
        UnsupportedError: If so.
    """
    if options.pictures and model.images is None:
        raise UnsupportedError(
            "--pictures applies to language models that see; this one reads text alone", remedy="leave it out"
        )


IN_FLOAT = Note(
    NoteKind.INFO, "the encoder of pictures stays as it is", "--pictures FOLDER lets an INT8 form of it take its place"
)
"""Where nobody named pictures."""
NOT_JUDGED = Note(
    NoteKind.WARNING, "the encoder of pictures stays as it is: an INT8 form of it was not judged to its end", LONGER
)
