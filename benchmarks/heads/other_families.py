"""Detectors beside Ultralytics', each by its family's own exporter and code, as far as a package has it.

    python benchmarks/heads/other_families.py            # recognised, and read as the family reads it
    python benchmarks/heads/other_families.py --store    # also into tests/heads, with what the family finds

benchmarks/heads/README.md says for each family where its code is from, and with which versions the graphs were made.
All weights are made here: one row of random numbers again and again, so that a graph packs to a few KiB.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from shared import LEAST, Answer, Outputs, Reader, above, exported, picture, row_of, run, spread
from torch import nn


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


def blocks(*widths: tuple[int, int, int]) -> nn.Sequential:
    """Return depthwise and pointwise convolutions: (channels, channels, stride) each."""
    made: list[nn.Module] = []
    for given, wanted, stride in widths:
        made += [nn.Conv2d(given, given, 3, stride, 1, groups=given, bias=False), nn.BatchNorm2d(given), nn.ReLU()]
        made += [nn.Conv2d(given, wanted, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
    return nn.Sequential(*made)


def of_modelscope(folder: str) -> Any:
    """Return a function that imports modules of a folder in ModelScope's package, without the rest of that package."""
    (root,) = importlib.util.find_spec("modelscope").submodule_search_locations
    package = types.ModuleType(Path(folder).name)
    package.__path__ = [str(Path(root) / folder)]
    sys.modules[package.__name__] = package
    return lambda name: importlib.import_module(f"{package.__name__}.{name}")


def ultraface() -> tuple[Path, Reader]:
    """Linzaer's detector, version-slim: `convert_to_onnx.py`; `predict` of `run_video_face_detect_onnx.py`."""
    module = of_modelscope("models/cv/face_detection/ulfd_slim")
    module("vision.ssd.fd_config").define_img_size(128)
    net = module("vision.ssd.mb_tiny_fd").create_mb_tiny_fd(2, is_test=True, device="cpu")
    size = (96, 128)
    path = exported(spread(net), size, input_names=["input"], output_names=["scores", "boxes"])

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        boxes = outputs["boxes"][0] * np.array([size[1], size[0]] * 2, np.float32)
        return above(boxes, outputs["scores"][0, :, 1])

    return path, read


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
    """The part of an SSD before its last one."""

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


def transformers(kind: str) -> tuple[Path, Reader]:
    """DETR and RT-DETR of transformers, from small configurations; their image processors' own reading."""
    import transformers as t
    from transformers.models.detr.image_processing_detr import DetrImageProcessor
    from transformers.models.rt_detr.image_processing_rt_detr import RTDetrImageProcessor

    size, widths = (64, 96), {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
    shared = {"d_model": 16, "num_labels": 5, "decoder_ffn_dim": 16, "encoder_ffn_dim": 16, "decoder_layers": 2}
    shared |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1}
    if kind == "detr":
        backbone = t.ResNetConfig(**widths, layer_type="basic", out_features=["stage4"])
        config = t.DetrConfig(backbone_config=backbone, use_timm_backbone=False, num_queries=100, **shared)
        net, told = t.DetrForObjectDetection(config), DetrImageProcessor()
    else:
        stages = ["stage2", "stage3", "stage4"]
        config = t.RTDetrConfig(
            backbone_config=t.RTDetrResNetConfig(**widths, layer_type="basic", out_features=stages),
            encoder_in_channels=[16, 16, 16], encoder_hidden_dim=16, decoder_in_channels=[16, 16, 16], num_queries=40,
            decoder_n_points=2, num_denoising=0, **shared,
        )  # fmt: skip
        net, told = t.RTDetrForObjectDetection(config), RTDetrImageProcessor()
    spread(net, gain=2.0)
    path = exported(
        Both(net), size, input_names=["pixel_values"], output_names=["logits", "pred_boxes"], opset_version=17
    )

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        both = types.SimpleNamespace(**{name: torch.from_numpy(one) for name, one in outputs.items()})
        (found,) = told.post_process_object_detection(both, threshold=LEAST, target_sizes=[size])
        return {
            "boxes": found["boxes"].numpy(),
            "scores": found["scores"].numpy(),
            "classes": found["labels"].numpy(),
        }

    return path, read


class Both(nn.Module):
    """The two outputs that exporters write."""

    def __init__(self, net: nn.Module) -> None:
        """Take a network."""
        super().__init__()
        self.net = net

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and boxes."""
        made = self.net(pixel_values=pixel_values)
        return made.logits, made.pred_boxes


FAMILIES: Mapping[str, tuple[str, Callable[[], tuple[Path, Reader]]]] = {
    "retinaface": ("retinaface", retinaface),
    "ultraface": ("ultraface", ultraface),
    "dbnet_paddle": ("dbnet", paddle),
    "dbnet_doctr": ("dbnet_doctr", doctr),
    "ssd300": ("ssd300", ssd),
    "detr": ("detr", lambda: transformers("detr")),
    "rtdetr": ("rtdetr", lambda: transformers("rtdetr")),
    "torchvision_mask": ("torchvision_instances", lambda: torchvision("mask")),
    "torchvision_keypoint": ("torchvision_keypoints", lambda: torchvision("keypoint")),
}

if __name__ == "__main__":
    run(FAMILIES)
