"""``Guard``: wraps a connector for the engine, and turns an error in a call into a violation.

It forwards every call, writes it into the history's log, catches what the connector raises (NO-CRASH) and checks
the answers that the contract restricts (PROTOCOL, ACCOUNTING, WORK, HITS).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CoroutineType
from typing import Any, Final, NoReturn

from kv_api import ConfigError, KVConnectorBase_V1, KVConnectorRole
from kv_factory import KVConnectorFactory
from kv_sim import calls
from kv_sim.checkers import accounting, answers, protocol, work
from kv_sim.checkers.children import Children
from kv_sim.checkers.logged import Logged
from kv_sim.checkers.raised import innermost, what_there_is
from kv_sim.checkers.served import Served
from kv_sim.violation import CalledAgain, DidNotReturn, Invariant, Referee, TestbedError, TookTooLong, Violation

_RAISED: Final = (Exception, SystemExit, CalledAgain, DidNotReturn)
"""Exceptions that a connector may raise. ``sys.exit`` would end a server, but must not end the testbed."""

LogCall = Callable[[str, str, tuple[Any, ...], Any], None]
"""(side, method, arguments, answer); a side is ``scheduler``, or ``worker`` and its rank"""


class HistoryEnds(Exception):  # noqa: N818 - no error: the history just goes no further
    """The history can't go on: a connector raised, or gave a wrong answer, and that checker is switched off."""


class NotCreated(Violation):
    """The connector's constructor raised."""


@calls.calls_a_connector
def create(config: Any, role: KVConnectorRole, kv_cache_config: Any, referee: Referee) -> KVConnectorBase_V1:
    """Create one object of a connector, through the factory. A configuration that it refuses is no violation."""
    next(calls.numbers)
    try:
        return KVConnectorFactory.create_connector(config, role, kv_cache_config)
    except (ConfigError, Violation, TestbedError):
        raise
    except _RAISED as error:
        _let_a_debugger_end(error)
        message = f"{role.name.lower()} side: {_told(error)}"
        if Invariant.NO_CRASH in referee.switched_off:
            raise HistoryEnds(message) from error
        raise NotCreated(Invariant.NO_CRASH, message) from error


@contextmanager
def all_or_none(made: Sequence[KVConnectorBase_V1]) -> Iterator[None]:
    """Make the objects of an engine. If one can't be made, those in ``made`` are shut down: nobody else could."""
    try:
        yield
    except BaseException:
        for connector in made:
            with suppress(*_RAISED):
                connector.shutdown()
        raise


class crashes:  # noqa: N801 - reads like a function where it is used; a generator would cost more than most calls
    """Run code of a connector; an exception becomes a violation."""

    def __init__(self, referee: Referee, what: str) -> None:
        self._referee = referee
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _RAISED) and not isinstance(error, (Violation, HistoryEnds, TestbedError)):
            _let_a_debugger_end(error)
            raise crash(self._referee, self._what, error) from error


def crash(referee: Referee, what: str, error: BaseException) -> Violation | HistoryEnds:
    """The violation for a connector's exception."""
    message = f"{what}: {_told(error)}"
    if Invariant.NO_CRASH in referee.switched_off:
        return HistoryEnds(message)
    return (TookTooLong if isinstance(error, DidNotReturn) else Violation)(Invariant.NO_CRASH, message)


class Guard:
    """One connector object, guarded. Unknown attributes are methods of the connector."""

    def __init__(
        self,
        connector: KVConnectorBase_V1,
        side: str,
        referee: Referee,
        log: LogCall,
        served: Served | None = None,
        children: Children | None = None,
    ) -> None:
        self.connector = connector
        self._side = side
        self._referee = referee
        self._log = log
        self._work = work.Retries(referee)
        self._stats = Logged(type(connector), referee)
        self._served = served
        self._children = children

    @property
    def requires_kv_delivery(self) -> bool:
        """As the connector says."""
        with crashes(self._referee, f"{self._side} side, requires_kv_delivery"):
            return self.connector.requires_kv_delivery

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Call it, and check the answer."""
        name = "get_num_new_matched_tokens"
        answer = self._ask(name, request, num_computed_tokens)
        if answers.is_match(answer):  # readers of the log unpack it
            self._log(self._side, name, (request, num_computed_tokens), answer)
        checked = protocol.check_match(request, num_computed_tokens, answer, self._referee)
        self._work.matched(request.request_id, checked)
        if self._served is not None:
            self._served.check_match(request, num_computed_tokens, checked[0] or 0)
        return checked

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        """Call it, and check the sum."""
        answer = self.call("get_external_cache_hit_sources", request, num_external_tokens)
        accounting.check_sources(request.request_id, num_external_tokens, answer, self._referee)
        if self._children is not None:
            self._children.check_sources(request.request_id, answer)
        return answer

    def get_kv_connector_stats(self) -> Any:
        """Call it, and check that the stats survive pickling for the process that shows them."""
        answer = self.call("get_kv_connector_stats")
        if answer is not None:
            with crashes(self._referee, f"{self._side} side, what its stats say"):
                accounting.check_stats(type(self.connector), answer, self._referee)
                self._stats.add(answer)
        return answer

    def add_stats(self, counted: Any, more: Any) -> None:
        """Add this side's stats to those of the workers, as an engine does."""
        if counted is None or more is None:
            return
        with crashes(self._referee, "what the workers and the scheduler's side counted, added up"):
            if not more.is_empty():
                accounting.check_stats(type(self.connector), counted.aggregate(more), self._referee)

    def has_connector_metadata(self) -> bool:
        """Call it without a log entry: every layer calls it."""
        return bool(self._ask("has_connector_metadata"))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Call it, and check that it doesn't change the step."""
        before = protocol.step_as_it_is(scheduler_output)
        answer = self.call("build_connector_meta", scheduler_output)
        protocol.check_step(before, scheduler_output, self._referee)
        return answer

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the connector, and check the shape of its answer."""
        answer = self._ask(name, *args, **kwargs)
        if name in answers.SHAPES:
            self._check_shape(name, answer)
        self._log(self._side, name, args, answer)
        return answer

    def take_events(self) -> list[Any]:
        """Call it, and check that the answer is a list of events."""
        answer = self._ask("take_events")
        if type(answer) in (list, tuple):
            answer = [*answer]
        elif isinstance(answer, Iterable) and not isinstance(answer, (str, bytes)):
            with crashes(self._referee, f"{self._side} side, the events of take_events"):
                answer = list(answer)
        self._check_shape("take_events", answer)
        self._log(self._side, "take_events", (), answer)
        return answer  # type: ignore[no-any-return]

    def _check_shape(self, name: str, answer: Any) -> None:
        if not answers.SHAPES[name].holds(answer):
            self._refuse(answers.complaint(name, answer))

    @calls.calls_a_connector
    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        # Written out: a context manager costs as much as most calls.
        next(calls.numbers)
        before = self._referee.raised
        try:
            answer = getattr(self.connector, name)(*args, **kwargs)
        except (Violation, HistoryEnds, TestbedError):
            raise
        except _RAISED as error:
            self._end_if_it_kept_one(before)
            _let_a_debugger_end(error)
            raise crash(self._referee, f"{self._side} side, {name}", error) from error
        if self._referee.raised is not before:
            self._end_if_it_kept_one(before)
        if type(answer) in answers.NOT_RUN:
            self._check_run(name, answer)
        return answer

    def _check_run(self, name: str, answer: Any) -> None:
        not_run = answers.not_run(name, answer)
        if not_run is not None:
            if isinstance(answer, CoroutineType):
                answer.close()
            self._refuse(not_run)

    def _end_if_it_kept_one(self, before: Violation | None) -> None:
        """A connector that takes any exception for one of its store's must not hide what it broke meanwhile."""
        if self._referee.raised is not before:
            assert self._referee.raised is not None
            raise self._referee.raised

    def _refuse(self, why: str) -> NoReturn:
        message = f"{self._side} side, {why}"
        self._referee.fail(Invariant.PROTOCOL, message)
        raise HistoryEnds(message)  # nobody looks at PROTOCOL, and there is no going on

    def __getattr__(self, name: str) -> Any:
        known = hasattr(KVConnectorBase_V1, name) or name == "request_finished_all_groups"
        if name.startswith("_") or not known:
            raise AttributeError(name)

        method = partial(self.call, name)
        setattr(self, name, method)
        return method


def called_at(error: BaseException) -> str | None:
    """The connector's side and method in which this was raised. None: no method."""
    trace, found = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is Guard._ask.__code__:
            found = f"{frame.f_locals['self']._side} side, {frame.f_locals['name']}"
        trace = trace.tb_next
    return found


def _let_a_debugger_end(error: BaseException) -> None:
    """Quitting a debugger within a connector interrupts the testbed, and isn't the connector's exception."""
    debugger = sys.modules.get("bdb")
    if debugger is not None and isinstance(error, debugger.BdbQuit):
        raise KeyboardInterrupt from error


def _told(error: BaseException) -> str:
    """The error, its place, and, if an attribute of the testbed's objects is missing, those that exist."""
    said = answers.without_addresses(str(error))
    return f"{type(error).__name__}: {said} ({innermost(error)}){what_there_is(error)}"
