"""The deployable runtime: a bundle in, answers out. It imports no onnx, no click, no torch.

runtime = edgeopt.Runtime.load("bundle")
detections = runtime.predict(frame)
for piece in edgeopt.Runtime.load("language-bundle").generate("import os"): ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec, require_names
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.inputs.input_shapes import beginning_of
from edgeopt.runtime.bundle import Bundle, read_bundle
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.runtime.decoding.binding import with_context
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes, Generation
from edgeopt.runtime.decoding.image_reader import Image
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.decoding.speech.options import SpeechOptions, SpeechWishes
from edgeopt.runtime.decoding.speech.transcription import Transcription
from edgeopt.runtime.decoding.speech.voice import VoiceDetector
from edgeopt.runtime.drift.of_bundle import OF_BUNDLE, sketch_for
from edgeopt.runtime.drift.sketch import Sketch
from edgeopt.runtime.drift.state import FieldDrift
from edgeopt.runtime.drift.watch import DriftWatch
from edgeopt.runtime.fallback import OpenedArtefact, open_artefact, open_first
from edgeopt.runtime.pool import Pool, Work
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.closing import Closing
from edgeopt.tasks import FrameTask, Task, make_task


class Runtime(Closing):
    """A loaded bundle, for any number of threads: each frame has buffers of its own, the weights are there once."""

    def __init__(self, bundle: Bundle, opened: OpenedArtefact, threads: int = 0) -> None:
        """Bind an open artefact to its bundle; applications call `load`.

        Args:
            bundle: It was read from.
            opened: The artefact that runs.
            threads: Asked for; 0: as each artefact was measured.
        """
        self.bundle, self.artefact, self.opening = bundle, opened.artefact, opened.opening
        self.session = opened.session
        self.notes = opened.notes
        """Why artefacts before this one do not run."""
        self.task = opened.task
        self._threads, self._samples, self._writer = threads, opened.samples, opened.writer
        self.states: Mapping[str, str] = bundle.recipe.input.states
        """States of a recurrent model: the output that each state input takes in the next frame, by the input's
        name."""
        self._beginning = beginning_of(bundle.recipe, opened.session.inputs)
        self._pool = Pool(
            opened.session,
            self.make_task,
            self.feed,
            states=self.states,
            audio=bundle.recipe.audio,
            artefact=opened.artefact.file,
        )
        self.stages = self._pool.stages
        """What is done with one frame, in this order; `Work.times_ns` has their times."""

    @classmethod
    def load(
        cls,
        path: str | Path | Bundle,
        *,
        threads: int | None = None,
        warmup: bool = True,
        strict: bool = False,
        context: int = 0,
        target: str = "",
    ) -> Runtime:
        """Open a bundle: check its hashes, open the first artefact that runs here and whose numbers are right.

        Args:
            path: The bundle's folder, or the output folder of `edgeopt optimize`; or a bundle that was read already.
            threads: None: as the artefact was measured, but no more than logical cores.
            warmup: Run a stored input through all stages before the first frame comes.
            strict: Refuse to fall back: the first artefact runs, or none; of a bundle for several targets the first one
                of a target.
            context: Of a language model: tokens of prompt and answer, for which memory is reserved; 0: all it has.
            target: Of a bundle for several targets: the one that runs, such as `ncnn-cpu` or `ncnn-cpu@pi5`; empty: the
                best on this machine, which `notes` names.

        Raises:
            InvalidFileError: If the bundle is damaged.
            NotFoundError: If it is not for that target.
            EdgeoptError: If none of its artefacts opens, or more threads are asked for than there are logical cores.
        """
        asked = engine_threads(threads) if threads else 0
        if target and isinstance(path, Bundle):
            raise ValueError("a bundle that was read has its target: pass it to read_bundle")
        bundle = path if isinstance(path, Bundle) else read_bundle(Path(path), target, hashes_weights=False)
        if context:
            bundle = bundle.mapped(lambda each: replace(each, recipe=with_context(each.recipe, context)))
        opened = open_first(bundle, asked, strict=strict)
        runtime = cls(opened.bundle, opened, asked)
        if warmup:
            runtime._warm_up()
        return runtime

    def with_artefact(self, artefact: Artefact) -> Runtime:
        """Return another runtime of the same bundle, for one of its artefacts: a lighter one, for example.

        Raises:
            ValueError: If it is none of this bundle's.
            EdgeoptError: If it does not open here.
        """
        if artefact not in (*self.bundle.artefacts, *self.bundle.lighter):
            raise ValueError(f"{artefact.file} is no artefact of {self.bundle.folder}")
        other = Runtime(self.bundle, open_artefact(self.bundle, artefact, self._threads), self._threads)
        other._warm_up()
        other._pool.watch = self._pool.watch
        return other

    def close(self) -> None:
        """Refuse further frames and free the model, after the frames that are on their way."""
        if self._writer is not None:
            self._writer.forget()
        self._pool.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def answers_frames(self) -> bool:
        """Whether `predict` answers; else `generate` writes."""
        return self._writer is None

    @property
    def language_model(self) -> LanguageModel:
        """The model that writes, for what `generate` does not say: its tokenizer, context, memory.

        Raises:
            UnsupportedError: If the bundle answers frames.
        """
        if not isinstance(self._writer, LanguageModel):
            raise _no_language_model(self._writer)
        return self._writer

    @property
    def encoder_decoder(self) -> EncoderDecoder:
        """The encoder with its decoder, for what `generate` does not say.

        Raises:
            UnsupportedError: If the bundle is none.
        """
        if not isinstance(self._writer, EncoderDecoder):
            raise UnsupportedError("this bundle has no encoder with a decoder", remedy="call language_model or predict")
        return self._writer

    @with_options_of(AnswerOptions, Sampling)
    def generate(
        self,
        prompt: Sound | str | Sequence[int],
        asked: AnswerOptions | None = None,
        images: Sequence[Image] = (),
        **wishes: Unpack[AnswerWishes],
    ) -> Generation:
        """Return the answer to a prompt: iterate over it for its pieces, `cancel()` it from any thread.

        Args:
            prompt: A text, or its tokens; an `edgeopt.Sound` where an encoder hears sounds.
            asked: What the answer may be; None: 256 tokens at most, the likeliest.
            images: Pictures that the prompt is about, of a model that sees: paths, or arrays (height, width, 3) BGR of
                uint8. They stand where the prompt has the model's mark, such as `<image>`; without one, before it.
            wishes: Fields of `AnswerOptions` and its `Sampling` that differ, such as `most_tokens=40, temperature=0.8`.

        Raises:
            UnsupportedError: If the bundle answers frames.
            EdgeoptError: If a sound or a text does not fit the encoder that hears or reads it.
            ValueError: If the prompt is empty, has a token that the model has not, or leaves no room for one token in
                the context; or if a wish has no such value.
            TypeError: If there is no such wish.
            UnavailableError: If the runtime is closed.
        """
        asked = (asked or AnswerOptions()).but(**wishes)
        if isinstance(self._writer, EncoderDecoder):
            if len(images):
                raise UnsupportedError("an encoder with a decoder sees no pictures", remedy="leave images out")
            return self._writer.generate(prompt, asked)
        if isinstance(prompt, Sound):
            raise UnsupportedError("a language model hears no sound", remedy="pass a text")
        return self.language_model.generate(prompt, asked, images)

    @with_options_of(SpeechOptions)
    def transcribe(
        self,
        sound: Sound | Iterator[Sound],
        options: SpeechOptions | None = None,
        *,
        voice: VoiceDetector | None = None,
        **wishes: Unpack[SpeechWishes],
    ) -> Transcription:
        """Return the segments of a sound of any length, with their times, which come as they are done.

        Args:
            sound: An `edgeopt.Sound`; or several that follow each other at the model's rate, as they come.
            options: What is asked; None: all as the model's configuration says.
            voice: Another runtime, of the task `voice_activity`: what it takes for silence is not heard.
            wishes: Fields of `SpeechOptions` that differ, such as `language="de", times=True`.

        Raises:
            UnsupportedError: If the bundle hears no speech, or does not do what is asked.
            EdgeoptError: If the prompt cannot be read.
            ValueError: If a wish has no such value.
            TypeError: If there is no such wish.
            UnavailableError: If the runtime is closed.
        """
        return self.encoder_decoder.transcribe(sound, options, voice=voice, **wishes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the model's classes in their order; empty where the recipe has none."""
        return self.bundle.recipe.class_names

    def class_name(self, index: int) -> str:
        """Return the name of a class, or `class 7` where it has none: `class_name(detections.classes[0])`."""
        return self.bundle.recipe.class_name(int(index))

    def as_text(self, answer: Any) -> str:
        """Return an answer of `predict` in one line, with the names of its classes."""
        return self.task.as_text(answer)

    def as_json(self, answer: Any) -> dict[str, Any]:
        """Return an answer of `predict` as plain values by name, for JSON: with the names of its classes."""
        return self.task.as_json(answer)

    def draw(self, frame: Sample, answer: Any, height: int = 0) -> Frame:
        """Return a picture of a frame with its answer on it: boxes with names and scores, masks, points, a text.

        Args:
            frame: As `predict` took it.
            answer: Of `predict` for this frame.
            height: Of the picture in pixels; 0: that of the frame where it is a picture, else 320.

        Returns:
            (height, width, 3), BGR, uint8, for `cv2.imwrite` or `cv2.imshow`.

        Raises:
            UnsupportedError: If the task draws nothing on a frame of this kind.
        """
        own = frame.shape[0] if isinstance(frame, np.ndarray) else HEIGHT
        return self.task.draw(frame, answer, height or own)

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> Work:
        """Take buffers for one frame, to run its stages one by one: `with runtime.begin() as work`.

        Args:
            timeout_s: How long to wait while all buffers are taken; None: for ever.
            stream: Of a recurrent model; see `predict`.

        Raises:
            UnavailableError: If the runtime is closed, or no buffers came back in time.
        """
        return self._pool.take(timeout_s, stream)

    def unwatch_drift(self) -> None:
        """End what `watch_drift` began."""
        self._pool.watch = None

    def predict(self, frame: Sample, *, raw: bool = False, stream: Hashable = 0) -> Any:
        """Return the answer for one frame.

        A recurrent model keeps its states from each call to the next. States that are passed are taken as they are;
        what is left out begins at zero.

        Args:
            frame: (height, width, 3), BGR, uint8, as `cv2.VideoCapture.read` gives it; a text where the recipe takes
                texts, an `edgeopt.Sound` where it takes sounds; or the model's inputs by name.
            raw: Return the model's outputs by name, before any of the task's own postprocess.
            stream: Any name of the sequence that the frame belongs to: each has states of its own.

        Returns:
            The task's answer: `Detections` or `Classes`, in the frame's own pixels, or the outputs by name.

        Raises:
            ValueError: If it is no frame, or a frame or an input has another shape or type.
            UnsupportedError: If it is a picture and the bundle takes tensors only, or the engine fails.
            UnavailableError: If the runtime is closed.
        """
        with self._pool.take(stream=stream) as work:
            work.preprocess(frame)
            work.execute()
            return work.postprocess(raw=raw)

    def predict_batch(self, frames: Iterable[Sample], *, raw: bool = False, stream: Hashable = 0) -> list[Any]:
        """Return the answer for each frame, in their order; see `predict`."""
        return [self.predict(frame, raw=raw, stream=stream) for frame in frames]

    def reset(self, stream: Hashable | None = None) -> None:
        """Let a stream of a recurrent model begin anew and free its states; with None all of them."""
        self._pool.forget(stream)

    def stats(self) -> Stats:
        """Return how many frames came in, were answered and failed, and what the last 1024 took."""
        counted, watch = self._pool.ring.stats(), self._pool.watch
        return counted if watch is None else replace(counted, drift=watch.state())

    @property
    def drift_watch(self) -> DriftWatch | None:
        """The watch that `watch_drift` began; None: nothing watches the frames."""
        return self._pool.watch

    def watch_drift(
        self,
        sketch: Sketch | str | Path = OF_BUNDLE,
        *,
        fps: float = 30.0,
        false_alarms_per_week: float = 1.0,
        every: int | None = None,
        on_drift: Callable[[FieldDrift], None] | None = None,
    ) -> DriftWatch:
        """Watch whether frames are still like those of calibration: from now on, in each 15th frame or fewer.

        Args:
            sketch: `bundle`: that of the calibration frames, which the bundle keeps. `none`: the watch only learns what
                is usual, for `DriftWatch.learned`. Else one that was learned, or the path of its file.
            fps: Frames a second, by which a week is counted.
            false_alarms_per_week: The rate at most, where frames that are looked at are independent of each other.
            every: Frames from one look to the next; None: 15, or more where looks would take above 0.5 % of the time.
            on_drift: Hears of each drift that begins or is over, in the thread of the frame; it must not wait.

        Raises:
            InvalidFileError: If the file is no sketch.
            EdgeoptError: If the bundle keeps no sketch, or a number is out of range.
        """
        taken = sketch if isinstance(sketch, Sketch) else sketch_for(self.bundle, str(sketch))
        self._pool.watch = DriftWatch(
            taken, fps=fps, false_alarms_per_week=false_alarms_per_week, every=every, on_drift=on_drift
        )
        return self._pool.watch

    def why_no_answer(self, frame: Sample) -> str:
        """Return which outputs are NaN for a frame, so that its answer is empty; empty where none is.

        It runs the model once more, a recurrent one as at the beginning of a stream.
        """
        outputs = self.predict(frame, raw=True, stream=(apart := object()))
        self.reset(apart)
        floats = {name: value for name, value in outputs.items() if np.asarray(value).dtype.kind == "f"}
        counts = {name: (int(np.isnan(value).sum()), np.size(value)) for name, value in floats.items()}
        return "; ".join(
            f"output {name} is NaN in {count} of {size}" for name, (count, size) in counts.items() if count
        )

    def make_task(self) -> Task:
        """Return a task with buffers of its own, bound to the model's tensors."""
        if self._writer is not None:
            return self.task
        return make_task(self.bundle.recipe, self.session.inputs, self.session.outputs, evaluating=False)

    def feed(self, task: FrameTask, frame: Sample) -> tuple[Tensors, Any]:
        """Return the model's inputs of a frame and its geometry, made in the buffers of a task.

        Raises:
            ValueError: If it is no frame; see `predict`.
        """
        if self._writer is not None:
            return task.preprocess(frame)  # which says that it takes none
        if isinstance(frame, Mapping):
            frame = {**self._beginning, **frame}
            _require_inputs(frame, self.session.inputs)
        elif self.bundle.recipe.kind == "text":
            _require_text(frame)
        elif self.bundle.recipe.kind == "sound":
            if not isinstance(frame, Sound):
                raise ValueError(f"this bundle takes an edgeopt.Sound, not {type(frame).__name__}")
        else:
            _require_picture(frame)
        return task.preprocess(frame)

    def _warm_up(self) -> None:
        """Run one stored input, or a grey picture where there is none and the bundle takes pictures."""
        if self._writer is not None:
            self._writer.warm_up()
            return
        size = self.bundle.recipe.input.size
        for sample in self._samples[:1] or ([np.full((*size, 3), 128, np.uint8)] if size else []):
            self.predict(sample)
        self.reset()
        self._pool.ring = StageRing(self.stages)  # those were no frames of the app's


def _no_language_model(writer: EncoderDecoder | None) -> UnsupportedError:
    if writer is None:
        return UnsupportedError("this bundle answers frames and writes no text", remedy="call predict")
    return UnsupportedError("this bundle is an encoder with a decoder", remedy="call generate, or encoder_decoder")


def _require_picture(frame: object) -> None:
    if not isinstance(frame, np.ndarray):
        text = "None, as OpenCV reads what it cannot" if frame is None else type(frame).__name__
        raise ValueError(f"a frame is an array (height, width, 3) uint8, not {text}")
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != "uint8" or not frame.size:
        raise ValueError(f"a frame is (height, width, 3) uint8, not {frame.shape} {frame.dtype}")


def _require_text(sample: object) -> None:
    if not isinstance(sample, str):
        raise ValueError(f"this bundle takes a text, not {type(sample).__name__}")
    try:
        sample.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text cannot be written as UTF-8: {error.reason}") from error


def _require_inputs(values: Mapping[str, Any], wanted: Sequence[TensorSpec]) -> None:
    require_names(values, [spec.name for spec in wanted])
    for tensor_spec in wanted:
        array = np.asarray(values[tensor_spec.name])
        if not tensor_spec.takes_shape(array.shape) or (
            str(array.dtype) != tensor_spec.dtype and tensor_spec.dtype not in ("object", "string")
        ):
            found = f"{array.dtype} {'x'.join(map(str, array.shape))}"
            raise ValueError(f"{tensor_spec.name} is {found}, the model takes {tensor_spec}")
