"""The sketch that a watch takes: that of the bundle, or one that was learned in the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.drift.sketch import Sketch, read_sketch
from edgeopt.runtime.drift.state import OF_BUNDLE

NONE: Final = "none"


def sketch_for(bundle: Bundle, name: str) -> Sketch | None:
    """Return a sketch.

    Args:
        bundle: Of the model.
        name: `bundle`, `none`, or the path of a file.

    Returns:
        None: frames are compared with nothing.

    Raises:
        InvalidFileError: If the file is no sketch.
        EdgeoptError: If the bundle keeps none.
    """
    if name == NONE:
        return None
    if name != OF_BUNDLE:
        return read_sketch(Path(name))
    if bundle.sketch is None:
        raise EdgeoptError(
            "nothing is known of the frames that are usual: a bundle keeps that if optimize had --calib of 32 frames",
            remedy="learn it from frames of the field: edgeopt run BUNDLE SOURCE --learn-drift FILE",
        )
    sketch = read_sketch(bundle.folder / bundle.sketch.file)
    # The name is that of the first model; in a bundle for several targets that is called otherwise.
    return replace(sketch, artefact=bundle.artefacts[0].file) if bundle.standing else sketch
