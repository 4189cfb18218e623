"""``WatchedWorld``: a world that tells watchers everything it does; ``World`` itself doesn't know of watchers.

A watcher is called before and after each action, and after every call of the connector in between. Actions are
numbered from 1, skipped ones included, so a number means the same line of a schedule file in every replay. The
actions while a world comes to rest have the number 0. Calls after the last of them are the end of the engine.

A ``Tracker`` finds changes in an engine since its last look. It looks at every call and after every action, which
is often enough to see each copy and each step begin and end, even within one action.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.memory.copy import Copy, State
from kv_sim.site import Call
from kv_sim.subject import Subject
from kv_sim.violation import Referee, Violation
from kv_sim.world import World

AT_REST = 0
"""The number of the actions with which a world comes to rest."""


class NotWritten(OSError):  # noqa: N818 - the failure is another one
    """A watcher's file can't be written; the message names it."""


class Watcher:
    """Sees everything that happens in a world."""

    def begins(self, world: World) -> None:
        """The world and its connectors are set up."""

    def acts(self, number: int, action: Action) -> None:
        """An action begins."""

    def called(self, call: Call) -> None:
        """The connector was called, and answered."""

    def acted(self, number: int, action: Action, *, legal: bool) -> None:
        """An action ended. One that was not legal changed nothing."""

    def ends(self, violation: Violation | None) -> None:
        """Nothing more will happen. May raise ``NotWritten``."""


class WatchedWorld(World):
    """A world with watchers."""

    def __init__(
        self,
        config: WorldConfig,
        subject: Subject,
        *,
        referee: Referee | None = None,
        watchers: Sequence[Watcher],
    ) -> None:
        self._watchers: tuple[Watcher, ...] = tuple(watchers)
        self._number = 0
        early: list[Call] = []
        self._hear: Callable[[Call], None] = early.append
        super().__init__(config, subject, referee=referee, observe=lambda call: self._hear(call))
        for watcher in self._watchers:
            watcher.begins(self)
        self._hear = self._tell
        for call in early:
            self._tell(call)

    def _tell(self, call: Call) -> None:
        for watcher in self._watchers:
            watcher.called(call)

    def run(self, random: Random, actions: int) -> None:
        with self._to_the_end():
            super().run(random, actions)

    def replay(self, actions: Iterable[Action]) -> None:
        with self._to_the_end():
            super().replay(actions)

    @contextmanager
    def _to_the_end(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._tell_end(error)
            raise
        self._tell_end(None)

    def break_off(self, violation: Violation | None) -> None:
        self._tell_end(violation)
        super().break_off(violation)

    def _tell_end(self, error: BaseException | None) -> None:
        """Tell the end, once: calls of the connector after a failure are no part of the history.

        An error in writing becomes a note of the failure, and never replaces it.
        """
        watchers, self._watchers = self._watchers, ()
        for watcher in watchers:
            try:
                watcher.ends(error if isinstance(error, Violation) else None)
            except NotWritten as unwritten:
                if error is None:
                    raise
                error.add_note(str(unwritten))

    def apply(self, action: Action, random: Random | None = None) -> bool:
        self._number += 1
        return self._watched(self._number, action, lambda: super(WatchedWorld, self).apply(action, random))

    def take(self, kind: Kind, **args: Any) -> bool:
        return self._watched(AT_REST, Action(kind, args), lambda: super(WatchedWorld, self).take(kind, **args))

    def _watched(self, number: int, action: Action, act: Callable[[], bool]) -> bool:
        for watcher in self._watchers:
            watcher.acts(number, action)
        recorded = len(self.history)
        legal = True  # one that raises was
        try:
            legal = act()
        finally:
            done = self.history[-1] if len(self.history) > recorded else action  # with what was drawn for it
            for watcher in self._watchers:
                watcher.acted(number, done, legal=legal)
        return legal


@dataclass(frozen=True)
class CopyChange:
    """A change of a copy: it ``begins``, ``moves`` pages, ``ends``, is ``lost`` or is ``found``."""

    rank: int
    what: str
    copy: Copy


@dataclass(frozen=True)
class KernelChange:
    """A rank ``launches`` or ``retires`` the kernels of a step."""

    rank: int
    what: str
    step: int


class Tracker:
    """Compares an engine with its state at the last look."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], tuple[int, State]] = {}
        self._ended: dict[int, int] = {}
        self._launched: dict[int, list[int]] = {}
        self._retired: dict[int, int] = {}

    def copies(self, engine: Engine) -> Iterator[CopyChange]:
        """The changes of copies since the last look."""
        for device in engine.devices:
            rank, copies = device.rank, device.copies
            ended = copies.ended[self._ended.get(rank, 0) :]
            self._ended[rank] = len(copies.ended)
            for copy in sorted([*copies.running.values(), *ended], key=lambda c: c.copy_id):
                key, now = (rank, copy.copy_id), (copy.copied, copy.state)
                before = self._copies.get(key)
                if before is None:
                    yield CopyChange(rank, "begins", copy)
                    before = (0, State.RUNNING)
                if now[0] != before[0]:
                    yield CopyChange(rank, "moves", copy)
                if now[1] is not before[1]:
                    words = {State.LOST: "lost", State.RUNNING: "found"}
                    yield CopyChange(rank, words.get(copy.state, "ends"), copy)
                self._copies[key] = now

    def kernels(self, engine: Engine) -> Iterator[KernelChange]:
        """The steps that were launched and retired since the last look."""
        for device in engine.devices:
            rank = device.rank
            launched = self._launched.setdefault(rank, [])
            if device.copies.launched_steps > len(launched):
                # A worker launches the kernels of the one step that it is executing.
                step = engine.executable(rank) or engine.steps[-1]
                launched.append(step.number)
                yield KernelChange(rank, "launches", step.number)
            retired = self._retired.get(rank, 0)
            for number in launched[retired : device.retired_steps]:
                yield KernelChange(rank, "retires", number)
            self._retired[rank] = device.retired_steps
