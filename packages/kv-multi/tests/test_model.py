"""Random engines against the obvious model: every legal order of calls, every illegal order of reports."""

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_multi_model import EARLY, LATE, World
from kv_multi_model_worker import IDS

ids = st.sampled_from(IDS)
places = st.integers(0, 3)
answer = st.one_of(
    st.tuples(st.sampled_from([4, 8]), st.booleans()),
    st.just((0, False)),
    st.just((None, False)),
)
reports = st.lists(
    st.tuples(st.integers(0, 2), places, st.sampled_from(["save", "load", "fail"]), ids), max_size=8
)
RUN_AHEAD = 3


# Named functions: older versions of Hypothesis parse a lambda's source again and again.
def has(*statuses):
    def precondition_of_status(machine):
        return bool(machine.with_status(*statuses))

    return precondition_of_status


def may_plan(machine):
    return len(machine.world.planned) + len(machine.world.executed) < RUN_AHEAD


def is_planned(machine):
    return bool(machine.world.planned)


def is_executed(machine):
    return bool(machine.world.executed)


class Machine(RuleBasedStateMachine):
    """2 to 4 children, 1 to 3 workers, up to three steps between planning and processing."""

    quarantine = False
    world = None

    @initialize(num_children=st.integers(2, 4), num_workers=st.integers(1, 3))
    def begin(self, num_children, num_workers):
        self.world = World(num_children, num_workers, quarantine=self.quarantine)

    def with_status(self, *statuses):
        return [r for r, live in self.world.live.items() if live.status in statuses]

    @rule(request_id=ids)
    def add(self, request_id):
        if request_id not in self.world.live:
            self.world.add(request_id)

    @precondition(has("waiting", "matched"))
    @rule(data=st.data(), computed=st.sampled_from([0, 4]), answers=st.lists(answer, min_size=4, max_size=4))
    def query(self, data, computed, answers):
        request_id = data.draw(st.sampled_from(self.with_status("waiting", "matched")))
        self.world.query(request_id, computed, answers[: len(self.world.children)])

    @precondition(has("matched"))
    @rule(data=st.data(), shorter=st.sampled_from([0, 0, 1, 4, 8]))
    def allocate(self, data, shorter):
        self.world.allocate(data.draw(st.sampled_from(self.with_status("matched"))), shorter)

    @precondition(has("ready"))
    @rule(data=st.data())
    def resume(self, data):
        self.world.resume(data.draw(st.sampled_from(self.with_status("ready"))))

    @precondition(has("running"))
    @rule(data=st.data())
    def preempt(self, data):
        self.world.preempt(data.draw(st.sampled_from(self.with_status("running"))))

    @precondition(has("waiting", "matched", "loading", "ready", "running"))
    @rule(data=st.data(), holders=st.sets(places))
    def finish(self, data, holders):
        request_id = data.draw(
            st.sampled_from(self.with_status("waiting", "matched", "loading", "ready", "running"))
        )
        self.world.finish(request_id, holders & set(self.world.children))

    @precondition(may_plan)
    @rule()
    def plan(self):
        self.world.plan()

    @precondition(is_planned)
    @rule(reports=reports)
    def execute(self, reports):
        self.world.execute(reports)

    @precondition(is_executed)
    @rule()
    def process(self):
        self.world.process()

    @invariant()
    def check(self):
        if self.world is not None:
            self.world.check()

    def teardown(self):
        if self.world is not None:
            self.world.drain()


class QuarantineMachine(Machine):
    """The same with children that raise, in either side, and are switched off."""

    quarantine = True

    @precondition(has("waiting", "matched"))
    @rule(data=st.data(), answers=st.lists(answer | st.just("raise"), min_size=4, max_size=4))
    def query_broken(self, data, answers):
        request_id = data.draw(st.sampled_from(self.with_status("waiting", "matched")))
        self.world.query(request_id, 0, answers[: len(self.world.children)])

    @rule(place=places, method=st.sampled_from(["reset_cache", "has_pending_push_work", "take_events"]))
    def break_scheduler(self, place, method):
        if place in self.world.children:
            self.world.break_scheduler(place, method)

    @precondition(is_planned)
    @rule(
        reports=reports,
        raising=st.lists(st.tuples(st.integers(0, 2), places, st.sampled_from([*EARLY, LATE])), max_size=2),
    )
    def execute_broken(self, reports, raising):
        self.world.execute(reports, [entry for entry in raising if entry[1] in self.world.children])


TestMultiConnector = Machine.TestCase
TestQuarantine = QuarantineMachine.TestCase


@pytest.mark.parametrize("quarantine", [False, True])
def test_one_long_random_life(quarantine):
    """The same world driven by a plain seed: longer than what shrinks well."""
    rng = Random(5)
    world = World(3, 2, quarantine=quarantine)
    for _ in range(1500):
        step_at_random(world, rng)
        world.check()
    world.drain()


def step_at_random(world, rng):
    by_status = {}
    for request_id, live in world.live.items():
        by_status.setdefault(live.status, []).append(request_id)
    actions = []
    if len(world.live) < len(IDS):
        actions.append(lambda: world.add(rng.choice([r for r in IDS if r not in world.live])))
    waiting = by_status.get("waiting", []) + by_status.get("matched", [])
    if waiting:
        answers = [rng.choice([(0, False), (4, True), (8, True), (8, False)]) for _ in world.children]
        actions.append(lambda: world.query(rng.choice(waiting), rng.choice([0, 4]), answers))
    for status, action in [
        ("matched", lambda r: world.allocate(r, rng.choice([0, 0, 4]))),
        ("ready", world.resume),
    ]:
        if status in by_status:
            actions.append(lambda status=status, action=action: action(rng.choice(by_status[status])))
    if "running" in by_status:
        actions.append(lambda: world.preempt(rng.choice(by_status["running"])))
    unfinished = [r for r, live in world.live.items() if live.status != "finished"]
    if unfinished:
        holders = {place for place in world.children if rng.random() < 0.5}
        actions.append(lambda: world.finish(rng.choice(unfinished), holders))
    if len(world.planned) + len(world.executed) < RUN_AHEAD:
        actions.append(world.plan)
    if world.planned:
        said = [
            (rng.randrange(2), rng.randrange(3), rng.choice(["save", "load"]), rng.choice(IDS)) for _ in range(6)
        ]
        actions.append(lambda: world.execute(said))
    if world.executed:
        actions.append(world.process)
    rng.choice(actions)()
