"""Seeds of histories that a test looks at: as many as the Hypothesis profile's thoroughness says."""

from hypothesis import settings

FULL = 100
"""Examples of the profile `ci`, with which a test looks at all that it asks for."""


def seeds(count: int, first: int = 0) -> range:
    """``count`` seeds, or fewer, but 3 at least, where the same tests only run once more."""
    share = min(FULL, settings().max_examples)
    return range(first, first + max(min(3, count), count * share // FULL))
