"""Nets put together at random: whatever is kept, the result gives what the dense net gives without the rest."""

import numpy as np
from channel_nets import alike, ints, net, weights, without_reading
from fixture_models import numbers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgeopt.graph.groups import first_empty, keep_channels, trace
from edgeopt.graph.model import Model


class Builder:
    """A net that grows by one structure at a time at its end."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.constants: dict[str, np.ndarray] = {}
        self.tensors = [("x", 3)]
        self.conv("x", 3, 6)

    @property
    def end(self) -> tuple[str, int]:
        return self.tensors[-1]

    def add(self, op: str, channels: int, *, is_picture: bool = True) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {op}")
        if is_picture:
            self.tensors.append((name, channels))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def numbers(self, *shape: int) -> str:
        return self.constant(weights(len(self.constants), *shape))

    def conv(
        self, source: str, before: int, after: int, *, groups: int = 1, kernel: int = 1, is_picture: bool = True
    ) -> str:
        weight = self.numbers(after, before // groups, kernel, kernel)
        side = kernel // 2
        op = f"Conv <group={groups}, pads=[{side},{side},{side},{side}]> ({source}, {weight})"
        return self.add(op, after, is_picture=is_picture)

    # Structures

    def wide(self) -> None:
        name, count = self.end
        self.conv(name, count, int(self.rng.integers(2, 9)), kernel=int(self.rng.choice([1, 3])))

    def activation(self) -> None:
        name, count = self.end
        self.add(f"{self.rng.choice(['Relu', 'Sigmoid', 'Tanh', 'HardSwish', 'Softplus'])}({name})", count)

    def normalise(self) -> None:
        name, count = self.end
        scale, shift, mean = (self.constant(numbers(count, seed=i)) for i in range(3))
        variance = self.constant(np.abs(numbers(count)) + 1)
        self.add(f"BatchNormalization({name}, {scale}, {shift}, {mean}, {variance})", count)

    def slope(self) -> None:
        name, count = self.end
        self.add(f"PRelu({name}, {self.constant(numbers(count, 1, 1))})", count)

    def depthwise(self) -> None:
        name, count = self.end
        self.conv(name, count, count * int(self.rng.integers(1, 3)), groups=count, kernel=3)

    def grouped(self) -> None:
        name, count = self.end
        divisors = [one for one in range(2, count + 1) if count % one == 0]
        groups = int(self.rng.choice(divisors))
        self.conv(name, count, groups * 2, groups=groups)

    def residual(self) -> None:
        name, count = self.end
        middle = self.conv(name, count, 5, kernel=3)
        back = self.conv(self.add(f"Relu({middle})", 5), 5, count)
        self.add(f"Add({back}, {name})", count)

    def concat(self) -> None:
        name, count = self.end
        other, size = self.tensors[int(self.rng.integers(len(self.tensors)))]
        if size + count <= 24:
            self.add(f"Concat <axis=1> ({other}, {name})", size + count)

    def split(self) -> None:
        name, count = self.end
        first = int(self.rng.integers(1, count))
        left, right = f"l{len(self.lines)}", f"r{len(self.lines)}"
        self.lines.append(f"{left}, {right} = Split <axis=1> ({name}, {self.constant(ints(first, count - first))})")
        self.add(f"Concat <axis=1> ({right}, {left})", count)

    def part(self) -> None:
        name, count = self.end
        start = int(self.rng.integers(0, count - 1))
        size = int(self.rng.integers(2, count - start + 1))
        end = start + size
        start -= int(self.rng.choice([0, count]))  # counted from the end
        bounds = [self.constant(ints(one)) for one in (start, end, 1)]
        self.add(f"Slice({name}, {', '.join(bounds)})", size)

    def gate(self) -> None:
        name, count = self.end
        mean = self.add(f"GlobalAveragePool({name})", count, is_picture=False)
        squeezed = self.conv(mean, count, 3, is_picture=False)
        active = self.add(f"Relu({squeezed})", 3, is_picture=False)
        excited = self.conv(active, 3, count, is_picture=False)
        self.add(f"Mul({name}, {self.add(f'Sigmoid({excited})', count, is_picture=False)})", count)

    def scale(self) -> None:
        name, count = self.end
        self.add(f"Mul({name}, {self.constant(numbers(1, count, 1, 1))})", count)

    def pad(self) -> None:
        name, count = self.end
        if count <= 20:
            self.add(f"Pad({name}, {self.constant(ints(0, 1, 0, 0, 0, 1, 0, 0))})", count + 2)

    def columns(self) -> None:
        name, count = self.end
        flat = self.add(f"Reshape({name}, {self.constant(ints(1, count * 64))})", count, is_picture=False)
        product = self.add(f"MatMul({flat}, {self.numbers(count * 64, 4)})", 4, is_picture=False)
        shaped = self.add(f"Reshape({product}, {self.constant(ints(1, -1, 1, 1))})", 4, is_picture=False)
        self.add(f"Expand({shaped}, {self.constant(ints(1, 4, 8, 8))})", 4)

    def model(self) -> Model:
        name, count = self.end
        self.conv(name, count, 2)
        body = "\n".join(self.lines)
        end = self.tensors[-1][0]
        return net(f"{body}\ny = Identity({end})", "float[1,2,8,8] y", **self.constants)


STRUCTURES = sorted(
    {"wide", "activation", "normalise", "slope", "depthwise", "grouped", "residual", "concat", "split", "part", "gate"}
    | {"scale", "pad", "columns"}
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(st.sampled_from(STRUCTURES), min_size=1, max_size=7), st.integers(0, 99), st.data())
def test_any_choice_of_channels_that_is_legal(structures, seed, data):
    builder = Builder(seed)
    for one in structures:
        getattr(builder, one)()
    dense = builder.model()
    groups = trace(dense)
    keep = {}
    for group in groups.free:
        kept = data.draw(st.sets(st.integers(0, group.channels - 1), min_size=1, max_size=group.channels))
        keep[group.name] = np.array(sorted(kept))
    assume(not first_empty(groups, keep))
    alike(without_reading(dense, groups, keep), keep_channels(dense, groups, keep))
