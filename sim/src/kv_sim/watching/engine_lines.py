"""``EngineLines``: the lines of a log about one engine: its connector's calls, its copies and its requests."""

from typing import Any, Final

from kv_sim.engine.request import SimRequest
from kv_sim.site import Call, Site
from kv_sim.watching.brief import brief, brief_tables
from kv_sim.watching.describe import describe_pairs, describe_state
from kv_sim.watching.watch import CopyChange, Tracker

SILENT: Final = frozenset(
    {
        "bind_connector_metadata",
        "bind_kv_cache_manager",
        "clear_connector_metadata",
        "finish_forward",
        "get_finished_count",
        "get_mem_pool_context",
        "has_connector_metadata",
        "has_pending_block_frees",
        "has_pending_push_work",
        "on_new_request",
        "register_kv_caches",
        "save_kv_layer",
        "set_xfer_handshake_metadata_pp_aware",
        "start_load_kv",
        "take_events",
        "wait_for_layer_load",
        "wait_for_save",
    }
)
"""Calls that always come at the same place: they get a line only if a copy began or ended in them.

The answer of ``take_events`` may be an iterator, which only the engine may consume.
"""

QUESTIONS: Final = ("get_", "build_connector_worker_meta")
"""Prefixes of methods that get a line only if their answer isn't empty."""

MOST_WIDTH: Final = 140


class EngineLines:
    """Writes only what changed since its last lines."""

    def __init__(self, site: Site) -> None:
        self._engine = site.engine
        self._words = site.place.words
        self._tracker = Tracker()
        self._requests: dict[str, tuple[SimRequest, str, str]] = {}
        self._processed = 0

    def called(self, call: Call) -> list[str]:
        """The lines of a call, if it is worth one, and of changes since the last look."""
        kernels, copies = self._changes()
        text = self._call(call)
        own = [self._line(call.side, text or call.method)] if text or copies else []
        # A worker may wait for its device; the scheduler hears of a step after it has retired.
        return (own + kernels if call.side.startswith("worker") else kernels + own) + copies

    def look(self) -> list[str]:
        """The lines of changes since the last look."""
        kernels, copies = self._changes()
        return [*kernels, *copies, *self._look_at_requests()]

    def _call(self, call: Call) -> str:
        """The line of a call; empty if it isn't worth one."""
        engine, (_, side, method, args, answer) = self._engine, call
        if method == "get_num_new_matched_tokens":
            return f"{method} {brief(args[0])} after {brief(args[1])}{_match(answer)}"
        if method == "build_connector_meta":
            return f"step {engine.num_steps}: {brief(args[0])} -> {brief(answer)}"
        if method == "handle_preemptions":
            step = engine.executable(int(side.rpartition(" ")[2]))
            return f"executes step {step.number}" if step else method
        if method == "update_connector_output":
            self._processed += 1
            report = "" if _is_empty(args[0]) else f" with {brief(args[0])}"
            return f"step {self._processed} came back{report}"
        if method in SILENT or (method.startswith(QUESTIONS) and _is_empty(answer)):
            return ""
        return " ".join([method, *map(brief, args)]) + ("" if answer is None else f" -> {brief(answer)}")

    def _changes(self) -> tuple[list[str], list[str]]:
        """Lines about kernels, and lines about copies, since the last look."""
        engine = self._engine
        kernels = [
            self._line(f"rank {change.rank}", f"step {change.step} retires")
            for change in self._tracker.kernels(engine)
            if change.what == "retires"
        ]
        return kernels, [self._line(f"rank {c.rank}", _copy_line(c)) for c in self._tracker.copies(engine)]

    def _look_at_requests(self) -> list[str]:
        scheduler, lines = self._engine.scheduler, []
        for name, (old, before, _) in list(self._requests.items()):
            if scheduler.requests.get(name) is not old:
                lines.append(self._line("engine", f"{name} {before} → gone"))
                del self._requests[name]
        for name, request in scheduler.requests.items():
            state = describe_state(request)
            tables = brief_tables(scheduler.blocks.tables_of(name).groups)
            _, before, old_tables = self._requests.get(name, (request, "new", ""))
            if (state, tables) == (before, old_tables):
                continue
            self._requests[name] = (request, state, tables)
            arrow = state if state == before else f"{before} → {state}"
            known = f"{request.num_computed_tokens}/{request.num_tokens} tokens"
            lines.append(self._line("engine", f"{name} {arrow}, {known}, blocks {tables}"))
        return lines

    def _line(self, who: str, text: str) -> str:
        cut = text if len(text) <= MOST_WIDTH else text[: MOST_WIDTH - 1] + "…"
        where = f"{self._words.strip()}: {who}" if self._words and who != "engine" else self._words.strip() or who
        return f"     {where:<11} {cut}".rstrip()


def _copy_line(change: CopyChange) -> str:
    copy = change.copy
    if change.what == "begins":
        after = f", after launch {copy.after_step}" if copy.after_step else ""
        pages = f": {describe_pairs(copy.direction, copy.pairs)}" if copy.errand is None else ""
        return f"{copy} begins{pages}{after}"
    if change.what == "moves":
        return f"{copy}: {copy.copied} of {copy.size} pages moved"
    return f"{copy} is {copy.state.value}"


def _is_empty(answer: Any) -> bool:
    held = vars(answer) if hasattr(answer, "__dict__") else {"": answer}
    values = [value for name, value in held.items() if name != "expected_finished_count"]
    return not any(value is not None and (not hasattr(value, "__len__") or len(value)) for value in values)


def _match(answer: Any) -> str:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return f" -> {brief(answer)}"
    count, is_async = answer
    return " -> ask again" if count is None else f" -> {count} tokens" + (", asynchronous" if is_async else "")
