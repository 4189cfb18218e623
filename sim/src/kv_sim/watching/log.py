"""``Log``: a history as text that a person reads: numbered actions, and under each what it caused.

Under an action stand, in the order in which they happened, the calls of the connector with brief arguments and
answers, what copies did, and at the end which requests changed. Calls that say nothing are left out: per-layer
hooks, polls, and questions that were answered with nothing. The text depends on the history alone.

      7 step
        scheduler   get_num_new_matched_tokens r2 0 -> 8 tokens, asynchronous
        worker 0    start_load_kv
        rank 0      load copy 1 begins: host 5 → block 3, host 4 → block 2
        engine      r2 waiting → waiting for a load, 8/9 tokens, blocks [2 3]
"""

from collections.abc import Callable
from typing import Any, Final

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.violation import Violation
from kv_sim.watching.brief import brief, brief_tables
from kv_sim.watching.watch import AT_REST, CopyChange, Tracker, Watcher
from kv_sim.world import World

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
"""Calls that come always in the same place: worth a line only if a copy began or ended in them.

What ``take_events`` answers may be an iterator, which is the engine's to consume.
"""

QUESTIONS: Final = ("get_", "build_connector_worker_meta")
"""How the names of calls begin that are worth a line only if the answer holds something."""

REST_HEADING: Final = "rest all"
END_HEADING: Final = " end"
QUIET_HEADINGS: Final = ("rest steps come back", REST_HEADING, END_HEADING)
MOST_WIDTH: Final = 140
MOST_PAGES: Final = 5


class Log(Watcher):
    """Writes the log line by line to ``write``."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._world: World | None = None
        self._tracker = Tracker()
        self._requests: dict[str, tuple[SimRequest, str, str]] = {}
        self._lines: list[str] = []
        self._processed = 0
        self._has_ended = False

    # -- what happens --------------------------------------------------------------------------

    def begins(self, world: World) -> None:
        self._world = world
        self._write(f"connector {world.subject.kv_connector}")
        self._write(f"world     {describe_world(world.config)}")

    def acts(self, number: int, action: Action) -> None:
        self._flush("rest steps come back")

    def called(self, side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
        if method == "shutdown" and not self._has_ended:
            self._flush(REST_HEADING)
            self._has_ended = True
        kernels, copies = self._changes()
        text = self._call(side, method, args, answer)
        own = [_line(side, text or method)] if text or copies else []
        # A worker may wait for its device; the scheduler hears of a step after it has retired.
        self._lines += (own + kernels if side.startswith("worker") else kernels + own) + copies

    def _call(self, side: str, method: str, args: tuple[Any, ...], answer: Any) -> str:
        """The line of a call; empty if there is nothing to say."""
        assert self._world is not None
        engine = self._world.engine
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

    def acted(self, number: int, action: Action, *, legal: bool) -> None:
        if not legal:
            if number != AT_REST:
                self._write(f"{number:4} {describe(action)}  (not legal here: skipped)")
            return
        self._look_at_copies()
        self._look_at_requests()
        self._flush(f"{'rest' if number == AT_REST else number:>4} {describe(action)}")

    def ends(self, violation: Violation | None) -> None:
        self._look_at_copies()
        self._look_at_requests()
        self._flush(END_HEADING if self._has_ended else REST_HEADING)
        self._write(f"FAIL      {violation}" if violation else "at rest: nothing is wrong")

    # -- lines ---------------------------------------------------------------------------------

    def _line(self, who: str, text: str) -> None:
        self._lines.append(_line(who, text))

    def _flush(self, heading: str) -> None:
        """Write what was collected under its heading; nothing outside of an action is no news."""
        lines, self._lines = self._lines, []
        if heading in QUIET_HEADINGS and not lines:
            return
        self._write(heading.rstrip())
        for line in lines:
            self._write(line)

    def _changes(self) -> tuple[list[str], list[str]]:
        """Lines about kernels, and lines about copies, since the last look."""
        assert self._world is not None
        engine = self._world.engine
        kernels = [
            _line(f"rank {change.rank}", f"step {change.step} retires")
            for change in self._tracker.kernels(engine)
            if change.what == "retires"
        ]
        return kernels, [_line(f"rank {c.rank}", _copy_line(c)) for c in self._tracker.copies(engine)]

    def _look_at_copies(self) -> None:
        kernels, copies = self._changes()
        self._lines += kernels + copies

    def _look_at_requests(self) -> None:
        assert self._world is not None
        scheduler = self._world.engine.scheduler
        for name, (old, before, _) in list(self._requests.items()):
            if scheduler.requests.get(name) is not old:
                self._line("engine", f"{name} {before} → gone")
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
            self._line("engine", f"{name} {arrow}, {known}, blocks {tables}")


def describe_state(request: SimRequest) -> str:
    """Where a request is in its life."""
    turn = f", turn {request.turn + 1}" if request.turn else ""
    return request.status.value + turn + (" and held" if request.is_held else "")


def describe_world(config: WorldConfig) -> str:
    """The sizes of a world in a line."""
    groups = ", ".join(f"{g.kind} {g.window}" if g.window else g.kind for g in config.groups)
    parts = [
        f"{config.num_blocks} blocks of {config.block_size}",
        f"groups: {groups}",
        f"tp {config.tp_size} pp {config.pp_size}",
        f"run-ahead {config.run_ahead}" + (" asynchronous" if config.async_scheduling else ""),
        f"runner V{config.runner}" + (" zeroing new blocks" if config.zero_new_blocks else ""),
        f"at most {config.max_running} running, {config.max_step_tokens} tokens a step",
        f"{config.host_slots} host slots",
        f"{config.role}, failed loads: {config.failure_policy}",
    ]
    if config.hashes_per_block > 1:
        parts.append(f"{config.hashes_per_block} hashes a block")
    if config.spec_tokens:
        parts.append(f"{config.spec_tokens} draft tokens")
    return "; ".join(parts)


def describe(action: Action) -> str:
    """An action in a line."""
    args = action.args
    if action.kind is Kind.ADD:
        spec = args["spec"]
        extras = [f"{name} {spec[name]}" for name in ("salt", "adapter") if spec.get(name) is not None]
        if spec.get("skip_reading_prefix_cache"):
            extras.append("skips reading caches")
        prompt = f"{spec['request_id']}: {spec['shared_tokens']} tokens of conversation {spec['conversation']}"
        own = f" + {spec['own_tokens']} own" if spec["own_tokens"] else ""
        samples = f"samples {spec['output_tokens']} of at most {spec['max_tokens']}"
        if spec.get("turns") is not None:
            turns = [f"{turn['tokens']} more, samples {turn['output_tokens']}" for turn in spec["turns"]]
            extras.append("; ".join(["a session", *turns]))
        return f"add      {', '.join([prompt + own, samples, *extras])}"
    if action.kind is Kind.RESET:
        what = [word for word in ("running", "connector") if args[word]]
        return "reset    " + " and ".join(["the prefix cache", *what])
    if action.kind is Kind.RESTART:
        return f"restart  rank {args['rank']}" + (", its host memory is lost" if args["memory"] else "")
    words = {"request": "", "rank": "rank ", "copy": "copy ", "pages": "pages ", "rejects": "rejects "}
    return f"{action.kind.value:<8} " + ", ".join(f"{words.get(k, k + ' ')}{brief(v)}" for k, v in args.items())


def describe_pairs(direction: Direction, pairs: tuple[tuple[int, int], ...]) -> str:
    """Where the pages of a copy go."""
    is_store = direction is Direction.STORE
    texts = [
        f"block {block} → host {slot}" if is_store else f"host {slot} → block {block}"
        for block, slot in pairs[:MOST_PAGES]
    ]
    return ", ".join(texts) + (f", … {len(pairs)} in all" if len(pairs) > MOST_PAGES else "")


def _copy_line(change: CopyChange) -> str:
    copy = change.copy
    if change.what == "begins":
        after = f", after launch {copy.after_step}" if copy.after_step else ""
        return f"{copy} begins: {describe_pairs(copy.direction, copy.pairs)}{after}"
    if change.what == "moves":
        return f"{copy}: {copy.copied} of {len(copy.pairs)} pages moved"
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


def _line(who: str, text: str) -> str:
    cut = text if len(text) <= MOST_WIDTH else text[: MOST_WIDTH - 1] + "…"
    return f"     {who:<11} {cut}".rstrip()
