"""NanoDet and NanoDet-Plus by their authors' own code, on narrowed copies of their own configuration files.

    python benchmarks/heads/nanodet_family.py --checkout FOLDER            # recognised, and read as they read it
    python benchmarks/heads/nanodet_family.py --checkout FOLDER --store    # also into tests/heads

`--checkout`: https://github.com/RangiLyu/nanodet at commit 3cda376. `--zoo`: the folder `models/public` of the package
openvino-dev, which lists size and SHA-384 of 26 files of that commit: they are compared. `--first`: a folder with files
of earlier commits, which are laid over the checkout (README.md says which): the head before its outputs were joined.

The network is made by `build_model`, exported by `main` of `tools/export_onnx.py`, read by `get_bboxes` of the head up
to suppression. Weights are made here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import runpy
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from shared import Answer, Outputs, Reader, above, picture, run, spread

COMMIT = "3cda376ce0b237930933762e862a267319c06092"
LISTS = "nanodet-m-1.5x-416", "nanodet-plus-m-1.5x-416"
CONFIGS = {
    "NanoDetHead": "config/legacy_v0.x_configs/nanodet-m-1.5x-416.yml",
    "NanoDetPlusHead": "config/nanodet-plus-m-1.5x_416.yml",
}
SIZE, CLASSES, WIDTH = (64, 96), 5, 16


def folder_of(option: str) -> Path | None:
    """Return the folder that the command line names behind an option, and take both from it."""
    if option not in sys.argv:
        return None
    at = sys.argv.index(option)
    (folder,) = sys.argv[at + 1 : at + 2] or sys.exit(f"name a folder: {option} FOLDER")
    del sys.argv[at : at + 2]
    return Path(folder).absolute()


def check(checkout: Path, zoo: Path) -> None:
    """Say how many files of a checkout are those that openvino-dev lists; stop where one is another."""
    listed: dict[str, tuple[int, str]] = {}
    for name in LISTS:
        text = (zoo / name / "model.yml").read_text("utf-8")
        found = re.findall(rf"size: (\d+)\s+checksum: (\w+)\s+source: \S+/nanodet/{COMMIT}/(\S+)", text)
        listed |= {path: (int(size), digest) for size, digest, path in found}
    for path, wanted in listed.items():
        data = (checkout / path).read_bytes()
        if (len(data), hashlib.sha384(data).hexdigest()) != wanted:
            sys.exit(f"{path} is not the file of commit {COMMIT}")
    print(f"{len(listed)} files are, by size and SHA-384, those of commit {COMMIT}")


def narrowed(config: Path) -> dict[str, Any]:
    """Return a configuration file's content with the smallest backbone there is, a narrow neck and few classes."""
    written: dict[str, Any] = yaml.safe_load(config.read_text("utf-8"))
    arch = written["model"]["arch"]
    arch["backbone"] |= {"model_size": "0.5x", "pretrain": False}
    arch["fpn"] |= {"in_channels": [48, 96, 192], "out_channels": WIDTH}
    arch["head"] |= {"num_classes": CLASSES, "input_channel": WIDTH, "feat_channels": WIDTH}
    if "aux_head" in arch:
        arch["aux_head"] |= {"num_classes": CLASSES, "input_channel": 2 * WIDTH, "feat_channels": 2 * WIDTH}
    return written


def lively(net: Any) -> Any:
    """Return a network whose answers differ from cell to cell, by its last convolutions."""
    spread(net, gain=1.3)
    with torch.no_grad():
        maps = net.fpn(net.backbone(torch.from_numpy(picture((1, 3, *SIZE)))))
        for one, convolutions, last in zip(maps, net.head.cls_convs, net.head.gfl_cls, strict=True):
            for convolution in convolutions:
                one = convolution(one)
            answers = last(one)
            middle, gain = answers.mean(dim=(0, 2, 3)), 1.5 / answers.std(dim=(0, 2, 3))
            last.bias.copy_((last.bias - middle) * gain)
            last.bias[:CLASSES] -= 1.0
            last.weight.mul_(gain[:, None, None, None])
    return net


def choose(checkout: Path) -> None:
    """Import `nanodet` from a checkout, and of its `util` only what export and reading need.

    The rest of `util` trains, with a pytorch_lightning that no longer goes with the torch of today.
    """
    for name in [one for one in sys.modules if one.partition(".")[0] == "nanodet"]:
        del sys.modules[name]
    sys.path[:] = [str(checkout), *(one for one in sys.path if not (Path(one) / "nanodet" / "model").is_dir())]
    util: Any = types.ModuleType("nanodet.util")
    util.__path__ = [str(checkout / "nanodet" / "util")]
    sys.modules[util.__name__] = util
    for name in ("box_transform", "config", "misc"):
        part = importlib.import_module(f"nanodet.util.{name}")
        vars(util).update({key: one for key, one in vars(part).items() if not key.startswith("_")})
    util.Logger = lambda *_: types.SimpleNamespace(log=print)
    util.load_model_weight = lambda net, kept, _: net.load_state_dict(kept["state_dict"])
    util.overlay_bbox_cv = None


def made(checkout: Path, head: str) -> tuple[Path, Reader]:
    """Return what `tools/export_onnx.py` writes for a small configuration, and the head's own reading."""
    choose(checkout)
    from nanodet.model.arch import build_model
    from nanodet.util import cfg, load_config

    Path("small.yml").write_text(yaml.safe_dump(narrowed(checkout / CONFIGS[head])), "utf-8")
    load_config(cfg, "small.yml")
    net = lively(build_model(cfg.model))
    assert type(net.head).__name__ == head
    torch.save({"state_dict": net.state_dict()}, "small.ckpt")
    runpy.run_path(str(checkout / "tools" / "export_onnx.py"), run_name="script")["main"](
        cfg, "small.ckpt", "net.onnx", SIZE
    )

    def read(_: Outputs, given: np.ndarray) -> Answer:
        reading: Any = sys.modules[type(net.head).get_bboxes.__module__]
        reading.multiclass_nms = lambda boxes, scores, **_: (boxes, scores)  # before suppression
        with torch.no_grad():
            pixels = torch.from_numpy(given)
            raw = net(pixels)
            if isinstance(raw, torch.Tensor):  # as `post_process` does
                raw = raw.split([net.head.num_classes, 4 * (net.head.reg_max + 1)], dim=-1)
            ((boxes, scores),) = net.head.get_bboxes(*raw, {"img": pixels})
        sure, classes = scores[:, :-1].max(dim=1)
        return above(boxes.numpy(), sure.numpy(), classes.numpy())

    return Path("net.onnx"), read


def first(checkout: Path, files: Path) -> tuple[Path, Reader]:
    """NanoDet before its outputs were joined."""
    shutil.copytree(checkout, "checkout", ignore=shutil.ignore_patterns(".git", "demo*", "docs"))
    shutil.copytree(files, "checkout", dirs_exist_ok=True)
    return made(Path("checkout").absolute(), "NanoDetHead")


def _quiet(export: Callable[..., None], *given: Any, **named: Any) -> None:
    export(*given, **named | {"dynamo": False, "verbose": False})


def main() -> None:
    """Do what the command line says."""
    checkout, files, zoo = folder_of("--checkout"), folder_of("--first"), folder_of("--zoo")
    if checkout is None:
        sys.exit("name a checkout of https://github.com/RangiLyu/nanodet: --checkout FOLDER")
    if zoo:
        check(checkout, zoo)
    torch.onnx.export = functools.partial(_quiet, torch.onnx.export)
    families: dict[str, tuple[str, Callable[[], tuple[Path, Reader]]]] = {
        "nanodet": ("nanodet", lambda: made(checkout, "NanoDetHead")),
        "nanodet_plus": ("nanodet_plus", lambda: made(checkout, "NanoDetPlusHead")),
    }
    if files:
        families["nanodet_apart"] = ("nanodet", lambda: first(checkout, files))
    run(families)


if __name__ == "__main__":
    main()
