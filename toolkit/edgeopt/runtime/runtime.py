"""The deployable runtime: a bundle in, answers out. It imports no onnx, no click, no torch.

runtime = edgeopt.Runtime.load("bundle")
detections = runtime.predict(frame)
for piece in edgeopt.Runtime.load("language-bundle").generate("import os"): ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, ReducedPicture, Sample, Tensors, TensorSpec, require_names
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.inputs.input_shapes import beginning_of
from edgeopt.runtime.bundle import Bundle, read_bundle
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.runtime.decoding.binding import with_context
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes, Generation
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.decoding.speech.options import SpeechOptions, SpeechWishes
from edgeopt.runtime.drift.state import OF_BUNDLE, FieldDrift
from edgeopt.runtime.fallback import OpenedArtefact, open_artefact, open_first
from edgeopt.runtime.pool import Pool, Work
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.closing import Closing
from edgeopt.tasks import FrameTask, Task, make_task

if TYPE_CHECKING:  # what only some bundles need is imported when they are opened: a first token waits for it
    from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
    from edgeopt.runtime.decoding.image_reader import Image
    from edgeopt.runtime.decoding.speech.transcription import Transcription
    from edgeopt.runtime.decoding.speech.voice import VoiceDetector
    from edgeopt.runtime.drift.sketch import Sketch
    from edgeopt.runtime.drift.watch import DriftWatch


class Runtime(Closing):
    """A loaded bundle. Any number of threads may use it: they share the weights, and each frame has its own buffers."""

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
        """Why earlier models of the bundle do not run here, and what differs from the measurement."""
        self.task = opened.task
        self._threads, self._samples, self._writer = threads, opened.samples, opened.writer
        self.states: Mapping[str, str] = bundle.recipe.input.states
        """States of a recurrent model, by the name of the input: the output that it takes in the next frame."""
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
        """Names of the stages of a frame, in their order; `Work.times_ns` has their times."""

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
        """Open a bundle: check its hashes, and open the first model that runs here with right numbers.

        Args:
            path: The bundle's folder, or the output folder of `edgeopt optimize`; or a bundle that was read already.
            threads: Threads of the engine; None: as the model was measured, but no more than there are logical cores.
            warmup: Run a stored input through all stages before the first frame comes.
            strict: Raise an error if the first model does not run, in place of falling back to another one.
            context: For a language model: most tokens of prompt and answer together, for which memory is reserved; 0:
                its whole context.
            target: For a bundle for several targets: the target to run, such as `ncnn-cpu` or `ncnn-cpu@pi5`; empty:
                the best on this machine, which `notes` names.

        Raises:
            InvalidFileError: If the bundle is damaged.
            NotFoundError: If the bundle is not for that target.
            EdgeoptError: If none of its models opens, or if `threads` is more than there are logical cores.
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
        """Return another runtime of the same bundle with another of its models, such as a lighter one.

        Raises:
            ValueError: If the model does not belong to this bundle.
            EdgeoptError: If it does not open here.
        """
        if artefact not in (*self.bundle.artefacts, *self.bundle.lighter):
            raise ValueError(f"{artefact.file} is no artefact of {self.bundle.folder}")
        other = Runtime(self.bundle, open_artefact(self.bundle, artefact, self._threads), self._threads)
        other._warm_up()
        other._pool.watch = self._pool.watch
        return other

    def close(self) -> None:
        """Refuse further frames, and free the model when the current frames are done."""
        if self._writer is not None:
            self._writer.forget()
        self._pool.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def answers_frames(self) -> bool:
        """Whether the bundle answers frames with `predict`; otherwise it writes text with `generate`."""
        return self._writer is None

    @property
    def language_model(self) -> LanguageModel:
        """The language model, with its tokenizer, context and memory.

        Raises:
            UnsupportedError: If the bundle answers frames.
        """
        if not isinstance(self._writer, LanguageModel):
            raise _no_language_model(self._writer)
        return self._writer

    @property
    def encoder_decoder(self) -> EncoderDecoder:
        """The encoder with its decoder, in a bundle of such a model.

        Raises:
            UnsupportedError: If the bundle is none.
        """
        if self._writer is None or isinstance(self._writer, LanguageModel):
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
        """Return the answer to a prompt. Iterate over it for its pieces; `cancel()` may be called from any thread.

        Args:
            prompt: A text, or its tokens; an `edgeopt.Sound` for a model that hears.
            asked: Options of the answer; None: at most 256 tokens, each the likeliest.
            images: Pictures for a model that sees: paths, or arrays (height, width, 3) BGR of uint8. They stand in the
                places of the model's mark in the prompt, such as `<image>`; without marks, before the prompt.
            wishes: Fields of `AnswerOptions` and its `Sampling`, such as `most_tokens=40, temperature=0.8`.

        Raises:
            UnsupportedError: If the bundle answers frames.
            EdgeoptError: If a sound or a text does not fit the encoder that hears or reads it.
            ValueError: If the prompt is empty, has a token that the model does not know, or leaves no room for a token
                in the context; or if an option has a wrong value.
            TypeError: If there is no such option.
            UnavailableError: If the runtime is closed.
        """
        asked = (asked or AnswerOptions()).but(**wishes)
        if self._writer is not None and not isinstance(self._writer, LanguageModel):
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
        """Return the segments of a sound of any length with their times, each as soon as it is finished.

        Args:
            sound: An `edgeopt.Sound`; or an iterator of consecutive sounds at the model's rate, as they are recorded.
            options: Options of the transcription; None: as in the model's configuration.
            voice: A runtime of the task `voice_activity`; what it takes for silence is skipped.
            wishes: Fields of `SpeechOptions`, such as `language="de", times=True`.

        Raises:
            UnsupportedError: If the model does not transcribe speech, or does not support an option.
            EdgeoptError: If the prompt cannot be read.
            ValueError: If a wish has no such value.
            TypeError: If there is no such wish.
            UnavailableError: If the runtime is closed.
        """
        return self.encoder_decoder.transcribe(sound, options, voice=voice, **wishes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the model's classes in their order; empty if the recipe has none."""
        return self.bundle.recipe.class_names

    def class_name(self, index: int) -> str:
        """Return the name of a class, or `class 7` if it has no name: `class_name(detections.classes[0])`."""
        return self.bundle.recipe.class_name(int(index))

    def as_text(self, answer: Any) -> str:
        """Return an answer of `predict` as one line of text, with the names of its classes."""
        return self.task.as_text(answer)

    def as_json(self, answer: Any) -> dict[str, Any]:
        """Return an answer of `predict` as plain values for JSON, with the names of its classes."""
        return self.task.as_json(answer)

    def draw(self, frame: Sample, answer: Any, height: int = 0) -> Frame:
        """Return a picture of a frame with its answer drawn on it: boxes with names and scores, masks, points, a text.

        Args:
            frame: The frame, as it was passed to `predict`.
            answer: The answer of `predict` for this frame.
            height: Height of the picture in pixels; 0: the height of the frame if it is a picture, otherwise 320.

        Returns:
            (height, width, 3), BGR, uint8, for `cv2.imwrite` or `cv2.imshow`.

        Raises:
            UnsupportedError: If the task draws nothing on a frame of this kind.
        """
        frame = frame.enlarged() if isinstance(frame, ReducedPicture) else frame
        own = frame.shape[0] if isinstance(frame, np.ndarray) else HEIGHT
        return self.task.draw(frame, answer, height or own)

    def begin(self, timeout_s: float | None = None, *, stream: Hashable = 0) -> Work:
        """Reserve buffers for one frame, to run its stages one by one: `with runtime.begin() as work`.

        Args:
            timeout_s: Longest wait while all buffers are in use; None: no limit.
            stream: Name of the stream, for a recurrent model; see `predict`.

        Raises:
            UnavailableError: If the runtime is closed, or no buffers became free in time.
        """
        return self._pool.take(timeout_s, stream)

    def unwatch_drift(self) -> None:
        """Stop watching for drift."""
        self._pool.watch = None

    def predict(self, frame: Sample, *, raw: bool = False, stream: Hashable = 0) -> Any:
        """Return the answer for one frame.

        A recurrent model keeps its states from one call to the next. States that are passed are used as they are.

        Args:
            frame: (height, width, 3), BGR, uint8, as `cv2.VideoCapture.read` gives it; what `read_picture` returns; a
                text or an `edgeopt.Sound` if the recipe takes these; or the model's inputs by name.
            raw: Return the model's outputs by name, without postprocessing.
            stream: Name of the stream to which the frame belongs; a recurrent model keeps separate states for each
                stream.

        Returns:
            The task's answer: `Detections` or `Classes`, in the frame's own pixels, or the outputs by name.

        Raises:
            ValueError: If it is not a frame, or if a frame or an input has a wrong shape or type.
            UnsupportedError: If it is a picture and the bundle takes only tensors, or if the engine fails.
            UnavailableError: If the runtime is closed.
        """
        with self._pool.take(stream=stream) as work:
            work.preprocess(frame)
            work.execute()
            return work.postprocess(raw=raw)

    def read_picture(self, picture: str | Path | bytes) -> Frame | ReducedPicture:
        """Return the picture in a file, decoded as the bundle's recipe says, for `predict` and `draw`.

        Where the recipe has `decode = "reduced"`, a JPEG is decoded at half, a quarter or an eighth of its size if the
        model's input is that small: a `ReducedPicture` with its `pixels`, the `height` and `width` of the whole
        picture, and `enlarged()` for drawing. Answers are in pixels of the whole picture all the same.

        Args:
            picture: Path of the file, or its bytes, such as a frame of a camera that sends MJPEG.

        Raises:
            InvalidFileError: If it cannot be read, or is no picture.
        """
        from edgeopt.recipes.inputs.pictures import decode_sample, read_sample  # with OpenCV

        if not isinstance(picture, bytes):
            return read_sample(Path(picture), self.task.decoding)
        frame = decode_sample(picture, self.task.decoding)
        if frame is None:
            raise InvalidFileError(
                f"{len(picture)} bytes do not decode as a picture", remedy="pass the bytes of a JPEG or PNG"
            )
        return frame

    def predict_batch(self, frames: Iterable[Sample], *, raw: bool = False, stream: Hashable = 0) -> list[Any]:
        """Return the answer for each frame, in their order; see `predict`."""
        return [self.predict(frame, raw=raw, stream=stream) for frame in frames]

    def reset(self, stream: Hashable | None = None) -> None:
        """Reset the states of a stream of a recurrent model; with None, of all streams."""
        self._pool.forget(stream)

    def stats(self) -> Stats:
        """Return how many frames came in, were answered and failed, and the times of the last 1024."""
        counted, watch = self._pool.ring.stats(), self._pool.watch
        return counted if watch is None else replace(counted, drift=watch.state())

    @property
    def drift_watch(self) -> DriftWatch | None:
        """The watch that `watch_drift` began; None: drift is not watched."""
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
        """Begin to watch whether frames are still like those of calibration, in every 15th frame or fewer.

        Args:
            sketch: `bundle`: the sketch of the calibration frames in the bundle. `none`: no comparison, the watch only
                learns a sketch for `DriftWatch.learned`. Otherwise a learned sketch, or the path of its file.
            fps: Frames a second, from which the length of a week in frames follows.
            false_alarms_per_week: Highest rate of false alarms, if the frames that are looked at are independent of
                each other.
            every: Frames from one look to the next; None: 15, or more if looks would take more than 0.5 % of the time.
            on_drift: Called when a drift begins or ends, in the thread of the frame; it must not wait.

        Raises:
            InvalidFileError: If the file is no sketch.
            EdgeoptError: If the bundle keeps no sketch, or a number is out of range.
        """
        from edgeopt.runtime.drift.of_bundle import sketch_for
        from edgeopt.runtime.drift.watch import DriftWatch

        taken = sketch_for(self.bundle, str(sketch)) if isinstance(sketch, str | Path) else sketch
        self._pool.watch = DriftWatch(
            taken, fps=fps, false_alarms_per_week=false_alarms_per_week, every=every, on_drift=on_drift
        )
        return self._pool.watch

    def why_no_answer(self, frame: Sample) -> str:
        """Return which outputs are NaN for a frame whose answer is empty; empty if none is.

        It runs the model again; a recurrent model runs as at the beginning of a stream.
        """
        outputs = self.predict(frame, raw=True, stream=(apart := object()))
        self.reset(apart)
        floats = {name: value for name, value in outputs.items() if np.asarray(value).dtype.kind == "f"}
        counts = {name: (int(np.isnan(value).sum()), np.size(value)) for name, value in floats.items()}
        return "; ".join(
            f"output {name} is NaN in {count} of {size}" for name, (count, size) in counts.items() if count
        )

    def make_task(self) -> Task:
        """Return a new task with its own buffers, for the model's tensors."""
        if self._writer is not None:
            return self.task
        return make_task(self.bundle.recipe, self.session.inputs, self.session.outputs, evaluating=False)

    def feed(self, task: FrameTask, frame: Sample) -> tuple[Tensors, Any]:
        """Return the model's inputs for a frame, and the frame's geometry, in the buffers of a task.

        Raises:
            ValueError: If it is not a frame; see `predict`.
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
        elif not isinstance(frame, ReducedPicture):
            _require_picture(frame)
        return task.preprocess(frame)

    def _warm_up(self) -> None:
        """Run one stored input, or a grey picture where there is none and the bundle takes pictures."""
        if self._writer is not None:
            if self.bundle.selftest is None or not self.artefact.noise_limits:  # else its test has run it
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
