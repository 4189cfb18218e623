"""The kernel for buffers as NVRTC compiles it for GPUs, which takes none: what a thread has under way, and keeps.

``nox -s kernel`` runs this; see ``plain_kernel_run_check.py``. What shows the machine code comes with Triton.
"""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES
from kv_offload_cpu.copy.cuda.nvrtc import compile_source
from kv_offload_cpu.copy.cuda.plain_call import SOURCE, WARPS, WIDTHS, WORDS

REGISTERS = 65_536
"""Of a multiprocessor, of every generation that is tried."""

CUOBJDUMP = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

GENERATIONS = {"T4": (7, 5), "A100": (8, 0), "RTX 40": (8, 9), "H200": (9, 0), "B200": (10, 0), "RTX 50": (12, 0)}

KINDS = {16: "E.128", 8: "E.64", 4: "E", 2: "E.U16", 1: "E.U8"}
"""How machine code writes words."""


@pytest.fixture(scope="module", params=GENERATIONS.values(), ids=GENERATIONS)
def compiled(request):
    return compile_source(SOURCE, request.param)


def test_it_compiles_for_each_generation_and_keeps_everything_in_registers(compiled):
    assert compiled.code.startswith(b"\x7fELF")
    assert "warning" not in compiled.log
    kept = re.findall(r"(\d+ bytes stack frame, \d+ bytes spill stores, \d+ bytes spill loads)", compiled.log)
    assert kept == ["0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"] * len(WIDTHS)
    used = re.findall(r"Used (\d+) registers, used 0 barriers(.*)", compiled.log)
    assert len(used) == len(WIDTHS)
    for registers, more in used:
        assert int(registers) * 32 * WARPS <= REGISTERS / 8, "programs are small, so that others have room beside"
        assert "smem" not in more


def test_a_thread_loads_all_its_words_at_once_then_stores_them(compiled, tmp_path):
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.code)
    command = [CUOBJDUMP, "--dump-sass", str(file)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"Function : move_pages_(\d+)\n(.*?)\n\s*\.{5}", printed, re.DOTALL)
    assert {int(word) for word, _ in functions} == {*WIDTHS}
    for word, code in functions:
        done = re.findall(r"\b((?:LD|ST)[GLS]?\.E[\w.]*|BAR\.\w+|ATOM\w*)\b", code)
        done = [name.removesuffix(".SYS").removesuffix(".CONSTANT") for name in done]
        kind = KINDS[int(word)]
        assert done[-2 * WORDS :] == [f"LDG.{kind}"] * WORDS + [f"STG.{kind}"] * WORDS
        assert sorted(done[: -2 * WORDS]) == ["LDG.E"] + ["LDG.E.64"] * 7, "of a row of the table, and a step"
        assert not re.search(r"\b(?:LDL|STL)\b", code), "in memory of its own"


def test_a_generation_that_the_compiler_does_not_know_gets_ptx_of_the_oldest():
    ptx = compile_source(SOURCE, (15, 0)).code.decode()
    assert ".target sm_75\n" in ptx
    assert ".local" not in ptx and ".shared" not in ptx
    assert len(re.findall(r"\.visible \.entry move_pages_\d+\(", ptx)) == len(WIDTHS)
    for way in ("ld", "st"):
        assert len(re.findall(rf"{way}\.global\.v[24]\.[ub]\d+", ptx)) == WORDS, "of 16 bytes, in one move"
    assert not re.findall(r"\b(?:ld|st)\.[ub]\d+", ptx), "of memory that may be any"


def test_a_warp_moves_a_whole_step_of_the_widest_words():
    assert 32 * WORDS * max(WIDTHS) == STEP_BYTES
