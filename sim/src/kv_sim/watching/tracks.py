"""``Tracks``: events of a Chrome trace, and the spans that are open on each track."""

from typing import Any, Final, TypeAlias

Event: TypeAlias = dict[str, Any]

ACTION_US: Final = 1000
"""Virtual time of one action."""


class Tracks:
    """Events, and the spans that are open on each track."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.names: list[Event] = []
        self._open: dict[tuple[int, int], str] = {}
        self._processes: set[int] = set()
        self._tracks: set[tuple[int, int]] = set()
        self._start = 0
        self._places = 0
        self._first_of_action = 0

    def name(self, pid: int, process: str, tid: int, track: str) -> None:
        """Give a track its name, once."""
        if pid not in self._processes:
            self._processes.add(pid)
            self._meta(pid, 0, "process_name", {"name": process})
            self._meta(pid, 0, "process_sort_index", {"sort_index": pid})
        if (pid, tid) not in self._tracks:
            self._tracks.add((pid, tid))
            self._meta(pid, tid, "thread_name", {"name": track})
            self._meta(pid, tid, "thread_sort_index", {"sort_index": tid})

    def _meta(self, pid: int, tid: int, name: str, args: dict[str, Any]) -> None:
        self.names.append({"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": name, "args": args})

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Later events of the same action get a later time than earlier ones."""
        self._places += 1

    def end_action(self) -> None:
        """Spread the events of an action over its time, and begin the next."""
        for event in self.events[self._first_of_action :]:
            event["ts"] = round(self._start + ACTION_US * event["ts"] / (self._places + 1), 3)
        self._start += ACTION_US
        self._places = 0
        self._first_of_action = len(self.events)

    # -- events --------------------------------------------------------------------------------

    def begin(self, pid: int, tid: int, name: str, args: dict[str, Any] | None = None) -> None:
        """Begin a span; one that is open on the track ends."""
        self.end(pid, tid)
        self._open[pid, tid] = name
        self._add("B", pid, tid, name, args)

    def end(self, pid: int, tid: int, args: dict[str, Any] | None = None) -> None:
        """End the open span of a track, if there is one."""
        name = self._open.pop((pid, tid), None)
        if name is not None:
            self._add("E", pid, tid, name, args)

    def is_open(self, pid: int, tid: int) -> bool:
        """Whether a span is open on the track."""
        return (pid, tid) in self._open

    def instant(self, pid: int, tid: int, name: str, args: dict[str, Any] | None = None, scope: str = "t") -> None:
        """An event without duration. ``scope``: the (t)rack, the (p)rocess or the whole trace (g)."""
        self._add("i", pid, tid, name, args)
        self.events[-1]["s"] = scope

    def _add(self, kind: str, pid: int, tid: int, name: str, args: dict[str, Any] | None) -> None:
        event: Event = {"ph": kind, "ts": self._places, "pid": pid, "tid": tid, "name": name}
        if args:
            event["args"] = args
        self.events.append(event)

    def end_all(self) -> None:
        """End every span that is still open."""
        for pid, tid in list(self._open):
            self.end(pid, tid, {"open": "at the end of the history"})
