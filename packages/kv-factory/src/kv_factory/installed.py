"""What the installed distributions offer: their entry points of one group.

``importlib.metadata`` takes longer to import than this whole package, so it is imported at the first lookup that
needs it.
"""

from typing import TYPE_CHECKING

from kv_api import ConfigError
from kv_factory.importing import Offer, Target

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def installed_offers(group: str) -> list[Offer]:
    """An offer for each entry point, in no order; nothing is imported."""
    from importlib.metadata import entry_points

    try:
        points = entry_points(group=group)
    except Exception as error:  # a file that somebody else installed
        raise ConfigError(f"entry points can't be read: {_culprit()}") from error
    return [Offer(point.name, Target.parse(point.value), f"from {_label(point.dist)}") for point in points]


def forget_files() -> None:
    """Drop what Python remembers of folders, so that what was installed since is seen."""
    from importlib import invalidate_caches

    invalidate_caches()


def _label(distribution: "Distribution | None") -> str:
    """Name and version. A distribution that lost its metadata has neither."""
    if distribution is None:
        return "an unknown distribution"
    try:
        metadata = distribution.metadata
    except Exception:  # noqa: BLE001 - whatever has become of the file, what it names can be used
        metadata = None
    known = [metadata[key] for key in ("Name", "Version") if metadata and key in metadata]
    return " ".join(known) or "an unnamed distribution"


def _culprit() -> str:
    from importlib.metadata import distributions

    for distribution in distributions():
        try:
            list(distribution.entry_points)
        except Exception:  # noqa: BLE001 - this is the one that is looked for, whatever it raises
            return f"those of {_label(distribution)} are malformed"
    return "something is wrong with what is installed"
