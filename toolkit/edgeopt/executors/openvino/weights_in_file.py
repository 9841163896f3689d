"""Weights of a graph that stay in their file: OpenVINO's reader of ONNX copies those of `MatMulNBits`.

The engine holds what it read for as long as the model is open, beside the weights that it packs in the first run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.facts.constants import Constant, constants_of
from edgeopt.system.machine.huge_pages import let_files_go
from edgeopt.system.machine.processor import cpu_architecture

_LEAST_BYTES = 64 * 1024
"""Smallest weights that are left in their file: a smaller copy is no burden."""
_READS_ANYWHERE = ("x86-64",)
"""Processors that read numbers at any place; elsewhere those inside a graph, which lie anywhere, may stay copies."""
_PARTS, _PART_BYTES = 16, 4096
"""Parts of a weight that are compared with its copy."""


class WeightsInFile:
    """Weights that an open model reads in its files. Keep it for as long as the compiled model: nothing else does."""

    def __init__(self, file: Path) -> None:
        """Read nothing yet; `file` is an ONNX model, with weights in it or beside it."""
        self._file = file
        self._mapped = dict[Path, NDArray[np.uint8]]()
        self._files = {file}
        """All files that the model's weights lie in."""
        self._fewest, self._most = 0, 0
        """Tokens of the runs so far."""

    def put_in(self, openvino: Any, model: Any) -> None:
        """Let a model that was read from the file use weights where they lie, in place of its copies.

        Args:
            openvino: The package.
            model: An `openvino.Model`; it is altered.
        """
        constants = {each.name: each for each in constants_of(self._file) if each.file or each.offset}
        self._files |= {self._place(each) for each in constants.values()}
        for node in model.get_ordered_ops():
            if node.get_type_name() != "Constant" or node.get_byte_size() < _LEAST_BYTES:
                continue
            stored = constants.get(node.get_friendly_name())
            if stored is None or (piece := self._piece(stored, node)) is None:
                continue
            tensor = openvino.Tensor(piece, [*node.shape], node.get_element_type())
            shared = openvino.op.Constant(tensor, shared_memory=True)
            shared.set_friendly_name(node.get_friendly_name())
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(shared.output(0))
        let_files_go(self._files)  # the reader's own mapping too

    def _place(self, stored: Constant) -> Path:
        """Return the file in which a constant lies."""
        return Path(os.path.normpath(self._file.parent / stored.file)) if stored.file else self._file

    def _piece(self, stored: Constant, node: Any) -> NDArray[np.uint8] | None:
        """Return the bytes of a constant in its file; None: the reader's copy stays."""
        path, size_bytes = self._place(stored), node.get_byte_size()
        is_aligned = stored.offset % node.get_element_type().size == 0 or cpu_architecture() in _READS_ANYWHERE
        try:
            if stored.size_bytes != size_bytes or not is_aligned or not _is_copy(path, stored.offset, node):
                return None
            if path not in self._mapped:
                # a copy on writing: OpenVINO takes no memory that is read only, and writes nothing
                self._mapped[path] = np.memmap(path, np.uint8, "c")
        except OSError:  # a limit of memory that may be written, or a file that is gone
            return None
        return self._mapped[path][stored.offset : stored.offset + size_bytes]

    def ran(self, tokens: int) -> None:
        """Drop from memory what a run of so many tokens has read of the files, where it may have packed weights.

        For more tokens than before, or fewer, the engine may pack them in another way.
        """
        if self._fewest <= tokens <= self._most:
            return
        self._fewest = min(tokens, self._fewest or tokens)
        self._most = max(tokens, self._most)
        let_files_go(self._files)

    def close(self) -> None:
        """Let the files go with the model, which was closed."""
        self._mapped.clear()


def _is_copy(path: Path, offset: int, node: Any) -> bool:
    """Return whether a constant has the bytes that lie in a file; they are read, as a mapping would hold them all."""
    copied = node.data.reshape(-1).view(np.uint8)
    with path.open("rb") as file:
        for begin in np.linspace(0, max(copied.size - _PART_BYTES, 0), _PARTS, dtype=np.int64):
            file.seek(offset + int(begin))
            if file.read(_PART_BYTES) != copied[begin : begin + _PART_BYTES].tobytes():
                return False
    return True
