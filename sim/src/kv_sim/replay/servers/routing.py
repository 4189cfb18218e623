"""The names of the ways to route requests to several servers.

* ``round-robin``: one after the other.
* ``session``: a session stays with the server that a hash of it chooses. A request of no session is one by itself.
* ``prefix``: the server that would have the least to compute with it, of equals the first.

What each does is in ``routers``.
"""

from enum import Enum
from typing import Final

from kv_api import ConfigError
from kv_api.errors import unknown_name


class Routing(Enum):
    """How a router chooses."""

    ROUND_ROBIN = "round-robin"
    SESSION = "session"
    PREFIX = "prefix"


USUAL: Final = Routing.ROUND_ROBIN
"""The default: what a plain load balancer does."""


def find_routing(name: str, option: str = "--routing") -> Routing:
    """The routing of a name; an unknown name is refused."""
    known = {one.value: one for one in Routing}
    if name not in known:
        raise ConfigError(f"{option}: {unknown_name('routing', name, known)}")
    return known[name]
