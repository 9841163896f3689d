"""The Ultralytics family by its own exporter, from its own configurations at small width, with random weights.

    python benchmarks/heads/ultralytics_family.py            # every model whole: recognised, read as by Ultralytics
    python benchmarks/heads/ultralytics_family.py --store    # heads alone into tests/heads, with what is found

Needs `pip install ultralytics` (AGPL-3.0) beside edgeopt's own packages. The graphs in `tests/heads` hold random
weights made here, mostly zeros, so that they pack well; nothing of Ultralytics' weights is in them.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false"}

import numpy as np
import torch
import ultralytics
from ultralytics import RTDETR, YOLO
from ultralytics.models.rtdetr.predict import RTDETRPredictor
from ultralytics.utils import YAML
from ultralytics.utils.nms import non_max_suppression
from ultralytics.utils.ops import process_mask

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "toolkit"))

from edgeopt.errors import EdgeoptError  # noqa: E402
from edgeopt.executors import SessionOptions  # noqa: E402
from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: E402
from edgeopt.graph.model import Model, load_model  # noqa: E402
from edgeopt.recipes.inputs.preprocess import Geometry  # noqa: E402
from edgeopt.recipes.recognise import choose_recipe  # noqa: E402
from edgeopt.tasks import make_task  # noqa: E402

HEADS = REPOSITORY / "tests" / "heads"
SIZE = (64, 96)
LEAST, OVERLAP, MOST = 0.25, 0.45, 100
FOLDER = Path(ultralytics.__file__).parent / "cfg" / "models"
FAMILY = {
    "v5u": ("v5/yolov5.yaml", "yolov8"),
    "v8": ("v8/yolov8.yaml", "yolov8"),
    "11": ("11/yolo11.yaml", "yolov8"),
    "12": ("12/yolo12.yaml", "yolov8"),
    "v10": ("v10/yolov10n.yaml", "yolov10"),
    "v10 as v8": ("v10/yolov10n.yaml", "yolov8"),
    "26": ("26/yolo26.yaml", "yolov10"),
    "26 as v8": ("26/yolo26.yaml", "yolov8"),
    "v8-seg": ("v8/yolov8-seg.yaml", "yolov8_segment"),
    "11-seg": ("11/yolo11-seg.yaml", "yolov8_segment"),
    "12-seg": ("12/yolo12-seg.yaml", "yolov8_segment"),
    "26-seg": ("26/yolo26-seg.yaml", "yolo26_segment"),
    "26-seg as v8": ("26/yolo26-seg.yaml", "yolov8_segment"),
    "v8-pose": ("v8/yolov8-pose.yaml", "yolov8_pose"),
    "11-pose": ("11/yolo11-pose.yaml", "yolov8_pose"),
    "12-pose": ("12/yolo12-pose.yaml", "yolov8_pose"),
    "26-pose": ("26/yolo26-pose.yaml", "yolo26_pose"),
    "26-pose as v8": ("26/yolo26-pose.yaml", "yolov8_pose"),
    "rtdetr": ("rt-detr/rtdetr-l.yaml", "rtdetr_rows"),
    "v8-obb": ("v8/yolov8-obb.yaml", ""),
    "26-obb": ("26/yolo26-obb.yaml", ""),
}
"""Configuration, and the recipe that is to be chosen; none: it is to be refused."""
BACKBONE = [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "Conv", [8, 3, 2]], *[[-1, 1, "Conv", [16, 3, 2]]] * 3]
STORED: Mapping[str, tuple[str, list[Any], dict[str, Any]]] = {
    "v8_detect": ("yolov8", ["Detect", ["nc"]], {}),
    "v10_detect": ("yolov10", ["v10Detect", ["nc"]], {}),
    "yolo26_detect": ("yolov10", ["Detect", ["nc"]], {"reg_max": 1, "end2end": True}),
    "v8_segment": ("yolov8_segment", ["Segment", ["nc", 32, 16]], {}),
    "yolo26_segment": ("yolo26_segment", ["Segment26", ["nc", 32, 16]], {"reg_max": 1, "end2end": True}),
    "v8_pose": ("yolov8_pose", ["Pose", ["nc", [5, 3]]], {"kpt_shape": [5, 3]}),
    "yolo26_pose": ("yolo26_pose", ["Pose26", ["nc", [17, 3]]], {"kpt_shape": [17, 3], "reg_max": 1, "end2end": True}),
    "rtdetr_ultralytics": ("rtdetr_rows", ["RTDETRDecoder", ["nc", 32, 20, 4, 4, 1, 64]], {}),
    "v8_obb": ("", ["OBB", ["nc", 1]], {}),
}


def main() -> None:
    """Do what the command line says; names of models, without `--store`, choose among them."""
    torch.set_num_threads(1)
    store = "--store" in sys.argv
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, recipe, path in _heads() if store else _family():
            model = load_model(path)
            try:
                told = _compare(model, recipe, HEADS / name if store else None)
            except (AssertionError, EdgeoptError) as error:
                told, failed = f"FAILED: {str(error).strip()}", failed + 1
            if store:
                (HEADS / f"{name}.onnx.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
                told += f", {(HEADS / f'{name}.onnx.gz').stat().st_size / 1024:.0f} KiB"
            print(f"{name:<16}{told}", flush=True)
    sys.exit(failed > 0)


def _family() -> Iterator[tuple[str, str, Path]]:
    asked = [one for one in sys.argv[1:] if not one.startswith("-")]
    for name, (file, recipe) in FAMILY.items():
        if asked and name not in asked:
            continue
        written = YAML.load(FOLDER / file if (FOLDER / file).is_file() else next(FOLDER.rglob(Path(file).name)))
        if name != "rtdetr":
            written["scales"] = {"n": [0.33, 0.25 if "12" in name else 0.125, 256]}
        ends = None if "as v8" in name or not written.get("end2end", "v10" in name) else False
        yield name, recipe, _exported(name, written, nms=ends)


def _heads() -> Iterator[tuple[str, str, Path]]:
    HEADS.mkdir(exist_ok=True)
    for name, (recipe, (head, arguments), others) in STORED.items():
        written = {"nc": 3, "backbone": BACKBONE, "head": [[[2, 3, 4], 1, head, arguments]], **others}
        ends = False if others.get("end2end") or head == "v10Detect" else None
        yield name, recipe, _exported(name, written, nms=ends)


def _exported(name: str, written: Mapping[str, Any], nms: bool | None) -> Path:
    """Return the ONNX file of a configuration with random weights whose answers differ from cell to cell."""
    torch.manual_seed(0)
    path = Path(f"yolo-{name.replace(' ', '-')}.yaml").absolute()
    YAML.save(path, dict(written))
    net = (RTDETR if "rtdetr" in name else YOLO)(str(path))
    with torch.no_grad():
        for module in net.model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)) and module.weight.requires_grad:
                fan = module.weight[0].numel()
                spread = torch.randn_like(module.weight) * (torch.rand_like(module.weight) < 0.15)
                module.weight.copy_((spread * 3.5 / fan**0.5 * 32).round() / 32)
                if module.bias is not None:
                    module.bias.copy_(torch.randn_like(module.bias).mul(8).round() / 16)
        head = net.model.model[-1]
        # distances that are no distribution must be above zero: boxes have a size
        for name in ("cv2", "one2one_cv2") if getattr(head, "reg_max", 0) == 1 else ():
            for branch in getattr(head, name, None) or ():
                branch[-1].weight.mul_(0.25)
                branch[-1].bias.copy_(branch[-1].bias + 2)
    size = list(SIZE)
    return Path(net.export(format="onnx", imgsz=size, simplify=False, opset=17, nms=nms, verbose=False))


def _compare(model: Model, recipe: str, stored: Path | None) -> str:
    """Return what was found; raise AssertionError where edgeopt reads a model in another way than Ultralytics does."""
    if not recipe:
        try:
            choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
        except EdgeoptError as error:
            return f"refused: {error.problem}"
        raise AssertionError("it is not refused")
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == recipe, f"recipe {choice.recipe.name} in place of {recipe}"
    picture = np.random.default_rng(1).uniform(0, 1, model.inputs[0].shape).astype(np.float32)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({"images": picture})
    session.close()
    wanted = _as_ultralytics(outputs, model.metadata)
    task = make_task(_bound(choice.recipe), model.inputs, model.outputs, evaluating=False)
    found = task.postprocess(outputs, Geometry.of_input(SIZE))
    assert len(found) == len(wanted["scores"]) >= 5, f"{len(found)} in place of {len(wanted['scores'])}"
    for name in ("boxes", "scores", "classes", "points"):
        if name in wanted:
            np.testing.assert_allclose(getattr(found, name), wanted[name], rtol=1e-4, atol=1e-2, err_msg=name)
    told = f"{recipe}: {len(found)} as found by Ultralytics"
    if "masks" in wanted:
        differ = sum(np.count_nonzero(found.mask(i) != one) for i, one in enumerate(wanted["masks"]))
        assert differ <= len(found), f"{differ} pixels of masks"
        told += f", {differ} of {wanted['masks'].sum():.0f} pixels of masks differ"
        wanted["masks"] = np.packbits(wanted["masks"])
    if stored:
        np.savez_compressed(stored.with_suffix(".npz"), **wanted)
    return told


def _bound(recipe: Any) -> Any:
    from dataclasses import replace

    numbers = replace(recipe.postprocess, score_threshold=LEAST, iou_threshold=OVERLAP, max_detections=MOST)
    return replace(recipe, postprocess=numbers)


def _as_ultralytics(outputs: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return boxes, scores, classes, and points or masks, in the order and by the functions of Ultralytics."""
    raw = {name: torch.from_numpy(one) for name, one in outputs.items()}
    rows = next(one for one in raw.values() if one.ndim == 3)
    ends = metadata.get("end2end") == "True"
    classes = len(eval(metadata["names"]))
    if metadata["head"] == "RTDETRDecoder":
        asked = SimpleNamespace(conf=LEAST, classes=None, max_det=MOST)
        itself = SimpleNamespace(args=asked, batch=[["picture"]], model=SimpleNamespace(names=eval(metadata["names"])))
        (told,) = RTDETRPredictor.postprocess(itself, rows, None, [np.zeros((*SIZE, 3), np.uint8)])
        boxes = told.boxes.xyxy.clone()
        boxes[:, 0::2].clamp_(0, SIZE[1])
        boxes[:, 1::2].clamp_(0, SIZE[0])
        return {"boxes": boxes.numpy(), "scores": told.boxes.conf.numpy(), "classes": told.boxes.cls.long().numpy()}
    sys.modules.pop("torchvision", None)  # Ultralytics then suppresses by itself, whatever build of torchvision is here
    limits = {"max_det": MOST, "max_wh": 512}  # 512: what keeps classes apart rounds places by less
    kept = non_max_suppression(rows, LEAST, OVERLAP, nc=0 if ends else classes, end2end=ends, **limits)[0]
    boxes = kept[:, :4].clone()
    boxes[:, 0::2].clamp_(0, SIZE[1])
    boxes[:, 1::2].clamp_(0, SIZE[0])
    found = {"boxes": boxes, "scores": kept[:, 4], "classes": kept[:, 5].long()}
    if metadata["task"] == "pose":
        found["points"] = kept[:, 6:].reshape(len(kept), *eval(metadata["kpt_shape"]))
    if metadata["task"] == "segment":
        planes = next(one for one in raw.values() if one.ndim == 4)[0]
        found["masks"] = process_mask(planes, kept[:, 6:], boxes, SIZE, upsample=True).bool()
    return {name: one.numpy() for name, one in found.items()}


if __name__ == "__main__":
    main()
