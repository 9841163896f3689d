"""Frames from pictures, a video or an .npz; what else a model is asked is read by `sources/`."""

from __future__ import annotations

import hashlib
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.tensors import Frame, Sample, Tensors
from edgeopt.recipes import sources
from edgeopt.recipes.inputs.jpeg import ReducedDecoding
from edgeopt.recipes.inputs.pictures import (
    PICTURES,
    VIDEOS,
    PictureReader,
    PictureSource,
    decodable,
    is_picture,
    pictures_of,
)
from edgeopt.recipes.inputs.sample_arrays import arrays_of
from edgeopt.recipes.inputs.video_frames import open_video
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.declared import registry
from edgeopt.system.disk.archives import read_archive
from edgeopt.system.disk.files import list_folder, require_no_pointer, require_regular, require_there
from edgeopt.system.text import plural

_DEEPEST = 3
"""Folders below the one that is named: `train/cat/more`."""
_STREAM = 256
"""Samples of streams, all together: a decision of a hundred that changes is seen."""
_LEAST_STREAM = 64
"""Samples of one of several streams: what a state gets wrong has added up by then."""


@dataclass(frozen=True, slots=True)
class FramePart:
    """A stretch of one frame of a source, such as a window of a sound."""

    place: int
    """Place of the frame in its source."""
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Frames:
    """Named frames, read one at a time, so that their number costs no memory."""

    names: tuple[str, ...]
    read: Callable[[int], Sample]
    """Read and decode the i-th frame, or take the i-th inputs; raises InvalidFileError when it does not decode."""
    source: Path
    tensors: Callable[[int], Tensors] | None = None
    """Set when the source holds the model's inputs themselves, which are not preprocessed: what `read` gives."""
    notes: tuple[Note, ...] = field(default=())
    states: Mapping[str, str] = field(default_factory=dict)
    """States of a stream for a recurrent model: state input to the output that feeds it in the next sample."""
    paths: tuple[Path, ...] = ()
    """The files that are read; none of synthetic frames."""
    streams: tuple[int, ...] = ()
    """Which stream each frame belongs to, for a recurrent model; empty: all to one."""
    parts: tuple[FramePart, ...] = ()
    """Parts of windows: what of which frame of the source each is."""
    carried: Callable[[int], Tensors] | None = None
    """States that the model itself leaves before the i-th frame, where `read` gives none."""
    kind: str = "picture"
    """Name of a frame's kind: `picture`, `sample` of tensors, or the file in `sources/` that reads it, such as
    `text`."""

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Sample]:
        return (self.read(i) for i in range(len(self)))

    @property
    def holds_pictures(self) -> bool:
        """Whether each is a picture."""
        return self.kind == "picture" and self.tensors is None

    @property
    def given(self) -> str:
        """The kind that `read` returns, as a task's `draws` calls it: `sample` for tensors, else the kind."""
        return "sample" if self.tensors else self.kind

    def picture(self, index: int) -> Frame:
        """Return the i-th frame.

        Raises:
            InvalidFileError: If the source holds something else.
        """
        sample = self.read(index)
        if not isinstance(sample, np.ndarray):
            raise InvalidFileError(f"{self.source} holds {self.held}, no pictures", remedy="pass pictures for this")
        return sample

    @property
    def held(self) -> str:
        """The contents of the source, in one word."""
        return "tensors" if self.tensors else f"{self.kind}s"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each array of one sample; empty where the source holds pictures."""
        return {name: array.shape for name, array in self.tensors(0).items()} if self.tensors else {}

    def begins_stream(self, index: int) -> bool:
        """Return whether the i-th frame is the first of its stream: states begin anew."""
        return not index or (bool(self.streams) and self.streams[index] != self.streams[index - 1])

    def select(self, kept: Sequence[int]) -> Frames:
        """Return the frames at these positions only."""
        read, tensors, carried, order = self.read, self.tensors, self.carried, tuple(kept)
        return replace(
            self,
            names=tuple(self.names[i] for i in order),
            read=read.select(order) if isinstance(read, PictureSource) else lambda i: read(order[i]),
            tensors=None if tensors is None else lambda i: tensors(order[i]),
            streams=tuple(self.streams[i] for i in order) if self.streams else (),
            parts=tuple(self.parts[i] for i in order) if self.parts else (),
            carried=None if carried is None else lambda i: carried(order[i]),
        )

    def decoded_by(self, decoding: ReducedDecoding | None) -> Frames:
        """Return the frames with those that come from files of pictures decoded so; None: as they are."""
        if decoding is None or not isinstance(self.read, PictureSource):
            return self
        return replace(self, read=self.read.decoded_by(decoding))

    def judged(self, count: int) -> Frames:
        """Return the frames on which answers are compared: `count`, evenly spread; of streams the first in a row.

        What a recurrent model gets wrong adds up over many samples.
        """
        return self.in_a_row(_STREAM) if self.states else self.spread(count)

    def in_a_row(self, count: int) -> Frames:
        """Return at most `count` frames in their order: of each stream the first, at least 64 where it has as many."""
        length = max(count // max(len(set(self.streams)), 1), min(_LEAST_STREAM, count))
        seen: Counter[int] = Counter()
        kept: list[int] = []
        for i, stream in enumerate(self.streams or [0] * len(self)):
            seen[stream] += 1
            if seen[stream] <= length and len(kept) < count:
                kept.append(i)
        return self.select(kept)

    def spread(self, count: int) -> Frames:
        """Return at most `count` frames, evenly spread; neighbours in a video are all alike."""
        if len(self) <= count:
            return self
        return self.select([int(i) for i in np.linspace(0, len(self) - 1, count).round()])


@dataclass(frozen=True, slots=True)
class SourceKind:
    """Samples that are neither pictures nor tensors: a file in `sources/`, named as one sample is called."""

    told: str
    """Like `texts (.txt)`."""
    suffixes: frozenset[str]
    """Suffixes of its files, in lower case."""
    open: Callable[[Path], Frames]
    """Opens one file; raises InvalidFileError where it holds something else."""
    made_up: Callable[[Recipe, int], Frames]
    """(recipe, count) -> so many made-up samples: they show that a model runs, not how accurate it is."""
    like: Callable[[Frames, int], Frames]
    """(given, count) -> so many made-up samples in place of given ones, which they do not tell."""
    open_folder: Callable[[Path, Sequence[str]], Frames] | None = None
    """Opens these files of a folder, one sample each; None: a folder holds none."""


def find_kind(name: str) -> SourceKind:
    """Return the kind in `sources/` of this name.

    Raises:
        NotFoundError: If there is none.
    """
    source: SourceKind = registry.load(sources, name).SOURCE
    return source


def calibration_kind(recipe: Recipe) -> str:
    """Return what calibrates, as `Frames.kind` calls it: a model that is fed no picture of a known size gets arrays."""
    return "sample" if recipe.kind == "picture" and not recipe.input.size else recipe.kind


def calibration_wanted(recipe: Recipe) -> str:
    """Return what the user may pass to learn from, in words that follow `--calib`."""
    kind = calibration_kind(recipe)
    if kind == "picture":
        return "FOLDER with about 100 unlabelled pictures from where the model will work"
    if kind == "sample":
        return "FILE.npz with about 100 samples like those that the model will get"
    return f"FILE with about 100 {find_kind(kind).told} like those that the model will get"


def open_frames(path: Path, files: Sequence[str] | None = None) -> Frames:
    """Open a folder of pictures, a picture, a video, an .npz or a file of a kind in `sources/`.

    Pictures that do not decode are left out with a note.

    Args:
        path: The source. In an .npz, `images` (n, height, width, 3) uint8 RGB holds pictures; other arrays, (n, ...),
            are the model's inputs by name. A folder without pictures may hold several .npz files, or files of one kind
            in `sources/` that has one sample a file. Where it holds none of them, its folders are looked into, as
            those of class folders, and where nothing is in them either theirs.
        files: Only these files, in this order, for a folder.

    Raises:
        InvalidFileError: If nothing is there, or nothing of it decodes.
    """
    kinds = [find_kind(name) for name in registry.names(sources)]
    text = ", ".join(["a folder of pictures", "a video", "an .npz", *(kind.told for kind in kinds)])
    remedy = f"pass one of {text}"
    if stat.S_ISDIR(require_there(path, remedy=remedy).st_mode):
        return _open_folder(path, files)
    require_regular(path, remedy=remedy)
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        return _keep_decodable(path.parent, (path.name,))
    require_no_pointer(path)
    if suffix == ".npz":
        return _open_npz(path)
    if suffix in VIDEOS:
        return _open_video(path)
    for kind in kinds:
        if suffix in kind.suffixes:
            return kind.open(path)
    if is_picture(path):
        return _keep_decodable(path.parent, (path.name,))
    raise InvalidFileError(f"{path} is no source of frames", remedy=remedy)


def _open_folder(path: Path, files: Sequence[str] | None) -> Frames:
    notes: tuple[Note, ...] = ()
    if files is None:
        names = list_folder(path, remedy="pass a folder that you may read")
        files, notes = pictures_of(path, names)
        if not files and (archives := [name for name in names if Path(name).suffix.lower() == ".npz"]):
            return _join_archives([_open_npz(path / name) for name in archives], path)
        if not files and (others := _open_others(path, names)):
            return others
        nested, more = _nested(path, names)
        if not files and nested:
            files, notes = nested, more
            if others := _open_others(path, files):
                return others
        elif nested and is_picture(path / nested[0]):
            text = (
                f"{plural(len(nested), 'picture')} in folders of {path} left out: those in the folder itself are read"
            )
            notes = (*notes, Note(NoteKind.WARNING, text, "name one of its folders, or put all pictures into one"))
    elif files and (others := _open_others(path, files)):
        return others
    if not files:
        raise InvalidFileError(
            f"{path} holds no picture, nor do its folders", remedy=f"put pictures there ({', '.join(sorted(PICTURES))})"
        )
    return _keep_decodable(path, files, notes)


def _nested(folder: Path, names: Sequence[str], depth: int = _DEEPEST) -> tuple[list[str], tuple[Note, ...]]:
    """Return what may be a sample in the folders of a folder, such as class folders: pictures, else others.

    The folders of its folders are looked into where nothing is in the first ones, so deep as those of a split.
    """
    inner = [name for name in names if isdir(folder / name) and not name.startswith(".")]
    held = {name: _names_in(folder / name) for name in inner}
    pictures, notes = list[str](), list[Note]()
    for name in inner:
        kept, more = pictures_of(folder / name, held[name])
        pictures += [f"{name}/{entry}" for entry in kept]
        notes += more
    if pictures:
        return pictures, tuple(notes)
    kinds = map(find_kind, registry.names(sources))
    suffixes = {suffix for kind in kinds if kind.open_folder for suffix in kind.suffixes}
    others = [f"{name}/{entry}" for name in inner for entry in held[name] if Path(entry).suffix.lower() in suffixes]
    others = [name for name in others if isfile(folder / name)]
    if others or depth <= 1:
        return others, ()
    for name in inner:
        below, more = _nested(folder / name, held[name], depth - 1)
        others += [f"{name}/{entry}" for entry in below]
        notes += more
    return others, tuple(notes)


def _names_in(folder: Path) -> list[str]:
    return list_folder(folder, remedy="correct its permissions")


def _open_others(folder: Path, names: Sequence[str]) -> Frames | None:
    """Return the samples of a folder whose files are of a kind in `sources/`; None where none is."""
    if any(Path(name).suffix.lower() in PICTURES for name in names):
        return None
    for kind in map(find_kind, registry.names(sources)):
        others = [name for name in names if Path(name).suffix.lower() in kind.suffixes]
        if others and kind.open_folder:
            return kind.open_folder(folder, others)
    return None


def _keep_decodable(folder: Path, files: Sequence[str], notes: Sequence[Note] = ()) -> Frames:
    kept = decodable(folder, files)
    return Frames(
        names=kept.files,
        read=PictureReader(folder, kept.files, kept.top),
        source=folder,
        notes=(*notes, *kept.notes),
        paths=tuple(folder / name for name in kept.files),
    )


def _open_npz(path: Path) -> Frames:
    arrays = read_archive(path, remedy="write it with numpy.savez")
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        text = ", ".join(f"{name} holds {length}" for name, length in lengths.items()) or "it holds no array"
        raise InvalidFileError(f"{path}: {text}", remedy="give every array the same number of samples first")
    if empty := [name for name, array in arrays.items() if not array.size]:
        raise InvalidFileError(f"{path}: {empty[0]} is empty", remedy="write arrays that hold something")
    names = tuple(f"{path.stem}[{i}]" for i in range(next(iter(lengths.values()))))
    images = arrays.get("images")
    if images is not None and images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] == 3:
        pictures: NDArray[np.uint8] = np.ascontiguousarray(images[..., ::-1])
        return Frames(names, lambda i: pictures[i], path, paths=(path,))
    return _frames_of_tensors(path, names, arrays)


def _frames_of_tensors(path: Path, names: tuple[str, ...], arrays: dict[str, NDArray[Any]]) -> Frames:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and (np.isnan(array) | np.isposinf(array)).any():  # -inf masks attention
            raise InvalidFileError(f"{path}: {name} holds NaN or infinity", remedy="write finite values, or -inf")

    def take(index: int) -> Tensors:
        return {name: array[index : index + 1] for name, array in arrays.items()}

    return Frames(names, take, path, tensors=take, paths=(path,), kind="sample")


def _join_archives(parts: Sequence[Frames], folder: Path) -> Frames:
    """Return the samples of several .npz that have the most frequent size: a model is optimized for one size."""
    samples = [(part.tensors, i, part.names[i]) for part in parts if part.tensors for i in range(len(part))]
    if not samples:
        raise InvalidFileError(
            f"{folder} holds pictures in .npz files", remedy="pass one .npz, or a folder of pictures"
        )
    shapes = [tuple((name, array.shape) for name, array in read(i).items()) for read, i, _ in samples]
    wanted, count = Counter(shapes).most_common(1)[0]
    kept = [sample for sample, shape in zip(samples, shapes, strict=True) if shape == wanted]
    sizes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in wanted)
    text = f"{len(samples) - count} of {plural(len(samples), 'sample')} in {folder} left out: they are not {sizes}"
    note = Note(NoteKind.WARNING, text, "a model has one size: optimize it once for each")

    def take(index: int) -> Tensors:
        read, i, _ = kept[index]
        return read(i)

    names = tuple(name for _, _, name in kept)
    paths, notes = tuple(path for part in parts for path in part.paths), (note,) if count < len(samples) else ()
    is_one = all(len(part) == 1 for part in parts)  # a file a sample
    streams = [0 if is_one else number for number, part in enumerate(parts) if part.tensors for _ in range(len(part))]
    kept_streams = tuple(number for number, shape in zip(streams, shapes, strict=True) if shape == wanted)
    return Frames(names, take, folder, tensors=take, notes=notes, paths=paths, streams=kept_streams, kind="sample")


def _open_video(path: Path) -> Frames:
    count, read = open_video(path)
    return Frames(tuple(f"{path.stem}#{i}" for i in range(count)), read, path, paths=(path,))


def calibration_fingerprint(frames: Frames) -> str:
    """Return the SHA-256 of frames as they are read: names of arrays, types, shapes and numbers, in their order."""
    digest = hashlib.sha256()
    for sample in frames:
        for name, array in arrays_of(sample).items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data if array.dtype != object else repr(array).encode())
    return digest.hexdigest()
