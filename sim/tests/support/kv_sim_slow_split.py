"""A split fleet with memory for everything, walked through step by step: what its servers must do, and when.

It shares nothing with the replay: queues are lists, the prefix cache is a set, and whoever waits looks every time.
"""

from dataclasses import dataclass

S = 1_000_000_000
NEVER = 1 << 62


@dataclass(eq=False)
class Req:
    index: int
    arrival: int
    prompt: int
    outputs: int
    names: tuple  # of full blocks of the prompt
    computed: int = 0
    made: int = 0
    state: str = "waiting"
    scheduled: int = -1
    first: int = -1
    end: int = -1
    parked: int = -1
    wait: int = 0
    external: int = 0
    ticket: object = None
    before: int = 0
    first_local: int = -1


@dataclass(eq=False)
class Held:
    owner: object
    req: Req
    served: bool = False
    over: bool = False  # ended
    gone: bool = False  # declined before it was served
    since: float = 0.0
    pull: object = None  # reading it


@dataclass(eq=False)
class Pull:
    held: Held
    req: Req
    receiver: object
    blocks: int
    began: float
    span: tuple | None = None

    def has_begun(self, now):
        return self.span is not None and self.span[0] <= now


class Net:
    def __init__(self, c):
        self.c, self.spans = c, []

    def give(self, s, r, blocks, now):
        d = self.c["pull_ns"] + int(blocks * self.c["block_bytes"] * self.c["net_ns_per_byte"]) + 1
        near = [x for x in self.spans if x[2] == s or x[3] == r]
        for b in sorted({now, *(x[1] for x in near if x[1] > now)}):
            if all(x[1] <= b or x[0] >= b + d for x in near):
                span = (b, b + d, s, r)
                self.spans.append(span)
                return span


class Server:
    def __init__(self, fleet, number, decodes):
        self.f, self.number, self.decodes, self.c = fleet, number, decodes, fleet.c
        self.now = 0
        self.phase = 0
        self.coming = []
        self.waiting, self.loading, self.running = [], [], []
        self.alive, self.untold = set(), False
        self.cache = set()
        self.holds_new, self.pulls_new = [], []
        self.held, self.pulls = [], []
        self.told = []  # (moment, order, kind, thing)
        self.n = 0
        self.done = []
        self.unfinished = 0
        self.steps = 0
        self.last = 0
        self.traffic = [0, 0, 0]

    # -- time
    def moment(self):
        if self.phase or self.alive or self.untold:
            return self.now
        m = min((c[0] for c in self.coming), default=NEVER)
        ends = [t[0] for t in self.told]
        m = min([m, *ends])
        if m == NEVER:
            return NEVER
        return max(self.now, m)

    def turn(self):
        if self.phase == 0:
            self.now = self.moment()
            self.coming.sort(key=lambda c: c[:2])
            while self.coming and self.coming[0][0] <= self.now:
                r = self.coming.pop(0)[2]
                self.alive.add(r)
                self.waiting.append(r)
            self.plan()
            if self.tokens:
                self.now += self.c["overhead"]
                self.phase = 1
                return
            self.hooks()
            self.process()
            return
        if self.phase == 1:
            self.hooks()
            t, p, x = self.tokens, self.pairs, self.context
            a = t * self.c["token"] + p * self.c["pair"]
            m = self.c["weights"] + x * self.c["ctx"]
            self.now += int(max(a, m)) + 1
            self.phase = 2
            return
        self.phase = 0
        self.process()

    # -- schedule
    def plan(self):
        self.steps += 1
        self.untold = False
        self.work = []
        self.tokens = self.pairs = self.context = 0
        self.budget = self.c["budget"]
        for r in self.running:
            if self.budget > 0:
                self.compute(r)
        queue = self.take_loaded()
        while not queue and self.waiting and self.has_room():
            self.begin(self.waiting.pop(0))

    def has_room(self):
        return self.budget > 0 and len(self.running) < self.c["running"]

    def compute(self, r):
        count = min(self.budget, r.prompt + r.made - r.computed)
        self.budget -= count
        self.tokens += count
        self.pairs += sum(range(r.computed + 1, r.computed + count + 1))
        self.context += r.computed + count
        r.computed += count
        self.cache.update(r.names[: r.computed // self.c["size"]])
        self.work.append(r)

    def take_loaded(self):
        """Those whose pull has ended go on. Returns those that there was no room to look at."""
        kept, queue = [], self.loading
        while queue and self.has_room():
            r = queue.pop(0)
            if r.state == "loading":
                kept.append(r)
            elif r.state == "failed":
                r.computed = 0
                self.waiting.insert(0, r)
            else:
                self.cache.update(r.names[: r.computed // self.c["size"]])
                r.computed -= 1
                self.admit(r)
        self.loading = kept + queue
        return queue

    def begin(self, r):
        size, local = self.c["size"], 0
        while local // size < (r.prompt - 1) // size and r.names[local // size] in self.cache:
            local += size
        if r.first_local < 0:
            r.first_local = local
        if r.ticket is None:
            r.computed = local
            self.admit(r)
            return
        held, r.ticket = r.ticket, None
        r.external = r.prompt - local
        r.state, r.computed = "loading", r.prompt
        r.parked = r.scheduled = self.now
        self.pulls_new.append(Pull(held, r, self, -(-r.prompt // size) - local // size, 0.0))
        self.loading.append(r)

    def admit(self, r):
        r.state = "running"
        if r.parked >= 0:
            r.wait += self.now - r.parked
            r.parked = -1
        if r.scheduled < 0:
            r.scheduled = self.now
        self.running.append(r)
        self.compute(r)

    # -- worker
    def tell(self, moment, kind, thing):
        self.n += 1
        self.told.append((moment, self.n, kind, thing))

    def send(self, pull, now):
        held = pull.held
        held.pull = pull
        pull.span = self.f.net.give(self.number, pull.receiver.number, pull.blocks, now)
        pull.receiver.tell(pull.span[1], "pulled", pull)
        self.tell(pull.span[1], "served", held)

    def hooks(self):
        self.serve()
        for p in self.pulls_new:
            p.began = self.now / S
            self.pulls.append(p)
            if p.held.over or p.held.gone:
                self.tell(self.now, "failed", p)
            elif p.held.served:
                p.held.owner.send(p, self.now)
        self.pulls_new = []
        self.freed, self.got, self.lost = [], [], []
        for item in sorted((x for x in self.told if x[0] <= self.now), key=lambda x: x[:2]):
            self.told.remove(item)
            self.hear(*item[2:])
        for held in list(self.held):
            if held.since + self.c["hold"] <= self.now / S:
                self.withdraw(held)
        for p in list(self.pulls):
            if p.began + self.c["patience"] <= self.now / S and not p.has_begun(self.now):
                if p.span is not None:
                    self.unsend(p)
                self.told = [x for x in self.told if x[3] is not p]
                self.lose(p)

    def serve(self):
        for held in self.holds_new:
            held.since = self.now / S
            self.held.append(held)
            if held.gone:
                self.tell(self.now, "served", held)
                continue
            held.served = True
            for p in [p for s in self.f.servers for p in s.pulls if p.held is held and p.span is None]:
                self.send(p, self.now)
        self.holds_new = []

    def hear(self, kind, thing):
        if kind == "served":
            if thing in self.held:
                self.held.remove(thing)
                self.freed.append(thing)
            thing.over = True
        elif kind == "failed":
            self.lose(thing)
        else:
            self.pulls.remove(thing)
            self.got.append(thing.req)
            begin, end = thing.span[:2]
            self.traffic = [a + b for a, b in zip(self.traffic, (1, thing.blocks, end - begin), strict=True)]

    def withdraw(self, held):
        p = held.pull
        if p is not None and p.has_begun(self.now):
            return
        if p is not None:
            self.unsend(p)
            p.receiver.tell(self.now, "failed", p)
        held.over, held.served = True, False
        self.held.remove(held)
        self.freed.append(held)

    def unsend(self, p):
        self.f.net.spans.remove(p.span)
        p.span = None
        p.receiver.told = [x for x in p.receiver.told if x[3] is not p]
        p.held.owner.told = [x for x in p.held.owner.told if not (x[3] is p.held and x[2] == "served")]
        p.held.pull = None

    def lose(self, p):
        self.pulls.remove(p)
        self.lost.append(p.req)
        held = p.held
        if held.over:
            return
        if held.served:
            held.owner.tell(self.now, "served", held)
        else:
            held.gone = True

    # -- output
    def process(self):
        now = self.now
        for r in self.work:
            if r.computed < r.prompt + r.made:
                continue
            r.made += 1
            if r.first < 0:
                r.first = now
        if self.tokens:
            self.last = now
        for r in [r for r in self.work if r.made == r.outputs]:
            self.running.remove(r)
            r.end = now
            self.untold = True
            self.done.append(r)
            if self.decodes:
                self.alive.remove(r)
                self.unfinished -= 1
            else:
                held = Held(self, r)
                self.holds_new.append(held)
                self.f.send_on(r, held)
        for r in self.lost:
            r.state = "failed"
        for r in self.got:
            r.state = "loaded"
        for held in self.freed:
            self.alive.discard(held.req)
        if not self.tokens and self.alive:
            self.now += self.c["idle"]


class Fleet:
    def __init__(self, c, shares, decoding):
        self.c, self.net = c, Net(c)
        self.decoders = [Server(self, n, True) for n in range(decoding)]
        self.prefillers = [Server(self, decoding + n, False) for n in range(len(shares))]
        self.servers = [*self.decoders, *self.prefillers]
        self.asked = {}
        order = 0
        for s, share in zip(self.prefillers, shares, strict=True):
            for r in share:
                order += 1
                self.asked[r.index] = r
                s.coming.append((r.arrival, order, Req(r.index, r.arrival, r.prompt, 1, r.names)))

    def send_on(self, done, held):
        d = min(self.decoders, key=lambda s: s.unfinished)
        d.unfinished += 1
        r = self.asked[done.index]
        r.ticket = held
        r.before = done.end - done.scheduled
        d.n += 1
        d.coming.append((done.end, d.n, r))

    def run(self):
        while True:
            moments = [s.moment() for s in self.servers]
            m = min(moments)
            if m == NEVER:
                return self
            self.servers[moments.index(m)].turn()
