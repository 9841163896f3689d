"""The ranges that the quantizers at the ends of a model hold."""

from __future__ import annotations

from onnx import parser

from edgeopt.graph.model import Model
from edgeopt.optimization.deployment.recording import held_ranges

QDQ = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,4] x, float[1,4] free) => (float[1,4] y, float[1,4] sum)
<float s = {0.5}, uint8 z = {10}, float t = {0.25}, int8 m = {0},
 float[4] each = {1, 2, 3, 4}, int8[4] zeros = {0, 0, 0, 0}>
{
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  a = Relu(d)
  r = QuantizeLinear(a, t, m)
  y = DequantizeLinear(r, t, m)
  c = QuantizeLinear <axis = 1> (free, each, zeros)
  e = DequantizeLinear <axis = 1> (c, each, zeros)
  sum = Add(e, y)
}"""


def test_ranges_are_those_of_grids_of_one_scale():
    assert held_ranges(Model(parser.parse_model(QDQ), "net")) == {"x": (-5.0, 122.5), "y": (-32.0, 31.75)}


def test_an_input_that_is_read_in_float_too_is_held_whole():
    model = Model(parser.parse_model(QDQ.replace("Add(e, y)", "Add(e, x)")), "net")
    assert "x" not in held_ranges(model)


def test_numbers_are_followed_through_what_only_moves_them():
    turned = QDQ.replace(
        "q = QuantizeLinear(x, s, z)", "t0 = Transpose(x) t1 = Identity(t0) q = QuantizeLinear(t1, s, z)"
    )
    turned = turned.replace("y = DequantizeLinear(r, t, m)", "y0 = DequantizeLinear(r, t, m) y = Transpose(y0)")
    assert held_ranges(Model(parser.parse_model(turned), "net")) == {"x": (-5.0, 122.5), "y": (-32.0, 31.75)}
