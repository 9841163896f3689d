"""YOLOX and YOLOv5 by the export scripts of their own source archives, against their own reading of outputs.

    pip download --no-deps --no-build-isolation --no-binary :all: yolox==0.3.0 yolov5==7.0.14   # and unpack both
    python benchmarks/heads/yolox_and_yolov5.py --sources FOLDER            # FOLDER/yolox-0.3.0, FOLDER/yolov5-7.0.14
    python benchmarks/heads/yolox_and_yolov5.py --sources FOLDER --store    # also into tests/heads

YOLOX: `tools/export_onnx.py` on an experiment file, as it stands and with `--decode_in_inference`; `demo_postprocess`
and `postprocess`. YOLOv5: `export.py` on a narrowed `yolov5n.yaml`; `non_max_suppression`. Both scripts were written
for the exporter of TorchScript, and for a `torch.load` that takes whole networks: both are asked for here.
benchmarks/heads/README.md says with which versions the graphs were made.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from shared import LEAST, Answer, Outputs, Reader, above, picture, run, spread
from torch import nn

SIZE, CLASSES = (64, 96), 3
EXPERIMENT = """
from yolox.exp import Exp as Base

class Exp(Base):
    def __init__(self):
        super().__init__()
        self.depth, self.width, self.num_classes, self.test_size, self.exp_name = 0.33, 0.0625, 3, (64, 96), "small"
"""


def sources() -> Path:
    """Return the folder that the command line names, and leave the rest of the line."""
    at = sys.argv.index("--sources") if "--sources" in sys.argv else len(sys.argv)
    (folder,) = sys.argv[at + 1 : at + 2] or sys.exit("name the folder of the unpacked archives: --sources FOLDER")
    del sys.argv[at : at + 2]
    return Path(folder).absolute()


def settled(net: nn.Module) -> nn.Module:
    """Return a network whose normalisations fit one picture, so that answers differ from cell to cell."""
    spread(net, gain=1.6)
    layers = [one for one in net.modules() if isinstance(one, nn.BatchNorm2d)]
    for one in layers:
        one.momentum = 1.0
        one.train()
    with torch.no_grad():
        net(torch.from_numpy(picture((1, 3, *SIZE))))
    return net.eval()


def corners(middles_and_sizes: np.ndarray) -> np.ndarray:
    """Return corners of (n, 4) centre and size."""
    middles, sizes = middles_and_sizes[:, :2], middles_and_sizes[:, 2:]
    return np.concatenate([middles - sizes / 2, middles + sizes / 2], axis=1)


def yolox(folder: Path, options: Sequence[str]) -> tuple[Path, Reader]:
    """Megvii's detector, narrow."""
    sys.path.insert(0, str(folder))
    from yolox.exp import get_exp
    from yolox.utils import demo_postprocess, postprocess

    Path("small.py").write_text(EXPERIMENT, "utf-8")
    net = settled(get_exp("small.py", None).get_model().eval())
    for one in [*net.head.cls_preds, *net.head.obj_preds]:
        one.bias.data.fill_(1.0)
    for one in net.head.reg_preds:  # boxes stay near their cells, as those of trained networks do
        one.weight.data.mul_(0.05)
    torch.save({"model": net.state_dict()}, "small.pth")
    sys.argv = ["export_onnx.py", "-f", "small.py", "-c", "small.pth", "--no-onnxsim", *options]
    runpy.run_path(str(folder / "tools" / "export_onnx.py"), run_name="__main__")

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        rows = outputs["output"].copy()
        if not options:
            rows = demo_postprocess(rows, SIZE)
            scores = rows[0, :, 4:5] * rows[0, :, 5:]
            return above(corners(rows[0, :, :4]), scores.max(1), scores.argmax(1))
        (found,) = postprocess(torch.from_numpy(rows), CLASSES, conf_thre=LEAST, nms_thre=1.0)
        return above(found[:, :4].numpy(), (found[:, 4] * found[:, 5]).numpy(), found[:, 6].long().numpy())

    return Path("yolox.onnx"), read


def yolov5(folder: Path) -> tuple[Path, Reader]:
    """The anchor-based head of YOLOv5, v7.0 of the repository as the package `yolov5` carries it."""
    import huggingface_hub.errors

    sys.modules["huggingface_hub.utils._errors"] = huggingface_hub.errors  # where the package looks for them
    sys.path.insert(0, str(folder))
    import yaml
    from yolov5.export import run as export
    from yolov5.models.yolo import Model
    from yolov5.utils.general import non_max_suppression

    written = yaml.safe_load((folder / "yolov5" / "models" / "yolov5n.yaml").read_text("utf-8"))
    Path("small.yaml").write_text(yaml.safe_dump(written | {"width_multiple": 0.0625}), "utf-8")
    net = settled(Model("small.yaml", nc=CLASSES).eval())
    for one in net.model[-1].m:
        one.bias.data.fill_(1.0)
    torch.save({"model": net, "ema": None}, "small.pt")
    export(weights=str(Path("small.pt").absolute()), imgsz=SIZE, include=("onnx",), opset=12)

    def read(outputs: Outputs, _: np.ndarray) -> Answer:
        rows = torch.from_numpy(outputs["output0"].copy())
        (found,) = non_max_suppression(rows, LEAST, iou_thres=1.0, max_det=9000)
        return above(found[:, :4].numpy(), found[:, 4].numpy(), found[:, 5].long().numpy())

    return Path("small.onnx"), read


if __name__ == "__main__":
    torch.onnx.export = torch.onnx._export = functools.partial(torch.onnx.export, dynamo=False)
    torch.load = functools.partial(torch.load, weights_only=False)
    FOLDER = sources()
    run(
        {
            "yolox": ("yolox", lambda: yolox(FOLDER / "yolox-0.3.0", [])),
            "yolox_decoded": ("yolox", lambda: yolox(FOLDER / "yolox-0.3.0", ["--decode_in_inference"])),
            "yolov5": ("yolov5", lambda: yolov5(FOLDER / "yolov5-7.0.14")),
        }
    )
