"""The scheduler's side through random lives of requests, against a model that writes down what it must tell."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_p2p_engine import SIZE, Blocks, Request, scheduler, step, ticket_of

from kv_api import KVConnectorOutput
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Part, Pull, Source
from kv_p2p.pulling.ticket import digest_of, read_ticket

NAMES = ("a", "b", "c")
PROMPT = range(10)
OTHER = range(50, 60)


class Life:
    """What the model knows of one request."""

    def __init__(self, request, ticket):
        self.request = request
        self.ticket = ticket
        self.local = 0
        self.more = 0
        self.table = []

    @property
    def source(self):
        return Source(self.ticket.address, self.ticket.hold_id, self.ticket.digest)


class Machine(RuleBasedStateMachine):
    @initialize(role=st.sampled_from(["kv_both", "kv_producer", "kv_consumer"]))
    def start(self, role):
        self.role = role
        self.half = scheduler(role)
        self.told = P2PMetadata()
        self.live = {}
        self.pulling, self.held = set(), {}
        self.holds = self.tickets = 0
        self.blocks = iter(range(1, 1 << 30))

    def some(self, names):
        return st.sampled_from(sorted(names))

    @precondition(lambda self: set(NAMES) - set(self.live) - self.pulling - set(self.held))
    @rule(
        data=st.data(),
        ticketed=st.sampled_from([None, (4, PROMPT), (7, PROMPT), (10, PROMPT), (10, OTHER), (11, range(11))]),
        wanted=st.booleans(),
    )
    def new(self, data, ticketed, wanted):
        name = data.draw(self.some(set(NAMES) - set(self.live) - self.pulling - set(self.held)))
        params, ticket = {"do_remote_decode": wanted}, None
        if ticketed is not None:
            self.tickets += 1
            count, tokens = ticketed
            ticket = ticket_of(tokens[:count], hold_id=f"there.{self.tickets}")
            params = {**ticket.to_params("there"), **params}
        request = Request(name, PROMPT, params, computed=0)
        self.live[name] = life = Life(request, ticket)
        self.half.on_new_request(request)
        fits = ticketed is not None and ticketed[1] is PROMPT and self.role != "kv_producer"
        if ticket is not None and not fits:
            self.told.declined.append(life.source)
            life.ticket = None

    @precondition(lambda self: any(not life.table for life in self.live.values()))
    @rule(data=st.data(), blocks=st.integers(0, 2))
    def ask(self, data, blocks):
        """A request that has no blocks is asked about, with what the engine itself has of it."""
        name = data.draw(self.some(name for name, life in self.live.items() if not life.table))
        life, local = self.live[name], blocks * SIZE
        usable = 0
        if life.ticket is not None:
            count = life.ticket.num_tokens
            usable = count if count == len(PROMPT) else count // SIZE * SIZE
        life.local, life.more = local, max(0, usable - local)
        assert self.half.get_num_new_matched_tokens(life.request, local) == (life.more, life.more > 0)

    @precondition(lambda self: any(not life.table for life in self.live.values()))
    @rule(data=st.data())
    def allocate(self, data):
        """It gets blocks, and loads what was matched, or less of it."""
        name = data.draw(self.some(name for name, life in self.live.items() if not life.table))
        life = self.live[name]
        count = data.draw(st.integers(0, life.more))
        life.table = [next(self.blocks) for _ in range(3)]
        self.half.update_state_after_alloc(life.request, Blocks(*life.table), count)
        if life.ticket is None:
            return
        if count:
            indices = sorted({token // SIZE for token in range(life.local, life.local + count)})
            blocks = tuple(life.table[index] for index in indices)
            self.told.pulls.append(Pull(name, life.source, (Part(indices[0], blocks),)))
            self.pulling.add(name)
        else:
            self.told.declined.append(life.source)
        life.ticket = None

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data):
        """What is not being pulled is computed; a second allocation, with nothing to load, says nothing."""
        life = self.live[data.draw(self.some(self.live))]
        if life.table and life.request.request_id not in self.pulling:
            life.request.num_computed_tokens = len(PROMPT)
            self.half.update_state_after_alloc(life.request, Blocks(*life.table), 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), status=st.sampled_from(["FINISHED_STOPPED", "FINISHED_ABORTED"]))
    def finish(self, data, status):
        name = data.draw(self.some(self.live))
        life = self.live.pop(name)
        request = life.request
        request.status.name = status
        if life.ticket is not None:
            self.told.declined.append(life.source)
        hold, params = self.half.request_finished(request, list(life.table))
        assert hold is (
            request.kv_transfer_params["do_remote_decode"]
            and self.role != "kv_consumer"
            and status == "FINISHED_STOPPED"
            and name not in self.pulling
            and request.num_computed_tokens == len(PROMPT)
        )
        if not hold:
            assert params is None
            return
        self.holds += 1
        hold_id, digest = f"{name}.{self.holds}", digest_of(request, len(PROMPT))
        ticket = read_ticket(params)
        assert (ticket.hold_id, ticket.digest, ticket.num_tokens) == (hold_id, digest, len(PROMPT))
        self.told.holds.append(Hold(name, hold_id, digest, (tuple(life.table),)))
        self.held[name] = hold_id

    def is_told(self, name):
        return name not in {one.request_id for one in (*self.told.pulls, *self.told.holds)}

    @rule(data=st.data())
    def report(self, data):
        """Workers say what has ended, of what they were told."""
        received = {name for name in sorted(self.pulling) if self.is_told(name) and data.draw(st.booleans())}
        sent = {name for name in sorted(self.held) if self.is_told(name) and data.draw(st.booleans())}
        output = KVConnectorOutput(finished_sending=sent or None, finished_recving=received or None)
        self.half.update_connector_output(output)
        self.pulling -= received
        for name in sent:
            del self.held[name]

    @rule()
    def reset(self):
        assert self.half.reset_cache() is True
        self.told.revoked += sorted(self.held)
        self.told.declined += [life.source for life in self.in_order() if life.ticket is not None]
        for life in self.live.values():
            life.ticket, life.more = None, 0

    def in_order(self):
        """Who came first is declined first."""
        return list(self.live.values())

    @rule(tokens=st.integers(0, 1))
    def step(self, tokens):
        self.told.is_idle = tokens == 0
        assert self.half.build_connector_meta(step(tokens)) == self.told
        self.told = P2PMetadata()

    @invariant()
    def recount(self):
        if hasattr(self, "half"):
            self.half.check()
            told = self.told
            something = told.holds or told.pulls or told.declined or told.revoked
            assert self.half.has_pending_push_work() is bool(something or self.pulling or self.held)


TestScheduler = Machine.TestCase
