"""Names that are ours in payloads which travel between processes."""

from typing import Final

QUARANTINED: Final = "quarantined"
"""The entry of a MultiConnector's stats that lists who was switched off; no child may have this name."""

CHILD_LABEL: Final = "child"
"""The Prometheus label that has a child's name."""
