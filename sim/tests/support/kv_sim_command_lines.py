"""What tests of command lines share."""

HASTY = "broken_connectors:Hasty"
"""A subject that fails soon."""

Result = tuple[int, str, str]
"""An exit code, and what was printed to both streams."""
