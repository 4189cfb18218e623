"""The papers' algorithms in the most obvious form: lists, one chunk at a time, no thought of speed.

A chunk is its slot. Pins are handled by one rule, which the real policies document, too: an eviction that
meets a pinned chunk sets it aside (``parked``), and it comes back as just used when it is unpinned.
"""


class Model:
    def __init__(self, capacity):
        self.capacity = capacity
        self.key_of = {}
        self.parked = []

    def store(self, keys, slots_for, count, pins, run):
        """Evict and insert. ``slots_for`` tells the slots of the new chunks, given the evicted."""
        evicted = [self.evict(pins) for _ in range(count)]
        slots = slots_for(evicted)
        for key, slot in reversed(list(zip(keys, slots, strict=True))):
            self.key_of[slot] = key
            self.insert(key, slot)
        return evicted, slots

    def unpin(self, slots, run):
        for slot in reversed(slots):
            if slot in self.parked:
                self.parked.remove(slot)
                self.come_back(slot)

    def finish(self, run):
        pass


class LRUModel(Model):
    def __init__(self, capacity):
        super().__init__(capacity)
        self.runs = []  # [run, [slots]], oldest first

    def store(self, keys, slots_for, count, pins, run):
        evicted = [self.evict(pins) for _ in range(count)]
        slots = slots_for(evicted)
        self.access(slots, run)
        return evicted, slots

    def evict(self, pins):
        while True:
            _, slots = self.runs[0]
            slot = slots.pop()
            self.drop_empty()
            if not pins[slot]:
                return slot
            self.parked.append(slot)

    def access(self, slots, run):
        if not slots:
            return
        self.finish(run)
        if not self.runs or self.runs[-1][0] is not run:
            self.runs.append([run, []])
        ours = self.runs[-1][1]
        self.parked = [slot for slot in self.parked if slot not in slots]
        for slot in slots:
            if slot not in ours:
                for _, others in self.runs[:-1]:
                    if slot in others:
                        others.remove(slot)
                ours.append(slot)
        if None not in [run.position(slot) for slot in ours]:
            ours.sort(key=run.position)
        self.drop_empty()

    def finish(self, run):
        self.runs.sort(key=lambda entry: entry[0] is run)

    def unpin(self, slots, run):
        self.access([slot for slot in slots if slot in self.parked], run)

    def remove(self, slots):
        for slot in slots:
            for held in [self.parked, *(slots for _, slots in self.runs)]:
                if slot in held:
                    held.remove(slot)
        self.drop_empty()

    def drop_empty(self):
        self.runs = [entry for entry in self.runs if entry[1]]


class SieveModel(Model):
    """The paper's Algorithm 1, with a list for the linked list: index 0 is the tail."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.queue = []
        self.visited = set()
        self.hand = None  # a slot, or None for the tail

    def step(self, slot):
        """What is next to ``slot`` towards the head, or None at the head."""
        index = self.queue.index(slot) + 1
        return self.queue[index] if index < len(self.queue) else None

    def evict(self, pins):
        at = self.hand if self.hand is not None else self.queue[0]
        while pins[at] or at in self.visited:
            following = self.step(at)
            self.visited.discard(at)
            if pins[at]:
                self.queue.remove(at)
                self.parked.append(at)
            at = following if following is not None else self.queue[0]
        self.hand = self.step(at)
        self.queue.remove(at)
        return at

    def insert(self, key, slot):
        self.queue.append(slot)

    come_back = lambda self, slot: self.queue.append(slot)  # noqa: E731

    def access(self, slots, run):
        self.visited.update(slot for slot in slots if slot in self.queue)

    def remove(self, slots):
        for slot in slots:
            self.visited.discard(slot)
            if slot in self.parked:
                self.parked.remove(slot)
            else:
                if self.hand == slot:
                    self.hand = self.step(slot)
                self.queue.remove(slot)


class S3FIFOModel(Model):
    """The paper's Algorithm 1; index 0 of a list is the oldest."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.small, self.main, self.ghost = [], [], []
        self.uses = {}
        self.home = {}

    def evict(self, pins):
        while True:
            if len(self.small) >= max(1, self.capacity // 10) or not self.main:
                slot = self.small.pop(0)
                if self.uses[slot] > 1:
                    self.main.append(slot)
                    self.home[slot] = self.main
                    self.uses[slot] = 0
                elif pins[slot]:
                    self.parked.append(slot)
                else:
                    self.ghost.append(self.key_of[slot])
                    self.ghost = self.ghost[-(self.capacity - max(1, self.capacity // 10)) or len(self.ghost) :]
                    return slot
            else:
                slot = self.main.pop(0)
                if self.uses[slot] > 0:
                    self.main.append(slot)
                    self.uses[slot] -= 1
                elif pins[slot]:
                    self.parked.append(slot)
                else:
                    return slot

    def insert(self, key, slot):
        self.uses[slot] = 0
        self.home[slot] = self.main if key in self.ghost else self.small
        if key in self.ghost:
            self.ghost.remove(key)
        self.home[slot].append(slot)

    def come_back(self, slot):
        self.home[slot].append(slot)

    def access(self, slots, run):
        for slot in slots:
            self.uses[slot] = min(3, self.uses[slot] + 1)

    def remove(self, slots):
        for slot in slots:
            (self.parked if slot in self.parked else self.home[slot]).remove(slot)


class ARCModel(Model):
    """The paper's Figure 4. T1 and T2 are `LRUModel`s; parked chunks count for the list that they came from.

    Key by key of a batch it is decided which list gives a chunk; who that is, is seen at the end, and until then
    ``PENDING`` stands for it in the ghost list. So it is at the end that a list may prove to be pinned, and the
    other one gives what is missing.
    """

    PENDING = None

    def __init__(self, capacity):
        super().__init__(capacity)
        self.t1, self.t2 = LRUModel(capacity), LRUModel(capacity)
        self.b1, self.b2 = [], []
        self.p = 0

    def size(self, held):
        return sum(len(slots) for _, slots in held.runs) + len(held.parked)

    def store(self, keys, slots_for, count, pins, run):
        c, to1, to2 = self.capacity, [], []
        t1, t2 = self.size(self.t1), self.size(self.t2)
        from1 = from2 = unremembered = 0
        for index, key in enumerate(keys):
            is_in_b2 = key in self.b2
            if key in self.b1:  # case II
                self.p = min(c, self.p + max(1, len(self.b2) / len(self.b1)))
            elif is_in_b2:  # case III
                self.p = max(0, self.p - max(1, len(self.b1) / len(self.b2)))
            elif t1 + len(self.b1) == c:  # case IV A
                if t1 == c:
                    unremembered += 1
                    to1.append(key)
                    continue
                self.b1.pop(0)
            elif t1 + t2 + len(self.b1) + len(self.b2) == 2 * c:  # case IV B
                self.b2.pop(0)
            if index >= len(keys) - count:  # REPLACE
                if t1 >= 1 and (t1 > self.p or (is_in_b2 and t1 == self.p)):
                    self.b1.append(self.PENDING)
                    t1, from1 = t1 - 1, from1 + 1
                else:
                    self.b2.append(self.PENDING)
                    t2, from2 = t2 - 1, from2 + 1
            for ghosts in (self.b1, self.b2):
                if key in ghosts:
                    ghosts.remove(key)
                    to2.append(key)
            t1, t2 = (t1, t2 + 1) if key in to2 else (t1 + 1, t2)
            if key not in to2:
                to1.append(key)
        evicted = self.give(from1, from2, unremembered, pins)
        slots = slots_for(evicted)
        slot_of = dict(zip(keys, slots, strict=True))
        self.key_of.update(zip(slots, keys, strict=True))
        self.t1.access([slot_of[key] for key in to1], run)
        self.t2.access([slot_of[key] for key in to2], run)
        return evicted, slots

    def give(self, from1, from2, unremembered, pins):
        first = self.take(self.t1, from1 + unremembered, pins)
        second = self.take(self.t2, from1 + unremembered + from2 - len(first), pins)
        first += self.take(self.t1, from1 + unremembered + from2 - len(first) - len(second), pins)
        remembered = first[: max(0, len(first) - unremembered)]
        self.b1 = self.settle(self.b1, from1, remembered)
        self.b2 = self.settle(self.b2, from2, second)
        return first + second

    def take(self, held, count, pins):
        taken = []
        while len(taken) < count and held.runs:
            slot = held.runs[0][1].pop()
            held.drop_empty()
            (held.parked if pins[slot] else taken).append(slot)
        return taken

    def settle(self, ghosts, planned, evicted):
        """Put keys in place of what is pending; what was forgotten while it was pending stays forgotten."""
        forgotten = planned - ghosts.count(self.PENDING)
        known = [key for key in ghosts if key is not self.PENDING]
        return known + [self.key_of[slot] for slot in evicted[forgotten:]]

    def access(self, slots, run):
        self.t1.remove(slots)
        self.t2.access(slots, run)

    def unpin(self, slots, run):
        self.t1.unpin(slots, run)
        self.t2.unpin(slots, run)

    def remove(self, slots):
        self.t1.remove(slots)
        self.t2.remove(slots)

    def finish(self, run):
        self.t1.finish(run)
        self.t2.finish(run)


MODELS = {"arc": ARCModel, "lru": LRUModel, "s3fifo": S3FIFOModel, "sieve": SieveModel}
