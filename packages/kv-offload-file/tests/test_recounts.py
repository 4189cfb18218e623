"""What can't be of bays and jobs is found when they are recounted."""

import pytest
from kv_offload_file_by_hand import LOAD, STORE, by_hand
from kv_offload_file_rig import Rig


def recount(break_it):
    """A store is under way in an engine that is recounted at the end."""
    with by_hand() as rig:
        rig.submit(1, STORE, [7, 5])
        break_it(rig.engine)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda engine: engine._lanes[STORE].free.append(0), "store: free [2, 3, 0] + used [0, 1] are not [0,"),
        (lambda engine: engine._lanes[LOAD].free.clear(), "load: free [] + used [] are not [4, 5, 6, 7]"),
        (lambda engine: engine._jobs.clear(), "waiting set() + under way {1} != set()"),
        (
            lambda engine: engine._lanes[LOAD].queue.append(engine._jobs[1]),
            "waiting {1} + under way set() != set()",
        ),
    ],
)
def test_of_an_engine(break_it, said):
    with pytest.raises(AssertionError) as raised:
        recount(break_it)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda worker: worker._files._lanes[STORE].free.clear(), "store: free [] + used []"),
        (lambda worker: setattr(worker, "_reported", 1), "running 0 + ended 0 + reported 1 != submitted 0"),
    ],
)
def test_of_a_worker(tmp_path, break_it, said):
    rig = Rig(tmp_path)
    rig.check()
    break_it(rig.ranks[0].worker)
    with pytest.raises(AssertionError) as raised:
        rig.ranks[0].worker.check()
    assert str(raised.value).startswith(said)
    rig.kill()
