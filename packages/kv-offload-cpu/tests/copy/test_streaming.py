"""The compiled loop: what it is made of, and what becomes of a process that can't have it."""

import errno
import mmap
import re
import sys
from logging import INFO, WARNING
from types import SimpleNamespace

import numpy as np
import pytest
from kv_offload_cpu_layouts import Shape, Tensor, make_caches, offloading_config
from llvmlite import ir

from kv_api import ConfigError
from kv_offload_cpu import CopyEngineChoice, CPUOffloadingSpec
from kv_offload_cpu.copy import choose, compiled
from kv_offload_cpu.copy.choose import host_mover
from kv_offload_cpu.copy.compiled import Unavailable
from kv_offload_cpu.copy.host import streaming
from kv_offload_cpu.copy.host.memmove import BY_C
from kv_offload_cpu.copy.host.streaming import find_streaming

AUTO, HOST, HOST_STREAM = CopyEngineChoice.AUTO, CopyEngineChoice.HOST, CopyEngineChoice.HOST_STREAM


@pytest.fixture
def fresh():
    """A process that has asked for nothing yet."""
    found = find_streaming()
    find_streaming.cache_clear()
    choose._tell.cache_clear()
    yield
    find_streaming.cache_clear()
    choose._tell.cache_clear()
    assert not isinstance(found, Unavailable), found


def test_it_is_compiled_once():
    assert find_streaming() is find_streaming()


def test_lines_are_streamed_before_a_fence_and_nothing_outside_is_called():
    text = str(streaming._describe(ir))
    lines = [line for line in text.splitlines() if "store <8 x i64>" in line]
    assert [line.partition(", align")[2] for line in lines] == [" 64, !nontemporal !0"]
    assert len(re.findall(r"\bstore\b", text)) == 5
    assert re.search(r"fence seq_cst\s+ret void", text)
    assert {re.split(r"[@(]", line)[1] for line in text.splitlines() if re.search(r"\bcall\b", line)} == {
        '"llvm.prefetch.p0i8"'
    }


# A process that can't have it


def lacks_llvmlite(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)


def lacks_its_library(monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise OSError("libllvmlite.so: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "llvmlite", Broken())


def is_a_process_of_several_engines(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "llvmlite")


def refuses_to_execute(monkeypatch):
    def map_memory(fileno, length, flags, prot):
        assert (fileno, flags) == (-1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        assert prot == mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(mmap, "mmap", map_memory)


def knows_no_execution(monkeypatch):
    monkeypatch.setattr(compiled, "mmap", SimpleNamespace(PROT_READ=1, PROT_WRITE=2))


def has_no_target(monkeypatch):
    def describe(ir):
        raise RuntimeError("no such target")

    monkeypatch.setattr(streaming, "_describe", describe)


def moves_only_words(monkeypatch):
    monkeypatch.setattr(streaming, "_moves_rightly", lambda move: False)


USE_HOST = "use 'host'"
INSTALL = "install kv-offload-cpu[host], or use 'host'"
LACKS = {
    lacks_llvmlite: (
        "needs llvmlite, which can't be imported (import of llvmlite halted; None in sys.modules)",
        INSTALL,
        INFO,
    ),
    lacks_its_library: (
        "needs llvmlite, which can't be imported (libllvmlite.so: cannot open shared object file)",
        INSTALL,
        INFO,
    ),
    is_a_process_of_several_engines: (
        "needs llvmlite, at which vLLM fails if it makes another engine for a CPU in this process",
        "let engines have processes of their own, or use 'host'",
        INFO,
    ),
    refuses_to_execute: (
        "needs memory that may be executed, and gets none ([Errno 13] Permission denied)",
        USE_HOST,
        INFO,
    ),
    knows_no_execution: (
        "needs memory that may be executed, and gets none ('types.SimpleNamespace' object has no attribute "
        "'PROT_EXEC')",
        USE_HOST,
        INFO,
    ),
    has_no_target: ("can't be compiled (RuntimeError: no such target)", USE_HOST, WARNING),
    moves_only_words: ("moved wrong bytes when it was tried", USE_HOST, WARNING),
}


@pytest.mark.parametrize(("lack", "expected"), LACKS.items(), ids=[lack.__name__ for lack in LACKS])
def test_who_cannot_have_it_copies_by_c_and_is_told_why(monkeypatch, caplog, fresh, lack, expected):
    caplog.set_level(INFO, "kv_offload_cpu")
    reason, remedy, level = expected
    with monkeypatch.context() as patch:
        lack(patch)
        assert find_streaming() == Unavailable(reason, remedy, level)
        assert find_streaming() is find_streaming()
    assert host_mover(HOST) is BY_C
    assert caplog.records == []
    assert [host_mover(AUTO), host_mover(AUTO)] == [BY_C, BY_C]
    assert caplog.record_tuples == [
        ("kv_offload_cpu", level, f"copy_engine: 'host', since 'host-stream' {reason}")
    ], "told once"
    with pytest.raises(ConfigError) as caught:
        host_mover(HOST_STREAM)
    assert str(caught.value) == f"copy_engine: 'host-stream' {reason}; {remedy}"


@pytest.mark.parametrize(
    ("modules", "parent", "breaks"),
    [
        (["vllm"], None, True),
        (["vllm"], "an engine's client", False),  # this process was started for one engine
        (["vllm", "llvmlite"], None, False),  # nothing gets worse
        ([], None, False),
    ],
)
def test_engines_are_not_broken(monkeypatch, modules, parent, breaks):
    monkeypatch.setattr(compiled, "sys", SimpleNamespace(modules=dict.fromkeys(modules)))
    monkeypatch.setattr(compiled, "parent_process", lambda: parent)
    assert compiled._would_break_engines() is breaks


def test_who_can_have_it_gets_it_unless_they_want_another(caplog):
    caplog.set_level(INFO, "kv_offload_cpu")
    assert host_mover(AUTO) is host_mover(HOST_STREAM) is find_streaming()
    assert host_mover(HOST) is BY_C
    assert caplog.records == []


def test_it_is_not_looked_for_by_who_wants_another(monkeypatch, fresh):
    lacks_llvmlite(monkeypatch)
    assert host_mover(HOST) is BY_C
    assert find_streaming.cache_info().currsize == 0


SHAPE = Shape(4, 1, (Tensor(100),), (((0, 100),),))


def worker_with(copy_engine, caches):
    config = offloading_config(100, cpu_bytes_to_use=1 << 16, copy_engine=copy_engine)
    return CPUOffloadingSpec(config).get_worker(caches)


@pytest.mark.parametrize(("copy_engine", "streams"), [("auto", True), ("host-stream", True), ("host", False)])
def test_a_worker_has_the_mover_that_its_configuration_says(copy_engine, streams):
    arrays, caches = make_caches(SHAPE, seed=1)
    worker = worker_with(copy_engine, caches)
    assert worker.engine._mover == (find_streaming() if streams else BY_C)
    worker.shutdown()
    del arrays


def test_a_worker_without_it_copies_all_the_same_unless_it_was_asked_for(monkeypatch, fresh):
    lacks_llvmlite(monkeypatch)
    _, caches = make_caches(SHAPE, seed=1)
    with pytest.raises(
        ConfigError, match=r"^copy_engine: 'host-stream' needs llvmlite, .*\[host\], or use 'host'$"
    ):
        worker_with("host-stream", caches)
    worker = worker_with("auto", caches)
    assert worker.engine._mover is BY_C
    worker.shutdown()


# What it is tried with sees every way to be wrong


@pytest.mark.parametrize("dropped", range(5))
def test_a_part_that_moves_nothing_is_seen_when_it_is_tried(monkeypatch, fresh, dropped):
    parts, move_part = [], streaming._Code._move

    def drop_one(self, kind, *rest):
        parts.append(str(kind))
        if len(parts) != dropped + 1:
            move_part(self, kind, *rest)

    monkeypatch.setattr(streaming._Code, "_move", drop_one)
    found = find_streaming()
    assert parts == ["i8", "i64", "<8 x i64>", "i64", "i8"]
    assert isinstance(found, Unavailable), f"a loop without its part {dropped} passed"
    assert found.reason == "moved wrong bytes when it was tried"


def test_wrong_sizes_and_places_are_seen_when_it_is_tried():
    def one_more(targets, sources, sizes):
        BY_C.move(targets, sources, sizes + 1)

    def all_but_one(targets, sources, sizes):
        BY_C.move(targets[1:], sources[1:], sizes[1:])

    assert streaming._moves_rightly(BY_C.move)
    assert not streaming._moves_rightly(one_more)
    assert not streaming._moves_rightly(all_but_one)
    assert not streaming._moves_rightly(lambda targets, sources, sizes: None)
    assert not streaming._moves_rightly(
        lambda *columns: BY_C.move(*(np.roll(c, 1) for c in columns[:2]), columns[2])
    )
