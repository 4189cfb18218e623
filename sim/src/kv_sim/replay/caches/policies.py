"""Names of policies as people type them."""

from typing import Final

from kv_offload_cpu.policy import POLICIES

USUAL_POLICY: Final = "lru"
"""The default policy of host memory."""
ALL_POLICIES: Final = tuple(sorted(POLICIES, key=lambda name: (name != USUAL_POLICY, name)))
"""All policies of host memory; the default first."""

_ALL: Final = "all"


def parse_policies(text: str) -> list[str]:
    """One name, or several with commas between them; ``all`` is each of them. Each is there once."""
    names = [name.strip() for name in text.split(",")]
    return list(dict.fromkeys(one for name in names for one in (ALL_POLICIES if name == _ALL else (name,))))
