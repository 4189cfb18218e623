"""What can't be in any of a half's books is found when they are recounted."""

import pytest
from kv_multi_scripted import Events, child, make

from kv_api import KVConnectorRole
from kv_multi import MultiKVConnectorKVEvents, PlannedLoad
from kv_multi.choice import Match

SCHEDULER = [
    (lambda half: half._choices._matches.update(r=Match(2, 8, True, 0)), "r: child 2 of 2"),
    (lambda half: half._choices._matches.update(r=Match(-1, 8, True, 0)), "r: child -1 of 2"),
    (lambda half: half._choices._matches.update(r=Match(0, 0, True, 0)), "r: a match of 0 tokens"),
    (lambda half: half._holds._held.update(r=()), "r: held by ()"),
    (lambda half: half._holds._held.update(r=(1, 0)), "r: held by (1, 0)"),
    (lambda half: half._holds._held.update(r=(1, 1)), "r: held by (1, 1)"),
    (lambda half: half._holds._held.update(r=(0, 2)), "r: held by (0, 2) of 2 children"),
    (lambda half: half._holds._untold.update(r=(0,)), "r: (0,) untold, () held"),
    (lambda half: half._loads._running.update(r=2), "r: loaded by child 2 of 2"),
    (lambda half: half._loads._running.update(r=-1), "r: loaded by child -1 of 2"),
    (lambda half: half._loads._untold.update(r=PlannedLoad(0, True)), "is untold, but not in flight"),
    (lambda half: half._last_report._missing.update(r=[]), "r: misses []"),
    (lambda half: half._last_report._missing.update(r=["sent"]), "r: misses ['sent']"),
    (lambda half: half._quarantine._reasons.update(c="why"), "off: ['c'], children: ['a', 'b']"),
]
WORKER = [
    (lambda half: half._saves._waiting.update(r=set()), "r: waits for no child"),
    (lambda half: half._saves._waiting.update(r={1, 2}), "r: waits for [1, 2]"),
    (lambda half: half._saves._waiting.update(r={-1}), "r: waits for [-1]"),
    (lambda half: (half._saves._waiting.update(r={0}), half._saves._done.add("r")), "r: reported, and still"),
    (lambda half: half._loads._waiting.update(r=PlannedLoad(0, False)), "is waited for"),
    (lambda half: half._loads._waiting.update(r=PlannedLoad(2, True)), "of 2 children"),
    (lambda half: half._loads._waiting.update(r=PlannedLoad(-1, True)), "of 2 children"),
    (
        lambda half: (half._loads._waiting.update(r=PlannedLoad(0, True)), half._loads._finished.add("r")),
        "was rep",
    ),
    (lambda half: half._quarantine._reasons.update(c="why"), "off: ['c'], children: ['a', 'b']"),
]


@pytest.mark.parametrize(
    ("role", "break_it", "said"),
    [(KVConnectorRole.SCHEDULER, *case) for case in SCHEDULER]
    + [(KVConnectorRole.WORKER, *case) for case in WORKER],
)
def test_recounting_finds_what_cannot_be(role, break_it, said):
    multi = make([child(name="a"), child(name="b")], role)
    multi.check()
    break_it(multi.side)
    with pytest.raises(AssertionError) as raised:
        multi.check()
    assert said in str(raised.value)


def test_no_child_has_the_events_of_more_workers_than_there_are():
    events = MultiKVConnectorKVEvents({"x": Events()})
    events.check()
    events.containers["x"].increment_workers()
    with pytest.raises(AssertionError, match=r"^x: 2 workers of 1"):
        events.check()
