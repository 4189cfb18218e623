"""What a connector's objects hold when requests have come and gone: more of these may not leave more.

A connector that never lets go of something about each request gets bigger, and slower, with every day that a
server runs, and no single history shows it. What can become more is counted: entries of lists, dicts and the like,
objects, long texts and arrays, each under the path to it from the connector. What the engine handed over isn't
looked into, nor what functions and classes hold.

The requests have one prompt, of which there is nothing new to store; or different ones, each of which has room in
the medium only where an earlier one had it. The second shows what is left of each chunk, which the first can't.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from functools import cache, partial
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from kv_sim.checkers.conservation import slots_of
from kv_sim.growth.metered import MakeWorld

Things: TypeAlias = Counter[str]
"""Path to objects, without keys and indices -> how many there are."""
Inside: TypeAlias = Iterator[tuple[Any, str]]
"""The parts of a value, and their paths."""

ROUNDS: Final = (8, 32, 128)
"""Numbers of rounds in which requests come and go."""
MOST_LEFT: Final = 0.9
"""How many objects each round may leave at one path, on average. A leak leaves at least one."""

_BLOCKS: Final = 8
"""Blocks of a prompt. There is room for four: so few that a medium is full after a round or two."""
_TEXT_BYTES: Final = 64
"""So many bytes of a string or an array count as one object: names and hashes are shorter."""
_MOST_PARTS: Final = 12
"""Of a path: linked nodes would have no end."""

_PLAIN: Final = (int, float, complex, type(None), type, ModuleType, BuiltinFunctionType, Enum)
_FOREIGN: Final = ("kv_sim.", "logging", "threading", "concurrent.", "weakref", "_thread", "_queue", "ctypes")
_OURS: Final = ("kv_sim.examples", "kv_sim.zoo")
"""Connectors that the testbed brings along."""
_SAYS_NOTHING: Final = ("abc", "builtins", "collections", "typing")
"""Modules of bases that anything may have."""


class Prompts(StrEnum):
    """The prompts of the requests that come and go."""

    ONE = "one prompt"
    DIFFERENT = "different prompts"


class Kept(NamedTuple):
    """What one side of a connector holds after each number of rounds."""

    side: str
    things: Mapping[int, Things]

    @property
    def grows_at(self) -> str:
        """The path at which most objects are left."""
        return max(sorted(self.things[max(self.things)]), key=self._growth_at, default="")

    @property
    def growth(self) -> float:
        """How many objects each round left there."""
        return self._growth_at(self.grows_at)

    def _growth_at(self, way: str) -> float:
        """How many objects each round left there, at least: a cache stops growing when it is full."""
        pairs = pairwise(self.things.items())
        return min((after[way] - before[way]) / (more - few) for (few, before), (more, after) in pairs)


def measure_kept(make: MakeWorld, prompts: Prompts = Prompts.ONE) -> list[Kept]:
    """What each side holds after all numbers of rounds."""
    held = {rounds: _kept_after(make, rounds, prompts) for rounds in ROUNDS}
    return [Kept(side, {rounds: held[rounds][side] for rounds in ROUNDS}) for side in held[ROUNDS[0]]]


def _kept_after(make: MakeWorld, rounds: int, prompts: Prompts) -> dict[str, Things]:
    """In each round requests arrive, and end in all possible ways.

    It ends; and it is aborted before its first step, and after one or two whose copies have not ended. Where
    engines serve each other, one is held, too, and pulled.
    """
    world = make(4 * _BLOCKS)
    conversation = 1 if prompts is Prompts.ONE else None
    for _ in range(rounds):
        for steps in (None, 0, 1, 2):
            world.forget()
            world.add(_BLOCKS, 3, conversation=conversation)
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
    """The objects that a connector's side holds, except those of classes in ``foreign`` modules."""
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
    """How many objects a value counts as, and its parts. A part without a path has the path of the value."""
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
    """The items of a mapping. None: reading them raises, for example since a thread changes them meanwhile."""
    try:
        return [*mapping.items()]
    except Exception:  # noqa: BLE001 - it is anybody's
        return None


def _is_full(cell: Any) -> bool:
    """Whether a closure's cell has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@cache
def _is_foreign(kind: type, modules: tuple[str, ...]) -> bool:
    """Whether a class is the engine's or Python's, and not a subclass of a connector's class."""
    foreign = (*_FOREIGN, *modules)
    return _belongs(kind, foreign) and all(_belongs(base, (*foreign, *_SAYS_NOTHING)) for base in kind.__mro__)


def _belongs(kind: type, packages: tuple[str, ...]) -> bool:
    module = kind.__module__
    return module.startswith(packages) and not module.startswith(_OURS)
