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


class Asked(Random):
    """Writes down all that it is asked, and answers with the ``nth`` of what there is, or with the next chance."""

    def __init__(self, *chances: float, nth: int = 0) -> None:
        super().__init__(0)
        self.asked: list[tuple[Any, ...]] = []
        self._nth, self._chances = nth, iter(chances)

    def choice(self, seq: Any) -> Any:
        self.asked.append(("choice", *seq))
        return seq[self._nth % len(seq)]

    def choices(self, population: Any, weights: Any = None, **how: Any) -> Any:
        assert not how
        self.asked.append(("choices", dict(zip(population, weights, strict=True))))
        return [population[self._nth % len(population)]]

    def randint(self, a: int, b: int) -> int:
        self.asked.append(("randint", a, b))
        return a + self._nth % (b - a + 1)

    def random(self) -> float:
        """The next chance; one that nothing is done for where there is none."""
        self.asked.append(("random",))
        return next(self._chances, 0.999)
