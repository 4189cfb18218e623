"""The agenda against a model that looks through everything in each step."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_offload.scheduler.state.agenda import Agenda

IDS = [f"r{number}" for number in range(6)]


class Model:
    """A step for each request, all of them compared in each step."""

    def __init__(self):
        self.step = 0
        self.steps = {}
        self.through = set()

    def take(self, counts):
        due = [name for name, step in self.steps.items() if step <= self.step]
        looks = [name for name in counts if counts[name] > 1 or name in due]
        self.step += 1
        for name in due:
            if name in counts:
                del self.steps[name]
            else:
                self.steps[name] = self.step
        return looks


steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from(["put", "remove", "hasten", "skip", "close"]),
                st.sampled_from(IDS),
                st.integers(0, 5),
            )
        ),
        st.dictionaries(st.sampled_from(IDS), st.integers(1, 2)),
    )
)


@given(steps)
@example([([("put", "r0", 2), ("put", "r0", 4)], {})])
@example([([("put", "r0", 1), ("put", "r1", 1)], {"r0": 1})])
def test_agrees_with_the_model(history):
    agenda, model = Agenda(), Model()
    for calls, counts in history:
        for call, name, ahead in calls:
            if call == "put":
                agenda.put(name, agenda.step + ahead - 1)
                model.through.discard(name)
                step = max(model.step + ahead - 1, model.step)
                model.steps[name] = min(step, model.steps.get(name, step))
            elif call == "remove":
                agenda.remove(name)
                model.steps.pop(name, None)
                model.through.discard(name)
            elif call == "close":
                agenda.close(name)
                model.steps.pop(name, None)
                model.through.add(name)
            elif call == "skip":
                agenda.skip(ahead)
                model.step += ahead
                model.steps = {name: max(step, model.step) for name, step in model.steps.items()}
            else:
                agenda.hasten(name)
                if name in model.steps or name in model.through:
                    model.steps[name] = model.step
                    model.through.discard(name)
        assert agenda.take(counts) == model.take(counts)
        assert {name: agenda.step_of(name) for name in IDS if agenda.step_of(name) is not None} == model.steps
        assert agenda.through == model.through
        assert [name for name in IDS if name in agenda] == [
            name for name in IDS if name in {*model.steps, *model.through}
        ]
        agenda.check({*model.steps, *model.through})


@given(
    st.lists(st.integers(1, 9), min_size=len(IDS), max_size=len(IDS)),
    st.lists(st.dictionaries(st.sampled_from(IDS), st.sampled_from([1, 1, 1, 3])), max_size=30),
)
def test_nobody_is_looked_at_too_late(ends, history):
    """Put off as far as it can be, a request is looked at in the step in which it has what it needs."""
    agenda = Agenda()
    computed = dict.fromkeys(IDS, 0)
    needed = dict(zip(IDS, ends, strict=True))
    for name in IDS:
        agenda.put(name, agenda.step)
    for counts in history:
        looks = agenda.take(counts)
        for name, count in counts.items():
            computed[name] += count
            assert computed[name] < needed[name] or name in looks
            if name in looks and computed[name] >= needed[name]:
                needed[name] = computed[name] + ends[IDS.index(name)]
            if name in looks:
                agenda.put(name, agenda.step - 1 + needed[name] - computed[name])
        agenda.check(IDS)


def test_single_tokens_cost_no_look_before_their_step():
    agenda = Agenda()
    agenda.put("a", 3)
    assert [agenda.take({"a": 1}) for _ in range(4)] == [[], [], [], ["a"]]


def test_who_is_due_and_not_in_the_step_stays_due():
    agenda = Agenda()
    agenda.put("a", 0)
    assert [agenda.take(counts) for counts in ({}, {}, {"a": 1}, {"a": 1})] == [[], [], ["a"], []]


@pytest.mark.parametrize("with_blocks", [["a", "b"], []])
def test_check_sees_who_is_missing_and_who_is_too_many(with_blocks):
    agenda = Agenda()
    agenda.put("a", 2)
    with pytest.raises(
        AssertionError, match=r"on the agenda or through \['a'\], with blocks " + re.escape(str(with_blocks))
    ):
        agenda.check(with_blocks)


def test_check_sees_who_is_through_and_on_the_agenda():
    agenda = Agenda()
    agenda.put("a", 2)
    agenda.through.add("a")
    with pytest.raises(AssertionError, match=r"\['a'\] are through, and on the agenda"):
        agenda.check(["a"])
