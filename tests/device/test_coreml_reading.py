"""The reading of Core ML programs against programs that Apple's converter writes of PyTorch: what torch computes.

Our own packages are checked by this reading; so it is held to another writer, by the same documentation.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.coreml import EXECUTOR
from edgeopt.executors.coreml.reading.ops.resize import places_between

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

LAYERS = {
    "convolution": lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1, dilation=2),
    "convolution of groups": lambda: nn.Conv2d(6, 6, 3, groups=3, padding=(0, 2), bias=False),
    "transposed convolution": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1),
    "transposed convolution of groups": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2),
    "transposed convolution, longer": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
    "largest of windows": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "mean of windows": lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "mean of windows and padding": lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=True),
    "batch": lambda: nn.Sequential(nn.BatchNorm2d(6), nn.ReLU6()),
    "layer": lambda: nn.LayerNorm((9, 10)),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
    "activations": lambda: nn.Sequential(nn.SiLU(), nn.GELU(), nn.LeakyReLU(0.2), nn.ELU(), nn.Softplus()),
    "more activations": lambda: nn.Sequential(nn.GELU(approximate="tanh"), nn.Hardsigmoid(), nn.Mish(), nn.PReLU(6)),
    "smaller pictures": lambda: nn.Upsample(size=(4, 7), mode="bilinear", align_corners=False),
    "halfway between pixels": lambda: nn.Upsample(size=(13, 7), mode="bilinear", align_corners=False),
    "corners kept": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    "nearest pixels": lambda: nn.Upsample(scale_factor=2, mode="nearest"),
    "pixels of channels": lambda: nn.Sequential(nn.Conv2d(6, 8, 1), nn.PixelShuffle(2)),
    "reflected": lambda: nn.ReflectionPad2d((1, 2, 2, 1)),
    "repeated edges": lambda: nn.ReplicationPad2d(2),
    "product": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(90, 5), nn.Softmax(-1)),
    "log of a softmax": lambda: nn.LogSoftmax(1),
}
FUNCTIONS = {
    "best": lambda x: x.topk(3, dim=1)[0] + x.topk(3, dim=1)[1],
    "place of the largest": lambda x: x.argmax(2).float(),
    "parts": lambda x: torch.cat([part * 2 for part in x.split([2, 4], 1)][::-1], 1)[:, 1:, ::2, 3:],
    "elements": lambda x: torch.gather(x, 3, x.topk(2, dim=3)[1]),
    "sums": lambda x: x.sum((2, 3)) + x.mean((2, 3)) - x.amax((2, 3)) + x.norm(dim=(2, 3)),
    "channels shuffled": lambda x: x.view(1, 2, 3, 9, 10).transpose(1, 2).reshape(1, 6, 9, 10),
    "backwards": lambda x: x.flip(2).repeat(1, 2, 1, 1),
    "comparisons": lambda x: torch.where(x > 0.3, x.exp(), x.abs().sqrt()).clamp(-0.5, 1.5),
    "products of tensors": lambda x: x @ x.transpose(2, 3) / 3.0,
    "at places": lambda x: functional.grid_sample(x, x[:, :4, :, :2].permute(0, 2, 1, 3) / 3, align_corners=False),
    "quotients": lambda x: x / (x.abs() + 1) - torch.rsqrt(x.abs() + 0.5) + torch.floor(x) * torch.sign(x),
}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """coremltools collects garbage after each conversion; what lives on needs no looking at."""
    from edgeopt.executors.coreml.loading import coremltools

    coremltools()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", [*LAYERS, *FUNCTIONS])
def test_a_program_of_apples_converter_is_read_as_torch_computes_it(name, tmp_path):
    from edgeopt.executors.coreml.loading import coremltools, target
    from edgeopt.system.processes.quiet import quiet_thread

    torch.manual_seed(0)
    network = (LAYERS[name]() if name in LAYERS else Function(FUNCTIONS[name])).eval()
    for normed in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        normed.running_mean.normal_()
        normed.running_var.uniform_(0.5, 2)
    x = torch.randn(1, 6, 9, 10)
    package = coremltools()
    with quiet_thread(), torch.no_grad():
        expected = network(x).numpy()
        converted = package.convert(
            torch.jit.trace(network, x),
            inputs=[package.TensorType("x", x.shape)],
            outputs=[package.TensorType("y")],
            convert_to="mlprogram",
            compute_precision=package.precision.FLOAT32,
            minimum_deployment_target=target(),
            skip_model_load=True,
        )
        converted.save(str(tmp_path / "torch.mlpackage"))
    actual = EXECUTOR.open(tmp_path / "torch.mlpackage", SessionOptions()).run({"x": x.numpy()})["y"]
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("mode", "after", "places"),
    [
        ("UNALIGN_CORNERS", 5, [0.0, 0.1, 0.5, 0.9, 1.0]),
        ("STRICT_ALIGN_CORNERS", 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("DEFAULT", 5, [0.0, 0.4, 0.8, 1.0, 1.0]),
        ("UNALIGN_CORNERS", 6, [0.0, 0.0, 1 / 3, 2 / 3, 1.0, 1.0]),
        ("DEFAULT", 6, [0.0, 1 / 3, 2 / 3, 1.0, 1.0, 1.0]),
    ],
)
def test_pixels_are_read_where_apple_says(mode, after, places):
    """The examples in the notes of coremltools' `resize_bilinear`."""
    np.testing.assert_allclose(places_between(mode, 2, after), places, atol=1e-6)
