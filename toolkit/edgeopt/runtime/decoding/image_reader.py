"""Pictures of prompts as rows of a text: each is encoded once, and kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.image_rows import EncodedPicture
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.graph.tensors import Frame, Tensors
from edgeopt.recipes.inputs.seen.feeder import SampleFeeds
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.texts.chat_template import ChatMessage, read_chat_template
from edgeopt.recipes.texts.conversation import ConversationError, ConversationReader
from edgeopt.recipes.texts.seen_prompt import ImageMarks, PromptPicture, SeenPrompt
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.system.processes.closing import Closing

KEPT_BYTES = 128 << 20
"""Rows of pictures that are kept for the next prompt; the one that was not asked for longest goes first."""
Image = Frame | str | Path
"""A picture of a prompt: (height, width, 3) BGR uint8, as OpenCV reads it, or the path of a file."""


@dataclass(frozen=True, slots=True)
class ReadPictures:
    """A prompt whose pictures are encoded."""

    tokens: list[int]
    """Tokens, with a token for each row of a picture."""
    rows: int
    encode_ns: int
    """Time of cutting and encoding the pictures."""
    encoded: int
    """Pictures that went through the encoder; the others were kept."""


class ImageReader(Closing):
    """The encoder of a model that sees, with its projector; for any number of threads."""

    def __init__(
        self,
        session: OnnxRuntimeSession,
        table: ImageTable,
        tokenizer: Tokens,
        begin: Sequence[int] = (),
        folder: Path = Path(),
        kept_bytes: int = KEPT_BYTES,
        size_bytes: int = 0,
    ) -> None:
        """Bind an encoder to the recipe that feeds it.

        Args:
            session: Of the encoder; it is closed with this.
            table: Of the recipe.
            tokenizer: Of the model.
            begin: Tokens that the model puts before every prompt.
            folder: Where the tokenizer lies, with the template of conversations.
            kept_bytes: Rows that are kept at most.
            size_bytes: Of its files.

        Raises:
            UnsupportedError: If they do not fit each other.
        """
        self.marks, self.table = ImageMarks(table, tokenizer), table
        self.feeder = self.marks.feeder
        """Cuts pictures for the encoder."""
        self.session, self.size_bytes = session, size_bytes
        self._tokenizer, self._begin, self._folder = tokenizer, tuple(begin), folder
        self._require_fitting()
        self._kept_bytes = kept_bytes
        self._kept = OrderedDict[bytes, EncodedPicture]()
        self._turn, self._changes = Lock(), Lock()

    def _require_fitting(self) -> None:
        """Raise unless the encoder takes pictures as the recipe tells, and gives a row for each mark."""
        sample, output, table = self.feeder.sample(), self.session.outputs[0], self.table
        known = {spec.name: spec for spec in self.session.inputs}
        is_fed = known.keys() == sample.feeds.keys() and all(
            known[name].takes_shape(array.shape) for name, array in sample.feeds.items()
        )
        rows = output.shape[-2]
        if is_fed and (rows == sample.rows or not isinstance(rows, int)):
            return
        told = f"patches of {table.patch}" if table.patch else f"tiles of {table.tile}"
        raise UnsupportedError(
            f"the encoder of pictures takes {', '.join(str(spec) for spec in self.session.inputs)} and gives {output}; "
            f"[image] tells of {told} pixels" + ("" if table.patch else f", which become {table.rows} rows"),
            remedy="put back the files that edgeopt export wrote together",
        )

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self.session.outputs[0].shape[-1] or 0)

    def close(self) -> None:
        """Free the encoder and what it kept."""
        self.forget()
        self.session.close()

    def forget(self) -> None:
        """Free the pictures that are kept."""
        with self._changes:
            self._kept.clear()

    @property
    def kept_bytes(self) -> int:
        """Memory of the pictures that are kept."""
        with self._changes:
            return sum(picture.rows.nbytes for picture in self._kept.values())

    def prompt(self, text: str, images: Sequence[Image]) -> SeenPrompt:
        """Return a prompt with pictures.

        Args:
            text: With a mark (`<image>`) for each picture it is taken as it stands, names of special tokens too.
                Without any it is what a person says beside the pictures: one turn, written by the template that came
                with the model; where it has none, the pictures stand before the text.
            images: Pictures in their order.

        Raises:
            ValueError: If there are other marks than pictures, a picture is none or is not seen, or the text holds what
                ends a turn.
            InvalidFileError: If a file cannot be read as a picture, or the template is damaged.
            MissingDependencyError: If jinja2 is not installed, and the model has a template.
        """
        self.marks.require_no_video(text)
        pictures = [PromptPicture.of(frame_of(image)) for image in images]
        reader = self.conversations
        if self.marks.mark in text:
            written = self.marks.prompt(text, pictures)
        elif not reader.has_template:
            return self.marks.before(text, pictures)
        else:
            said = ChatMessage("user", text, parts=(*[None] * len(pictures), text))
            try:
                written = self.marks.prompt(reader.text_of([said]), pictures)
            except ConversationError as error:
                raise ValueError(str(error).replace("messages[0]", "the prompt")) from error
        return SeenPrompt.of(reader.without_begin(list(written)), pictures)

    @cached_property
    def conversations(self) -> ConversationReader:
        """Writes conversations with pictures; the template is read when the first is written."""
        template = read_chat_template(self._folder)
        return ConversationReader(self._tokenizer, self._begin, template, mark=self.marks.mark)

    def read(self, prompt: SeenPrompt) -> ReadPictures:
        """Return the tokens of a prompt with the rows of its pictures, which are encoded where they are not kept.

        Raises:
            ValueError: If the prompt has other places than its pictures have rows.
        """
        begun_ns, encoded, rows = perf_counter_ns(), 0, list[int]()
        for seen in prompt.pictures:
            picture, is_new = self._encoded(seen)
            encoded += is_new
            rows += picture.tokens()
        count = prompt.count(self.marks.token)
        if count != len(rows):
            raise ValueError(f"the prompt has {count} places for rows of pictures, its pictures have {len(rows)}")
        left = iter(rows)
        tokens = [next(left) if token == self.marks.token else token for token in prompt]
        return ReadPictures(tokens, len(rows), perf_counter_ns() - begun_ns, encoded)

    def _encoded(self, seen: PromptPicture) -> tuple[EncodedPicture, bool]:
        """Return a picture, and whether it went through the encoder; the same one in two threads goes once."""
        digest = seen.digest
        if (kept := self._find(digest)) is not None:
            return kept, False
        with self._turn:
            if (kept := self._find(digest)) is not None:
                return kept, False
            frame = seen.frame()
            rows = np.concatenate([self.rows_of(feeds) for feeds in self.feeder.feeds(frame)])
            picture = EncodedPicture(rows, self.marks.token, self.feeder.grid(*frame.shape[:2]))
            with self._changes:
                self._kept[digest] = picture
                total = sum(each.rows.nbytes for each in self._kept.values())
                while total > self._kept_bytes and self._kept:
                    total -= self._kept.popitem(last=False)[1].rows.nbytes
            return picture, True

    def _find(self, digest: bytes) -> EncodedPicture | None:
        with self._changes:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def rows_of(self, feeds: Tensors) -> NDArray[np.float32]:
        """Return (rows, width) that the encoder makes of its inputs."""
        array = np.array(self.session.run(feeds)[self.session.outputs[0].name], np.float32)
        return array.reshape(-1, array.shape[-1])

    def sample(self) -> tuple[SampleFeeds, EncodedPicture]:
        """Return a made-up picture, always the same, and its rows."""
        made = self.feeder.sample()
        return made, EncodedPicture(self.rows_of(made.feeds), self.marks.token, made.grid)


def frame_of(image: Image) -> Frame:
    """Return a picture as (height, width, 3) BGR.

    Raises:
        ValueError: If it is no such array.
        InvalidFileError: If the file cannot be read as a picture.
        UnsupportedError: If it is a video.
    """
    if isinstance(image, str | Path):
        # with OpenCV, which a model of texts does without
        from edgeopt.recipes.inputs.pictures import VIDEOS, read_picture

        if Path(image).suffix.lower() in VIDEOS:
            raise UnsupportedError(f"{image} is a video, and a prompt takes pictures", remedy="name frames of it")
        return read_picture(Path(image))
    is_array = isinstance(image, np.ndarray)
    if not is_array or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        text = f"{image.shape} {image.dtype}" if is_array else type(image).__name__
        raise ValueError(f"a picture is a path, or an array (height, width, 3) BGR of uint8, not {text}")
    return image
