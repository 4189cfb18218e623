"""The kernel of bulk copies as NVRTC compiles it for GPUs, which takes none.

``nox -s kernel`` runs this; see ``bulk_kernel_run_check.py``.
"""

import re

import pytest

from kv_offload_cpu.copy.cuda.bulk_call import SOURCE, WARPS, shared_bytes
from kv_offload_cpu.copy.cuda.nvrtc import compile_source

REGISTERS = 65_536
"""Of a multiprocessor, of every generation that is tried."""

ASSEMBLER = [
    "cp.async.bulk.commit_group",
    "cp.async.bulk.global.shared::cta.bulk_group",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
    "cp.async.bulk.wait_group 0;",  # before a store's next step
    "cp.async.bulk.wait_group 0;",  # at the end
    "cp.async.bulk.wait_group.read 0;",
    "fence.proxy.async",
    "mbarrier.arrive.expect_tx.shared::cta.b64",
    "mbarrier.init.shared::cta.b64",
    "mbarrier.try_wait.parity.shared::cta.b64",
]
"""What the host's run has other functions for, and so wouldn't miss."""


@pytest.fixture(scope="module", params=[(9, 0), (10, 0), (12, 0)], ids=["H200", "B200", "RTX 50"])
def compiled(request):
    return compile_source(SOURCE, request.param)


def test_it_compiles_for_each_generation_and_keeps_everything_in_registers(compiled):
    assert compiled.code.startswith(b"\x7fELF")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in compiled.log
    assert "warning" not in compiled.log
    [registers] = re.findall(r"Used (\d+) registers", compiled.log)
    assert int(registers) * 32 * max(WARPS.values()) <= REGISTERS / 4, "threads are few, so that others have room"


def test_a_generation_that_the_compiler_does_not_know_gets_ptx_of_bulk_copies():
    ptx = compile_source(SOURCE, (15, 0)).code.decode()
    assert ".target sm_90\n" in ptx
    assert ord(b" ") == 32, "the compiler's log, which is empty here, is in the bytes that all of Python shares"
    assert sorted(re.findall(r"(?:mbarrier|fence|cp)\.[\w.:]+(?: 0;)?", ptx)) == ASSEMBLER
    [parity] = re.findall(r"mbarrier\.try_wait\S+ p, \[%r\d+\], (%r\d+);", ptx)
    assert re.search(rf"and\.b32 \s*{parity}, %r\d+, 1;", ptx), "a parity is 0 or 1"
    assert not re.findall(r"(?:ld|st)\.global\S*v\d", ptx), "words are moved by threads"


def test_a_program_fits_into_a_multiprocessor_of_an_h200():
    assert shared_bytes(max(WARPS.values())) <= 227 << 10
