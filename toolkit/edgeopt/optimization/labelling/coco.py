"""Pictures to label with boxes: a COCO file without boxes, which CVAT and Label Studio import."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.frames import Frames


def make_coco(frames: Frames, kept: Sequence[int], class_names: Sequence[str]) -> str:
    """Return the pictures to label and the classes, as COCO JSON.

    No box is proposed: a box that is there already is more often kept than it is right.

    Args:
        frames: All pictures.
        kept: Positions of those to label, in their random order.
        class_names: Of the model.
    """
    images = []
    for number, i in enumerate(kept, 1):
        picture: Frame = frames.picture(i)
        height, width = picture.shape[:2]
        images.append({"id": number, "file_name": frames.names[i], "height": height, "width": width})
    categories = [{"id": i, "name": name, "supercategory": ""} for i, name in enumerate(class_names)]
    return json.dumps({"images": images, "annotations": [], "categories": categories}, indent=1)
