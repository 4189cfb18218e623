"""A source of chance that tells what it was asked to weigh."""

from random import Random
from typing import Any


class Weighed(Random):
    """Writes down what is weighed first."""

    weighed: dict[Any, int] | None = None

    def choices(self, population: Any, weights: Any = None, **how: Any) -> Any:
        if self.weighed is None:
            self.weighed = dict(zip(population, weights, strict=True))
        return super().choices(population, weights, **how)
