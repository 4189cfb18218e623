"""What a connector's objects hold when requests have come and gone: more of these may not leave more.

A connector that never lets go of something about each request gets bigger, and slower, with every day that a
server runs, and no single history shows it. What can become more is counted: entries of lists, dicts and the like,
objects, long texts and arrays, each under the path to it from the connector. What the engine handed over isn't
looked into, nor what functions and classes hold.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache, partial
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from kv_sim.checkers.conservation import slots_of
from kv_sim.growth.metered import MakeWorld

Things: TypeAlias = Counter[str]
"""How many there are, by the way to them, which names no keys and places."""
Inside: TypeAlias = Iterator[tuple[Any, str]]
"""What is in a value, and the way to it."""

ROUNDS: Final = (8, 32, 128)
"""So many of them come and go."""
MOST_LEFT: Final = 0.9
"""So many things each round may leave in one place. Who leaves one leaves it each time."""

_BLOCKS: Final = 8
"""Of the one prompt that all requests have."""
_TEXT_BYTES: Final = 64
"""So many bytes of a text or of an array are one thing: names and hashes are shorter."""
_MOST_PARTS: Final = 12
"""Of a way. Nodes that hold each other have no end."""

_PLAIN: Final = (int, float, complex, type(None), type, ModuleType, BuiltinFunctionType, Enum)
_FOREIGN: Final = ("kv_sim.", "logging", "threading", "concurrent.", "weakref", "_thread", "_queue", "ctypes")
_OURS: Final = ("kv_sim.examples", "kv_sim.zoo")
"""Connectors that the testbed brings along."""
_SAYS_NOTHING: Final = ("abc", "builtins", "collections", "typing")
"""Modules of bases that anything may have."""


class Kept(NamedTuple):
    """What one side of a connector holds after each number of rounds."""

    side: str
    things: Mapping[int, Things]

    @property
    def grows_at(self) -> str:
        """Where most of it is left."""
        return max(sorted(self.things[max(self.things)]), key=self._growth_at, default="")

    @property
    def growth(self) -> float:
        """How many things each round left there."""
        return self._growth_at(self.grows_at)

    def _growth_at(self, way: str) -> float:
        """How many things each round left there, at least. What is full at some time doesn't go on growing."""
        pairs = pairwise(self.things.items())
        return min((after[way] - before[way]) / (more - few) for (few, before), (more, after) in pairs)


def measure_kept(make: MakeWorld) -> list[Kept]:
    """What each side holds after all numbers of rounds."""
    held = {rounds: _kept_after(make, rounds) for rounds in ROUNDS}
    return [Kept(side, {rounds: held[rounds][side] for rounds in ROUNDS}) for side in held[ROUNDS[0]]]


def _kept_after(make: MakeWorld, rounds: int) -> dict[str, Things]:
    """In each round a prompt comes that is known by now, and goes in all ways.

    It ends; and it is aborted before its first step, and after one or two whose copies have not ended. Where
    engines serve each other, one is held, too, and pulled.
    """
    world = make(4 * _BLOCKS)
    for _ in range(rounds):
        for steps in (None, 0, 1, 2):
            world.forget()
            world.add(_BLOCKS, 3, conversation=1)
            if steps is not None:
                world.abort(after_steps=steps)
            world.run()
        if world.serves_peers:
            world.hold(_BLOCKS)
            world.come()
    things = {name: things_of(side, world.own_modules) for name, side in world.sides.items()}
    world.end()
    return things


def things_of(side: Any, foreign: tuple[str, ...] = ()) -> Things:
    """What a connector's side holds, but for objects of classes in ``foreign`` modules."""
    things: Things = Counter()
    seen: set[int] = set()
    left: list[tuple[Any, str]] = [(side, type(side).__name__)]
    while left:
        value, way = left.pop()
        if isinstance(value, _PLAIN) or id(value) in seen or _is_foreign(value.__class__, foreign):
            continue
        seen.add(id(value))
        size, inside = _taken_apart(value, way if way.count(".") < _MOST_PARTS else "")
        if size:
            things[way] += size
        left.extend((part, further or way) for part, further in inside)
    return things


def _taken_apart(value: Any, way: str) -> tuple[int, Inside]:
    """How much a value is by itself, and what is in it. No way: it gets no longer."""
    within = way and f"{way}[…]"
    if isinstance(value, (str, bytes, bytearray)):
        return len(value) // _TEXT_BYTES, iter(())
    if isinstance(value, Mapping) and (pairs := _pairs_of(value)) is not None:
        return len(pairs), ((part, within) for pair in pairs for part in pair)
    if isinstance(value, (list, set, deque)):
        return len(value), ((part, within) for part in [*value])
    if isinstance(value, (tuple, frozenset)):
        return 0, ((part, within) for part in value)
    if isinstance(value, MethodType):
        return 0, iter([(value.__self__, way)])
    if isinstance(value, partial):
        return 0, ((part, way) for part in (value.func, value.args, value.keywords))
    if isinstance(value, FunctionType):
        return 0, ((cell.cell_contents, way) for cell in value.__closure__ or () if _is_full(cell))
    if hasattr(type(value), "nbytes"):  # an array, or a tensor
        return value.nbytes // _TEXT_BYTES, iter(())
    names = [*getattr(value, "__dict__", ()), *slots_of(type(value))]
    return 1, ((getattr(value, name, None), way and f"{way}.{name}") for name in names)


def _pairs_of(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]] | None:
    """What is in it. None: it doesn't say, as where threads may change it meanwhile."""
    try:
        return [*mapping.items()]
    except Exception:  # noqa: BLE001 - it is anybody's
        return None


def _is_full(cell: Any) -> bool:
    """Whether something was put into a closure's cell yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@cache
def _is_foreign(kind: type, modules: tuple[str, ...]) -> bool:
    """Whether objects of a class are the engine's or the machine's. Who extends a connector's class is not."""
    foreign = (*_FOREIGN, *modules)
    return _belongs(kind, foreign) and all(_belongs(base, (*foreign, *_SAYS_NOTHING)) for base in kind.__mro__)


def _belongs(kind: type, packages: tuple[str, ...]) -> bool:
    module = kind.__module__
    return module.startswith(packages) and not module.startswith(_OURS)
