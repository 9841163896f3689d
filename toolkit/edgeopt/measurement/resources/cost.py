"""What one inference costs, and how long a battery lasts. Pure arithmetic; it measures nothing.

The rate that divides the cost is the highest one that keeps the budget (open loop), not the closed loop's: a
device that is late earns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

_S_PER_HOUR = 3600.0
_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What owning and running a device costs, in any one currency."""

    price: float
    """Of the device."""
    life_h: float
    """Hours from purchase to disposal."""
    duty_ratio: float = 1.0
    """Share of its life in which it works, above 0 up to 1."""
    watts: float = 0.0
    """Mean power while it works."""
    price_per_kwh: float = 0.0
    operation_per_h: float = 0.0
    """Network, maintenance, licences."""

    def __post_init__(self) -> None:
        if self.life_h <= 0 or not 0 < self.duty_ratio <= 1:
            raise ValueError(f"need life_h above 0 and duty_ratio in 0..1, got {self.life_h}, {self.duty_ratio}")

    @property
    def per_s(self) -> float:
        """Of one working second."""
        hardware = self.price / (self.life_h * _S_PER_HOUR * self.duty_ratio)
        energy = self.watts * self.price_per_kwh / _J_PER_KWH
        return hardware + energy + self.operation_per_h / _S_PER_HOUR


@dataclass(frozen=True, slots=True)
class CloudCost:
    """A rented machine."""

    price_per_h: float

    @property
    def per_s(self) -> float:
        """Of one rented second."""
        return self.price_per_h / _S_PER_HOUR


@dataclass(frozen=True, slots=True)
class InferenceCost:
    """Cost at the rate that meets the budget; in the currency of the prices."""

    per_inference: float
    rate_per_s: float
    """The highest rate that keeps the budget."""

    @property
    def per_thousand(self) -> float:
        """Of 1000 inferences."""
        return self.per_inference * 1000

    def per_stream_hour(self, fps: float) -> float:
        """Of one camera for one hour; the device is shared by as many as it can serve."""
        return self.per_inference * fps * _S_PER_HOUR


def cost_per_inference(device: DeviceCost | CloudCost, rate_per_s: float) -> InferenceCost:
    """Return what one inference costs.

    ( price / (life_h * 3600 * duty) + watts * price_per_kwh / 3.6e6 + operation_per_h / 3600 ) / rate

    Args:
        device: Owned or rented.
        rate_per_s: The highest rate that keeps the budget, all streams together.

    Raises:
        ValueError: If the rate is not above zero: a device that never keeps the budget has no cost per inference.
    """
    if not rate_per_s > 0:
        raise ValueError(f"the rate must be above zero, got {rate_per_s}")
    return InferenceCost(device.per_s / rate_per_s, rate_per_s)


def battery_runtime_h(capacity_wh: float, idle_watts: float, net_j: float, rate_per_s: float) -> float:
    """Return the hours until a battery is empty: capacity / (idle power + energy per inference * rate).

    Args:
        capacity_wh: What the battery really gives, Wh.
        idle_watts: Power of the whole device while it waits, W.
        net_j: Energy of one inference above idle, J.
        rate_per_s: Inferences a second at the real duty cycle, 0 or more.

    Raises:
        ValueError: If nothing draws power.
    """
    watts = idle_watts + net_j * rate_per_s
    if not watts > 0:
        raise ValueError(f"the device must draw power, got {watts} W")
    return capacity_wh / watts
