"""A small engine: requests, blocks, steps under way, devices whose bytes are functions of the whole prefix.

It is random where an engine may do this or that, and checks what an engine relies on: that a step reads exactly
the bytes of its request's prefix. Each rank has a device that runs steps in order, some time after they were
launched. A new block is made unreadable before its step, before the fence where blocks are held and after it where
they are fenced. There are no drafts; tokens may be computed before they are known (``run_ahead``).
"""

from collections import Counter, deque
from math import lcm
from types import SimpleNamespace

import kv_offload_medium as medium
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, caches, kv_cache_config, step, vllm_config
from kv_offload_device import PER_HASH, Copies, Device

from kv_api import KVConnectorOutput, KVConnectorRole, KVOutputAggregator
from kv_offload import OffloadingConnector


class Engine:
    """One engine with the connector."""

    def __init__(self, random, groups, per_chunk=1, ranks=1, run_ahead=0, holds=False, num_blocks=40, **extra):
        self.random, self.groups, self.per_chunk, self.run_ahead = random, groups, per_chunk, run_ahead
        self.holds, self.num_blocks = holds, num_blocks
        self.grain = lcm(*(size for _, size, _ in groups))
        cache = kv_cache_config(groups, num_blocks, tokens_per_hash=PER_HASH)
        extra |= {"hold_blocks": "always" if holds else "never", "blocks_per_chunk": per_chunk}
        medium.ScriptedSpec.workers = []
        medium.ScriptedSpec.manager = self.manager = medium.StrictManager()

        def make(role, rank=0):
            return OffloadingConnector(vllm_config(world_size=ranks, rank=rank, **extra), role, cache)

        self.scheduler = make(KVConnectorRole.SCHEDULER)
        self.workers, self.devices = [], []
        for rank in range(ranks):
            worker = make(KVConnectorRole.WORKER, rank)
            worker.side.spec.get_worker = lambda kv_caches: Copies(kv_caches)
            worker.register_kv_caches(caches(cache))
            self.workers.append(worker)
            self.devices.append(Device(self, rank, worker.side.medium_worker))
        self.aggregator = KVOutputAggregator(ranks)
        self.refs, self.cached, self.name_of = Counter(), {}, {}
        self.free = deque(range(1, num_blocks))
        self.requests, self.ended, self.steps = {}, [], deque()
        self.deferred = deque()
        self.finished, self.preempted, self.fresh = set(), set(), []
        self.scheduled = self.processed = 0

    # -- blocks --------------------------------------------------------------------------------

    def take(self, count):
        blocks = [self.free.popleft() for _ in range(count)]
        for block in blocks:
            self.cached.pop(self.name_of.pop(block, None), None)
            self.refs[block] = 1
        self.fresh += blocks
        return blocks

    def give_back(self, tables):
        self.deferred.append((self.scheduled, [block for table in tables for block in table if block]))
        self.drain()

    def drain(self):
        while self.deferred and self.deferred[0][0] <= self.processed:
            for block in self.deferred.popleft()[1]:
                self.refs[block] -= 1
                if not self.refs[block]:
                    self.free.append(block)

    def first_needed(self, group, boundary):
        kind, size, window = self.groups[group]
        return {FULL: 0, WINDOW: max(0, boundary - window + 1), STATE: max(0, boundary - 1)}[kind] // size

    def cache(self, request, tokens):
        for group, (_, size, _) in enumerate(self.groups):
            for index in range(min(tokens, request.num_tokens) // size):
                block, name = request.tables[group][index], (group, request.hash_at((index + 1) * size))
                if block and name not in self.cached and block not in self.name_of:
                    self.cached[name], self.name_of[block] = block, name

    def local_hit(self, request):
        if self.random.random() < 0.25:
            self.cached.clear()  # the prefix cache was reset
            self.name_of.clear()
        for tokens in range((request.num_tokens - 1) // self.grain * self.grain, 0, -self.grain):
            tables = []
            for group, (_, size, _) in enumerate(self.groups):
                first = self.first_needed(group, tokens)
                names = [(group, request.hash_at((i + 1) * size)) for i in range(first, tokens // size)]
                if all(name in self.cached for name in names):
                    tables.append([0] * first + [self.cached[name] for name in names])
            if len(tables) == len(self.groups):
                return tokens, tables
        return 0, [[] for _ in self.groups]

    def adopt(self, tables):
        for block in (block for table in tables for block in table if block):
            if not self.refs[block]:
                self.free.remove(block)
            self.refs[block] += 1

    def extend(self, request, computed, total):
        """Blocks for `total` tokens, of which `computed` are, or will be, there. None: no room."""
        wanted = []
        for group, (_, size, _) in enumerate(self.groups):
            have, first = len(request.tables[group]), self.first_needed(group, computed)
            wanted.append([index >= first for index in range(have, -(-total // size))])
        if sum(map(sum, wanted)) > len(self.free):
            return None
        added = [[self.take(1)[0] if real else 0 for real in of_group] for of_group in wanted]
        for table, more in zip(request.tables, added, strict=True):
            table += more
        return added

    # -- scheduling ----------------------------------------------------------------------------

    def add(self, request):
        self.requests[request.request_id] = request
        self.scheduler.on_new_request(request)

    def preempt(self, request):
        self.give_back(request.tables)
        request.tables, request.state, request.disturbed = None, "waiting", True
        request.num_computed_tokens, request.stale = 0, request.under_way
        self.preempted.add(request.request_id)

    def finish(self, request, *, ran):
        request.disturbed |= not ran
        tables = tuple(list(table) for table in request.tables or [[] for _ in self.groups])
        hold, _ = self.scheduler.request_finished_all_groups(request, tables)
        assert not (hold and request.state == "loading"), "held while loading"
        assert self.holds or not hold
        self.finished.add(request.request_id)
        self.ended.append(request)
        if hold or request.state == "loading":
            request.state = "held" if hold else "aborted"
        else:
            if request.tables:
                self.give_back(request.tables)
            del self.requests[request.request_id]

    def schedule(self):
        self.fresh, new, more, counts = [], [], [], {}
        for request in [r for r in self.requests.values() if r.state == "running"]:
            self._continue(request, more, counts)
        if not self.preempted:
            for request in [r for r in self.requests.values() if r.state in ("waiting", "loaded")]:
                if self.random.random() < 0.8 and not request.stale:
                    self._admit(request, new, counts)
        output = step(new, more, counts, self.finished, self.preempted)
        expected = self._expected_stores(counts)
        meta = self.scheduler.build_connector_meta(output)
        assert expected is None or expected == self._planned(meta), (expected, self._planned(meta))
        work = [
            (self.requests[name], self.requests[name].num_computed_tokens, count) for name, count in counts.items()
        ]
        self.scheduled += 1
        loads = [block for job in meta.load_jobs.values() for block in job.gpu_spec.block_ids]
        launched = [
            (request, start, start + count, [list(table) for table in request.tables])
            for request, start, count in work
        ]
        poison = [block for block in self.fresh if block not in loads]
        self.steps.append(SimpleNamespace(meta=meta, work=work, launched=launched, poison=poison, reports={}))
        for request, _, count in work:
            request.num_computed_tokens += count
            request.under_way += count
        self.finished, self.preempted = set(), set()

    def _continue(self, request, more, counts):
        """Let a running request compute more; if there is no room it is preempted."""
        computed = request.num_computed_tokens
        known = request.num_tokens if not self.run_ahead else len(request.full) - 1
        limit = request.num_prompt_tokens if computed < request.num_prompt_tokens else computed + 1
        count = min(known, limit, len(request.full) - 1) - computed
        if computed < request.num_prompt_tokens:
            count = min(request.num_prompt_tokens - computed, self.random.randint(1, 9))
        if count <= 0:
            return
        done = computed - request.under_way
        for group, table in enumerate(request.tables):
            gone = range(min(self.first_needed(group, done), len(table)))
            if self.groups[group][0] is WINDOW:
                freed = [table[index] for index in gone if table[index]]
                table[: len(gone)] = [0] * len(gone)
                self.deferred.append((0, freed))  # as vLLM: free at once
        self.deferred = deque(sorted(self.deferred, key=lambda entry: entry[0]))
        self.drain()
        added = None if self.random.random() < 0.03 else self.extend(request, done, computed + count)
        if added is None:
            self.preempt(request)
            return
        more.append((request.request_id, tuple(added) if any(added) else None))
        counts[request.request_id] = count
        self.cache(request, computed + count)

    def _admit(self, request, new, counts):
        computed, external, is_async = request.num_computed_tokens, 0, False
        if not computed:
            local, tables = self.local_hit(request)
            request.loaded, request.offered = set(), set()
            answer, is_async = self.scheduler.get_num_new_matched_tokens(request, local)
            if answer is None:
                return
            assert local + answer < request.num_tokens
            external = answer
            if external and all(kind is FULL for kind, _, _ in self.groups) and self.random.random() < 0.2:
                external = self.random.randint(0, answer)
                is_async &= external > 0
            if self.random.random() < 0.1:
                return  # something else kept it from being scheduled
            request.tables = tables
            self.adopt(tables)
            computed = local + external
        count = (
            0
            if is_async
            else min(max(request.num_prompt_tokens, computed + 1) - computed, self.random.randint(1, 9))
        )
        crowded = is_async and self._still_needed(request) > len(self.free)
        if crowded or self.extend(request, computed, computed + count) is None:
            if not request.num_computed_tokens:
                self.give_back(request.tables)
                request.tables = None
            return
        self.scheduler.update_state_after_alloc(request, Blocks(*request.tables), external)
        if external:
            self._note_load(request, computed - external, computed)
            sources = self.scheduler.get_external_cache_hit_sources(request, external)
            assert sum(sources.values()) == external
        request.num_computed_tokens = computed
        if is_async:
            request.state = "loading"
            return
        request.state = "running"
        new.append((request.request_id, tuple(list(table) for table in request.tables)))
        counts[request.request_id] = count
        self.cache(request, computed + count)

    def _still_needed(self, request):
        """Blocks that it, and those that hold some and do not run, need to their ends: nobody preempts them."""
        waiting = [r for r in self.requests.values() if r.state in ("loading", "loaded") and r.tables]
        return sum(
            -(-len(r.full) // size) - len(r.tables[group])
            for r in {id(r): r for r in (request, *waiting)}.values()
            for group, (_, size, _) in enumerate(self.groups)
        )

    def _note_load(self, request, local, boundary):
        _, size, _ = self.groups[0]
        per = size * self.per_chunk
        request.loaded = {*range(local // per, -(-boundary // per))}

    # -- what is to be stored, the slow way -----------------------------------------------------

    def _expected_stores(self, counts):
        """(request, group, chunk) of everything that is complete after the step and nowhere yet.

        Of a prompt that is computed still, if it is an eighth of what it offered before.
        """
        if (
            self.holds
            or self.manager.random
            or any(kind is not FULL for kind, _, _ in self.groups)
            or len({s for _, s, _ in self.groups}) > 1
        ):
            return None
        held = {*self.manager.resident, *self.manager.storing, *self.manager.fenced}
        expected = []
        for name, count in counts.items():
            request = self.requests[name]
            horizon = min(request.num_computed_tokens + count, request.num_prompt_tokens)
            for group, (_, size, _) in enumerate(self.groups):
                per = size * self.per_chunk
                before = max((chunk + 1 for of, chunk in request.offered if of == group), default=0)
                few = max(1, (before - len(request.loaded)) // 8)
                if horizon // per < min(before + few, request.num_prompt_tokens // per):
                    continue
                for chunk in range(horizon // per):
                    key = request.hash_at((chunk + 1) * per) + group.to_bytes(4, "big")
                    is_new = (group, chunk) not in request.offered
                    request.offered.add((group, chunk))
                    if chunk not in request.loaded and is_new and key not in held:
                        held.add(key)
                        blocks = request.tables[group][chunk * self.per_chunk : (chunk + 1) * self.per_chunk]
                        expected.append((name, group, tuple(blocks)))
        return sorted(expected)

    def _planned(self, meta):
        planned = []
        for job in meta.store_jobs.values():
            if not job.is_computed:
                blocks = list(job.src_spec.block_ids)
                for group, size in enumerate(job.src_spec.group_sizes):
                    for _ in range(size // self.per_chunk):
                        planned.append((job.req_id, group, tuple(blocks[: self.per_chunk])))
                        del blocks[: self.per_chunk]
        return sorted(planned)

    # -- a step's way --------------------------------------------------------------------------

    def execute(self, rank):
        now = next((s for s in self.steps if rank not in s.reports), None)
        if now is None:
            return
        worker, device = self.workers[rank], self.devices[rank]
        if self.holds:
            self._poison(device, now.poison)
        worker.handle_preemptions(now.meta)
        if not self.holds:
            self._poison(device, now.poison)
        worker.bind_connector_metadata(now.meta)
        in_step = any(job.sync for job in now.meta.load_jobs.values())
        if in_step:
            worker.start_load_kv(None)
        failed = set(worker.side._jobs._invalid_blocks)
        broken = {
            r.request_id for r, *_ in now.launched if failed & {b for table in r.tables or () for b in table}
        }
        device.launch([entry for entry in now.launched if entry[0].request_id not in broken])
        if not in_step:
            worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(set())
        now.reports[rank] = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        worker.side.check()

    def _poison(self, device, blocks):
        reading = {b for kind, s, _ in device.copies.running.values() if kind == "store" for b in s.block_ids}
        hit = reading & {*blocks}
        assert not hit, f"blocks {sorted(hit)} are written while a store reads them"
        for block in blocks:
            device.gpu.pop(block, None)

    def process(self):
        if not self.steps or len(self.steps[0].reports) < len(self.workers):
            return
        done = self.steps.popleft()
        for device in self.devices:
            device.retire(self.processed + 1)
        self.processed += 1
        self.drain()
        report = self.aggregator.aggregate_reports(done.reports.values())
        failed = self._fail_loads(report)
        for request, start, count in done.work:
            self._take_tokens(request, start + count, count, skip=request.request_id in failed)
        self.scheduler.update_connector_output(report)
        self.scheduler.side.check()
        for name in report.finished_recving or ():
            request = self.requests[name]
            assert request.state in ("loading", "aborted"), f"{name} was {request.state}"
            if request.state == "aborted" or not request.num_computed_tokens:
                self.give_back(request.tables)
                request.tables = None
            if request.state == "aborted":
                del self.requests[name]
            else:
                request.state = "loaded"
                if request.tables:
                    self.cache(request, request.num_computed_tokens)
        for name in report.finished_sending or ():
            assert self.requests[name].state == "held", f"{name} was not held"
            self.give_back(self.requests.pop(name).tables)

    def _fail_loads(self, report):
        failed = set()
        for request in list(self.requests.values()):
            if request.state not in ("loading", "running"):
                continue
            bad = report.invalid_block_ids & {block for table in request.tables for block in table}
            if bad:
                assert len(self.groups) == 1
                index = min(i for i, block in enumerate(request.tables[0]) if block in bad)
                request.num_computed_tokens = index * self.groups[0][1]
                failed.add(request.request_id)
                for block in request.tables[0][index:]:
                    self.cached.pop(self.name_of.pop(block, None), None)
            elif request.request_id in report.failed_recving and request.state == "loading":
                request.num_computed_tokens = 0
                failed.add(request.request_id)
            if request.request_id in failed:
                request.disturbed, request.loaded, request.offered = True, set(), set()
        return failed

    def _take_tokens(self, request, end, count, *, skip):
        request.under_way -= count
        if request.stale:
            request.stale -= count
            return
        if skip or self.requests.get(request.request_id) is not request or request.state != "running":
            return
        if end >= request.num_tokens and request.num_tokens < len(request.full):
            request.tokens = request.full[: end + 1]
            if request.num_tokens == len(request.full):
                self.finish(request, ran=True)

    # -- the end -------------------------------------------------------------------------------

    def settle(self):
        for device in self.devices:
            for job_id in list(device.copies.running):
                device.copies.end(job_id)

    def rest(self):
        """Let everything end, and see that nothing is left."""
        for _ in range(400):
            if not (self.requests or self.finished or self.steps or self.scheduler.has_pending_push_work()):
                break
            self.schedule()
            for rank in range(len(self.workers)):
                while any(rank not in s.reports for s in self.steps):
                    self.execute(rank)
            self.settle()
            while self.steps:
                self.process()
        else:
            raise AssertionError(f"still there: {[(r.request_id, r.state) for r in self.requests.values()]}")
        self.scheduler.side.check()
        books, manager = self.scheduler.side._books, self.manager
        assert not (
            books.states or books.jobs.live or books.jobs.stale or books.jobs.abandoned or books.jobs._watched
        )
        assert not (manager.storing or manager.pins.total() or manager.fenced)
        assert sorted(self.free) == list(range(1, self.num_blocks)), "blocks are never freed"
        assert all(not worker.side._jobs.running for worker in self.workers)
