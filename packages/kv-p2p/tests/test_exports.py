"""What the package exports, and when it is imported."""

import subprocess
import sys

import pytest

import kv_p2p


def test_every_name_is_there_also_those_that_are_imported_later():
    for name in kv_p2p.__all__:
        assert getattr(kv_p2p, name).__name__ == name
    assert set(kv_p2p.__all__) <= set(dir(kv_p2p))
    assert sorted(kv_p2p._LATER) == [name for name in kv_p2p.__all__ if not name.startswith("P2P")]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError) as refused:
        kv_p2p.SimplePipe  # noqa: B018
    known = ", ".join(kv_p2p.__all__)
    assert str(refused.value) == f"module 'kv_p2p' has no attribute 'SimplePipe'; it exports {known}"


def test_the_first_family_is_imported_when_it_is_asked_for():
    script = (
        "import sys, kv_p2p; before = 'kv_p2p.first.connector' in sys.modules; kv_p2p.SimpleConnector; "
        "print(before, 'kv_p2p.first.connector' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("base", "methods"),
    [
        (kv_p2p.KVPipeBase, ["close", "recv_tensor", "send_tensor"]),
        (kv_p2p.KVLookupBufferBase, ["close", "drop_select", "insert"]),
        (kv_p2p.KVStoreBufferBase, ["close", "get", "put"]),
    ],
)
def test_who_writes_a_pipe_or_a_buffer_of_their_own_may_leave_nothing_out(base, methods):
    for missing in methods:
        mine = type("Mine", (base,), {name: lambda self: None for name in methods if name != missing})
        with pytest.raises(TypeError, match=missing):
            mine()
    assert type("Mine", (base,), {name: lambda self: None for name in methods})()
