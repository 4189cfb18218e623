"""The engines that can drive a connector, by name: the built-in model, and what installed packages offer.

A package offers one as an entry point of the group ``kv_sim_engines``: a subclass of ``engine.engine.Engine``.
"""

from typing import Final

from kv_factory.registry import LazyRegistry
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.engine import Engine

ENGINES: Final = LazyRegistry("engine", "kv_sim_engines", (Engine,), {"vllm": "kv-vllm"})
ENGINES.register(BUILTIN_ENGINE, BuiltinEngine.__module__, BuiltinEngine.__name__)


def find_engine(name: str) -> type[Engine]:
    """The class of an engine; one that isn't known is a ``ConfigError`` with those that are."""
    found: type[Engine] = ENGINES.get(name).loaded
    return found
