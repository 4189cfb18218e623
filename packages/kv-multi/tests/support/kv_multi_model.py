"""A small engine around a MultiConnector, and beside it the obvious model of what must come out.

``World`` is both: each action is done to the real objects (one scheduler's side, some workers' sides, the real
aggregator between them) and to plain dictionaries, and compared. The engine part asserts what a real one asserts:
a report is for a request that it holds, and frees its blocks at most once.

Children report whatever the test wants, at any time: reports that are late, doubled, of losers or of unknown
requests are the rule, not the exception.
"""

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

from kv_multi_model_worker import IDS, NOTHING, ORDER, ModelWorker
from kv_multi_scripted import Blocks, child, make

from kv_api import KVConnectorOutput, KVConnectorRole, KVOutputAggregator

BLOCK_SIZE = 4
EARLY = ("handle_preemptions", "bind_connector_metadata", "start_load_kv", "wait_for_save", "get_transfer_results")
LATE = "build_connector_worker_meta"


@dataclass
class Live:
    """A request that the engine holds. ``match`` is the last answer: (child, n, asynchronous, computed)."""

    request: SimpleNamespace
    status: str = "waiting"  # matched, loading, ready, running, finished
    match: tuple | None = None


class World:
    """The engine, the connectors and the model."""

    def __init__(self, num_children, num_workers, *, quarantine):
        children = [child(name=str(i)) for i in range(num_children)]
        extra = {"on_child_error": "quarantine"} if quarantine else {}
        self.quarantine = quarantine
        self.scheduler = make(children, **extra)
        self.workers = [make(children, KVConnectorRole.WORKER, **extra) for _ in range(num_workers)]
        self.aggregator = KVOutputAggregator(num_workers)
        self.children = range(num_children)
        self.live = {}
        self.planned = deque()
        self.executed = deque()
        # The model.
        self.off = set()
        self.announced = set()
        self.due = {}  # request id -> {(worker, child, kind)} that the scheduler has not processed
        self.owners = {}  # (kind, request id) -> the children whose transfer it is
        self.untold_saves, self.untold_loads = {}, {}
        self.model_workers = [ModelWorker() for _ in self.workers]

    def half(self, place):
        return self.scheduler.sub_connectors[place]

    def check(self):
        for one in (self.scheduler, *self.workers):
            one.check()
        for request_id, live in self.live.items():
            if live.status == "finished":
                assert self.due[request_id], f"{request_id}: held for nothing"
        assert set(self.due) <= set(self.live), "an id was freed under a transfer"

    # -- the scheduler -----------------------------------------------------------------------------

    def add(self, request_id):
        # A load that was asked for and told to nobody before the id's old life ended.
        self.untold_loads.pop(request_id, None)
        self.live[request_id] = Live(SimpleNamespace(request_id=request_id))
        self.scheduler.on_new_request(self.live[request_id].request)

    def query(self, request_id, computed, answers):
        """Each child answers ``(n or None, asynchronous)``, or ``"raise"``."""
        live, expected, match = self.live[request_id], (0, False), None
        for place, answer in zip(self.children, answers, strict=True):
            half = self.half(place)
            half.calls.clear()
            half.raises.pop("get_num_new_matched_tokens", None)
            if answer == "raise":
                half.raises["get_num_new_matched_tokens"] = OSError("broken")
            else:
                half.answers["get_num_new_matched_tokens"] = answer
        got = self.scheduler.get_num_new_matched_tokens(live.request, computed)
        asked = []
        for place, answer in zip(self.children, answers, strict=True):
            if place in self.off:
                continue
            asked.append(place)
            if answer == "raise":
                self.off.add(place)
            elif answer[0] is None:
                expected, match = (None, False), None
                break
            elif answer[0] and match is None:
                expected, match = answer, (place, *answer, computed)
        assert got == expected
        assert asked == [p for p in self.children if self.half(p).asked("get_num_new_matched_tokens")]
        self._check_choice(live, match)
        live.match = match
        live.status = "matched" if got[0] is not None else "waiting"

    def _check_choice(self, live, match):
        """The chosen one is asked for its groups, and nobody is when there is none."""
        for place in self.children:
            self.half(place).answers["get_loaded_kv_cache_group_ids"] = (place,)
        try:
            groups = self.scheduler.get_loaded_kv_cache_group_ids(live.request)
        except RuntimeError:
            groups = None
        assert groups == (None if match is None else (match[0],))

    def allocate(self, request_id, shorter):
        """The engine takes the answer, or less of it."""
        live = self.live[request_id]
        n = max(0, live.match[1] - shorter) if live.match else 0
        first = 1 + 10 * IDS.index(request_id)  # block 0 is the null block
        blocks = list(range(first, first + 5))
        self._update_state(live, Blocks(blocks), n)
        live.status = "running"
        if not n:
            return
        loader, _, asynchronous, computed = live.match
        written = blocks[computed // BLOCK_SIZE : -(-(computed + n) // BLOCK_SIZE)]
        self.untold_loads[request_id] = (loader, asynchronous, written)
        if asynchronous:
            live.status = "loading"
            self.owners["load", request_id] = {loader}
            self.due[request_id] = {(w, loader, "load") for w in range(len(self.workers))}

    def resume(self, request_id):
        """The second call, after an asynchronous load."""
        live = self.live[request_id]
        self._update_state(live, Blocks([1]), 0)
        live.status = "running"

    def _update_state(self, live, blocks, n):
        for place in self.children:
            self.half(place).calls.clear()
        self.scheduler.update_state_after_alloc(live.request, blocks, n)
        for place in self.children:
            if place not in self.off:
                own = n if live.match and place == live.match[0] else 0
                assert self.half(place).asked("update_state_after_alloc") == [(live.request, blocks, own)]

    def preempt(self, request_id):
        self.live[request_id].status = "waiting"

    def finish(self, request_id, holders):
        """The request ends or is aborted, in any state; ``holders`` want to store it."""
        live = self.live[request_id]
        for place in self.children:
            self.half(place).answers["request_finished"] = (place in holders, None)
        loading = live.status == "loading"
        held, params = self.scheduler.request_finished(live.request, [1])
        waited_for = {p for p in holders if p not in self.off} | (self.off - self.announced)
        assert params is None
        assert held == (bool(waited_for) and not loading), "never True while the load is in flight"
        live.status = "finished"
        if waited_for:
            saves = {(w, p, "save") for w in range(len(self.workers)) for p in waited_for}
            self.due.setdefault(request_id, set()).update(saves)
            self.untold_saves[request_id] = self.owners["save", request_id] = waited_for
        if not held and not loading:
            del self.live[request_id]

    def break_scheduler(self, place, method):
        """A child's scheduler side raises."""
        self.half(place).raises[method] = OSError("broken")
        getattr(self.scheduler, method)()
        self.off.add(place)

    def plan(self):
        metadata = self.scheduler.build_connector_meta("output")
        saves, loads, off = self.untold_saves, self.untold_loads, set(self.off)
        self.untold_saves, self.untold_loads = {}, {}
        self.announced = off
        assert [slot is None for slot in metadata.metadata] == [p in off for p in self.children]
        self.planned.append((metadata, saves, loads, off))

    # -- the workers -------------------------------------------------------------------------------

    def execute(self, reports=(), raising=()):
        """Run a step. ``reports``: (worker, child, kind, id); ``raising``: (worker, child, method)."""
        metadata, saves, loads, off = self.planned.popleft()
        outputs, closed, news = [], set(), set()
        for w, model in enumerate(self.model_workers):
            own_reports = [report[1:] for report in reports if report[0] == w]
            broken = {place: method for worker, place, method in raising if worker == w}
            expected, blocks, own_closed = self._run_model(model, saves, loads, off, own_reports, broken)
            output = self._run_worker(self.workers[w], metadata, own_reports, broken)
            results = NOTHING(output.finished_sending, output.finished_recving, output.failed_recving)
            assert results == expected, f"worker {w}"
            assert output.invalid_block_ids == blocks, f"worker {w}"
            outputs.append(output)
            closed |= {(r, (w, place, kind)) for r, place, kind in own_closed}
            news |= model.off - model.known_off
        self.executed.append((outputs, closed, news))

    def _run_model(self, model, saves, loads, off, reports, broken):
        model.known_off = set(off)
        model.saves.update({r: set(holders) for r, holders in saves.items()})
        model.loads.update({r: (p, blocks) for r, (p, asynchronous, blocks) in loads.items() if asynchronous})
        model.in_step = {r: (p, blocks) for r, (p, asynchronous, blocks) in loads.items() if not asynchronous}
        for place in model.off | off | {p for p, method in broken.items() if method != LATE}:
            model.switch_off(place)
        for place, kind, request_id in sorted(reports, key=lambda report: ORDER.index(report[1])):
            if place not in model.off:
                model.report(place, kind, request_id)
        results, closed = model.take()
        blocks, model.blocks, model.in_step = model.blocks, set(), {}
        for place in broken:
            model.switch_off(place)
        return results, blocks if self.quarantine else set(), closed

    def _run_worker(self, worker, metadata, reports, broken):
        """One step, in the order of a real worker."""
        for place, one in enumerate(worker.sub_connectors):
            said = {kind: {r for p, k, r in reports if (p, k) == (place, kind)} for kind in ORDER}
            one.answers["get_transfer_results"] = NOTHING(said["save"], said["load"], said["fail"])
            one.raises = {broken[place]: OSError("broken")} if place in broken else {}
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv("context")
        worker.wait_for_save()
        results = worker.get_transfer_results(set())
        output = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return output

    # -- back in the scheduler ---------------------------------------------------------------------

    def process(self):
        """Join the reports of a step and take them, as an engine does."""
        outputs, closed, news = self.executed.popleft()
        for place in self.children:
            self.half(place).calls.clear()
        output = self.aggregator.aggregate_reports(outputs)
        self.scheduler.update_connector_output(output)
        self.off |= news
        self._check_views()
        for request_id in output.finished_recving or ():
            live = self.live[request_id]
            if live.status == "loading":
                live.status = "waiting" if request_id in output.failed_recving else "ready"
            else:
                self._free(request_id)
        for request_id in output.finished_sending or ():
            self._free(request_id)
        for request_id, transfer in closed:
            self.due[request_id].remove(transfer)
        for request_id in [r for r, due in self.due.items() if not due]:
            del self.due[request_id]
            live = self.live.get(request_id)
            assert live is None or live.status in ("ready", "waiting"), f"{request_id}: its blocks are never freed"

    def _free(self, request_id):
        assert self.live[request_id].status == "finished", f"{request_id}: freed while it runs"
        del self.live[request_id]

    def _check_views(self):
        """No child heard of a transfer that isn't its own."""
        for place in self.children:
            for (view,) in self.half(place).asked("update_connector_output"):
                heard = {("save", r) for r in view.finished_sending or ()}
                heard |= {("load", r) for r in view.finished_recving or ()}
                own = {transfer for transfer in heard if place in self.owners[transfer]}
                assert heard == own

    # -- the end -----------------------------------------------------------------------------------

    def drain(self):
        """End every request and every transfer: nothing may be left."""
        for request_id, live in list(self.live.items()):
            if live.status != "finished":
                self.finish(request_id, set())
        for _ in range(2):
            self.plan()
            while self.planned:
                # A worker learns what it waits for in this very step, so a child reports in the next one.
                reports = [
                    (w, place, kind, request_id)
                    for w, model in enumerate(self.model_workers)
                    for request_id in IDS
                    for place in self.children
                    for kind in ("save", "load")
                ]
                self.execute(reports)
            while self.executed:
                self.process()
        assert not self.live
        assert not self.due
        half, books = self.scheduler.side, ("_held", "_running", "_missing", "_matches", "_untold")
        left = [getattr(book, name, None) for book in vars(half).values() for name in books]
        left += [getattr(worker.side._saves, name) for worker in self.workers for name in ("_waiting", "_done")]
        left += [worker.side._loads._waiting for worker in self.workers]
        assert not any(left), left
