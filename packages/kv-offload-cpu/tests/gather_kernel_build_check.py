"""The gathering kernel as Triton compiles it for GPUs, which takes none: whether it can be as fast as is meant.

How many bytes a program has under way is up to the compiler: it may split wide loads, or put what doesn't fit in
registers into memory. ``nox -s kernel`` runs this; see ``gather_kernel_run_check.py``.
"""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.gather_kernel import TILES, WARPS, move_pages
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

THREADS = 32 * WARPS
REGISTERS = 65_536
"""Of a multiprocessor, of every generation that is tried."""

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@pytest.fixture(scope="module", params=[80, 90, 100], ids=["A100", "H200", "B200"])
def generation(request):
    return request.param


@pytest.fixture(scope="module", params=TILES)
def word(request):
    return request.param


@pytest.fixture(scope="module", params=Direction, ids=lambda direction: direction.value)
def compiled(request, generation, word):
    names = move_pages.arg_names
    constants = {**TILES[word]._asdict(), "is_store": request.param is Direction.STORE}
    types = {"table": "*i64", "steps": "*i64"}
    aligned = [["tt.divisibility", 16]]
    source = ASTSource(
        move_pages,
        {name: "constexpr" if name in constants else types.get(name, "i32") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): aligned for name in types},
    )
    return triton.compile(source, GPUTarget("cuda", generation, 32), {"num_warps": WARPS})


def test_a_thread_loads_all_of_its_share_before_it_stores_any(compiled, word):
    tile = TILES[word]
    count = tile.height * tile.lanes * tile.word_bytes // THREADS // word
    name = f"v2.b{word * 4}" if tile.in_pairs else f"b{word * 8}"
    done = re.findall(r"(?:ld|st)\.global\S*", compiled.asm["ptx"])
    assert done[-2 * count :] == [f"ld.global.{name}"] * count + [f"st.global.{name}"] * count
    assert not any(step.startswith("st") for step in done[: -2 * count])


def test_a_program_fits_into_a_multiprocessor(compiled, tmp_path):
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.asm["cubin"])
    printed = subprocess.run(
        [CUOBJDUMP, "--dump-resource-usage", str(file)], capture_output=True, text=True, check=True
    ).stdout
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", printed)
    assert int(registers) * THREADS <= REGISTERS
    assert int(stack) == 0, "registers are kept in memory"
    assert compiled.metadata.shared == 0


def test_a_tile_has_room_for_whole_steps(word):
    assert TILES[word].lanes * TILES[word].word_bytes == STEP_BYTES
