"""Prices of a machine as they are given, which go together, and what a second of it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.resources.cost import cloud_per_s, device_per_s
from edgeopt.system.declared.options import OptionGroup, Syntax, option
from edgeopt.system.toml import Within

LIFE_YEARS = 5.0
"""How long a device works where nobody says."""
_HOURS_A_YEAR = 8766.0
PRICE = Within(0, 1e12)
CURRENCY = "in the currency of the prices"
"""Words behind every amount: prices are numbers, and no conversion is made."""
COST = OptionGroup("cost", "Energy and cost", "power, and what an answer costs")


@dataclass(frozen=True)
class Prices:
    """Prices of the machine that answers, in any currency."""

    device_price: Annotated[float, PRICE] | None = option(
        None,
        "Price of the device, in any currency: the cost of an answer is shown.",
        group=COST,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
    )
    """Price of the device, in any currency, for the cost of an answer."""
    life_years: Annotated[float, PRICE] | None = option(
        None,
        "Years that the device works.",
        group=COST,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
        shown=f"{LIFE_YEARS:g}",
    )
    """How long the device works; None: `LIFE_YEARS`."""
    watts: Annotated[float, PRICE] | None = option(
        None,
        "Power of the device in watts.",
        group=COST,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
        shown="as measured by --energy",
    )
    """Power of the device; None: as measured."""
    kwh_price: Annotated[float, PRICE] | None = option(
        None, "Price of a kWh of electricity.", group=COST, syntax=Syntax.NUMBER, least=0, above=True
    )
    """Price of a kWh of electricity."""
    cloud_price: Annotated[float, PRICE] | None = option(
        None,
        "Price of an hour of a rented machine, in place of --device-price.",
        group=COST,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
    )
    """Price of one hour of a rented machine."""

    def contradictions(self) -> Iterator[tuple[bool, str, str]]:
        """Yield what would be wrong, whether it is, and what to write instead."""
        device, cloud = self.device_price is not None, self.cloud_price is not None
        owned = {"--life-years": self.life_years, "--watts": self.watts, "--kwh-price": self.kwh_price}
        given = [name for name, value in owned.items() if value is not None]
        yield device and cloud, "--device-price and --cloud-price are two machines", "give one of them"
        yield bool(given) and not device, f"{', '.join(given)} belong to a device's price", "add --device-price"
        negative = [price for price in (*owned.values(), self.device_price, self.cloud_price) if price and price < 0]
        yield bool(negative) or self.life_years == 0, "prices, watts and years are above zero", "correct them"

    def per_s(self, measured_watts: float | None = None) -> float | None:
        """Return what a second of the machine costs; None where no price was given.

        Args:
            measured_watts: Mean power of the run, where a meter was read; used unless watts were given.

        Raises:
            EdgeoptError: If prices contradict each other.
        """
        for is_wrong, problem, remedy in self.contradictions():
            if is_wrong:
                raise EdgeoptError(problem, remedy=remedy)
        if self.cloud_price is not None:
            return cloud_per_s(self.cloud_price)
        if self.device_price is None:
            return None
        return device_per_s(
            self.device_price,
            (self.life_years or LIFE_YEARS) * _HOURS_A_YEAR,
            self.watts if self.watts is not None else measured_watts or 0.0,
            self.kwh_price or 0.0,
        )
