"""Host memory: what is available, what is refused, where slots and checksums lie, and that it is given back."""

import errno
import mmap
from dataclasses import replace
from logging import WARNING
from pathlib import Path

import numpy as np
import pytest
from kv_offload_cpu_layouts import Shape, Tensor, make_caches, offloading_config

from kv_api import ConfigError
from kv_offload_cpu import CPUOffloadingSpec, HostLayout
from kv_offload_cpu import memory as memory_module
from kv_offload_cpu.available import Available, available_memory
from kv_offload_cpu.memory import MappedMemory, memory_bytes
from kv_offload_cpu.shared_region import SharedRegion

POPULATE_WRITE = 23
"""What Linux calls it in its headers."""

LAYOUT = HostLayout(num_chunks=3, blocks_per_chunk=2, slot_bytes=100, slots_per_row=2, row_bytes=4096)


def write(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n"}
V2 = MEMINFO | {
    "proc/self/cgroup": "0::/pod/box\n",
    "sys/fs/cgroup/pod/box/memory.max": "max\n",
    "sys/fs/cgroup/pod/memory.max": "40000\n",
    "sys/fs/cgroup/pod/memory.current": "30000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 1000\n",
}
V1 = MEMINFO | {
    "proc/self/cgroup": "3:cpu:/x\n2:memory:/outside\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "2000\n",
}
V1_INSIDE = MEMINFO | {
    "proc/self/cgroup": "3:cpu,cpuacct:/tight\n2:hugetlb,memory:/pod:1\n",
    "sys/fs/cgroup/memory/tight/memory.limit_in_bytes": "10\n",  # what counts for cpu is elsewhere
    "sys/fs/cgroup/memory/pod:1/memory.limit_in_bytes": "8000\n",
    "sys/fs/cgroup/memory/pod:1/memory.usage_in_bytes": "1000\n",
    "sys/fs/cgroup/memory/pod:1/memory.stat": "inactive_file 300\ntotal_inactive_file 500\n",
}
V1_ALONE = {name: text for name, text in V1.items() if name not in MEMINFO}
V1_LIMIT = "sys/fs/cgroup/memory/memory.limit_in_bytes"
MACHINES = [
    ({}, None),
    (MEMINFO, Available(51200, "MemAvailable")),
    (V2, Available(11000, "the cgroup's memory.max")),
    (V1, Available(7000, "the cgroup's memory.limit_in_bytes")),
    (V1_INSIDE, Available(7500, "the cgroup's memory.limit_in_bytes")),
    (V1 | {V1_LIMIT: str(2**63 - 4096)}, Available(51200, "MemAvailable")),
    (V1_ALONE | {V1_LIMIT: str(1 << 60)}, None),
    (V1_ALONE | {V1_LIMIT: str((1 << 60) - 1)}, Available((1 << 60) - 2001, "the cgroup's memory.limit_in_bytes")),
    ({**V1_INSIDE, "proc/self/cgroup": "2:memory:/tight\n"}, Available(10, "the cgroup's memory.limit_in_bytes")),
    (V2 | {"proc/self/cgroup": "0::/pod/elsewhere\n"}, Available(51200, "MemAvailable")),
    (V2 | {"sys/fs/memory.max": "5\n"}, Available(11000, "the cgroup's memory.max")),
    (
        V1 | {"sys/fs/cgroup/memory/memory.usage_in_bytes": "9999"},
        Available(0, "the cgroup's memory.limit_in_bytes"),
    ),
]


@pytest.mark.parametrize(("files", "expected"), MACHINES, ids=range(len(MACHINES)))
def test_the_tightest_limit_counts(tmp_path, files, expected):
    write(tmp_path, files)
    assert available_memory(tmp_path) == expected


def test_this_machine_has_memory():
    found = available_memory()
    assert found is None or found.num_bytes > 0


def test_more_than_there_is_is_refused_with_the_figures(monkeypatch):
    monkeypatch.setattr(memory_module, "available_memory", lambda: Available(5000, "MemAvailable"))
    with pytest.raises(ConfigError) as caught:
        MappedMemory(LAYOUT)
    assert str(caught.value) == (
        "cpu_bytes_to_use: private host memory would take 12336 bytes, 5000 are available (MemAvailable)"
    )


@pytest.mark.parametrize("available", [None, Available(memory_bytes(LAYOUT), "MemAvailable")])
def test_what_just_fits_is_taken_and_so_is_what_nobody_knows_of(monkeypatch, available):
    monkeypatch.setattr(memory_module, "available_memory", lambda: available)
    MappedMemory(LAYOUT).release()


@pytest.mark.parametrize("limit", ["memory", "folder"])
def test_shared_memory_counts_all_workers_and_the_file_system(monkeypatch, tmp_path, limit):
    low = Available(5000, "the limit")
    if limit == "memory":
        monkeypatch.setattr(memory_module, "available_memory", lambda: low)
    else:
        monkeypatch.setattr(SharedRegion, "free_bytes", staticmethod(lambda folder: low))
    config = offloading_config(100, 1, 0, 2, cpu_bytes_to_use=2 * 4096, shared_memory_dir=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        CPUOffloadingSpec(config).get_worker(make_caches(Shape(2, 1, (Tensor(100),), (((0, 100),),)), 0)[1])
    assert str(caught.value) == (
        "cpu_bytes_to_use: shared host memory of all workers would take 8208 bytes, 5000 are available (the limit)"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("slots_per_row", "slot", "asked_for"),
    [
        (1, 0, [(0, 3 * 4096)]),
        (2, 0, [(0, 100), (4096, 100), (8192, 100)]),
        (2, 1, [(0, 200), (4096, 200), (8192, 200)]),  # whole pages
    ],
)
def test_the_pages_of_our_slots_are_touched_at_the_start(monkeypatch, slots_per_row, slot, asked_for):
    asked = []

    def advise(mapped, advice, begin, size):
        if advice == POPULATE_WRITE:
            asked.append((begin, size))

    monkeypatch.setattr(memory_module, "_advise", advise)
    MappedMemory(replace(LAYOUT, slots_per_row=slots_per_row), slot).release()
    assert asked == asked_for


def test_who_finds_shared_memory_needs_no_more(monkeypatch, tmp_path):
    regions = [SharedRegion(tmp_path, "engine", rank, 2, memory_bytes(LAYOUT)) for rank in range(2)]
    monkeypatch.setattr(memory_module, "available_memory", lambda: Available(0, "MemAvailable"))
    for rank, region in enumerate(regions):
        MappedMemory(LAYOUT, rank, region).release()


def test_memory_that_the_system_refuses_is_a_configuration_error(monkeypatch, tmp_path):
    def refuse(mapped, advice, begin, size):
        return errno.ENOMEM if advice == POPULATE_WRITE else None

    monkeypatch.setattr(memory_module, "_advise", refuse)
    for region in (None, SharedRegion(tmp_path, "engine", 0, 2, memory_bytes(LAYOUT))):
        with pytest.raises(ConfigError) as caught:
            MappedMemory(LAYOUT, 0, region)
        assert str(caught.value) == (
            "cpu_bytes_to_use: the system refused memory for 3 chunks of 100 bytes: ENOMEM"
        )
    assert list(tmp_path.iterdir()) == []


def test_advice_that_the_system_does_not_know_is_an_error_number():
    with mmap.mmap(-1, mmap.PAGESIZE) as mapped:
        answers = [memory_module._advise(mapped, advice, 0, mmap.PAGESIZE) for advice in (mmap.MADV_NORMAL, 9999)]
    assert answers == [None, errno.EINVAL]


def test_an_older_kernel_gives_memory_at_its_first_use(monkeypatch):
    monkeypatch.setattr(memory_module, "_advise", lambda *arguments: errno.EINVAL)
    memory = MappedMemory(LAYOUT)
    assert not memory.bytes.any()
    memory.release()


def test_rows_then_the_checksums_of_each_slot(tmp_path):
    regions = [SharedRegion(tmp_path, "engine", rank, 2, memory_bytes(LAYOUT)) for rank in range(2)]
    first, second = (MappedMemory(LAYOUT, rank, region) for rank, region in enumerate(regions))
    assert first.bytes.shape == second.bytes.shape == (3 * 4096,)
    assert first.sums.shape == second.sums.shape == (3, 2)
    first.bytes[:] = 1
    first.sums[:] = 2
    second.sums[:] = 3
    assert (second.bytes == 1).all()
    assert (first.sums == 2).all()
    assert first.address == first.bytes.ctypes.data
    first.release()
    assert (second.bytes == 1).all()
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_release_lets_go_of_the_file_too(tmp_path):
    memory = MappedMemory(LAYOUT, 0, SharedRegion(tmp_path, "engine", 0, 2, memory_bytes(LAYOUT)))
    assert len(list(tmp_path.iterdir())) == 1
    memory.release()
    assert list(tmp_path.iterdir()) == []


def test_release_gives_the_mapping_back():
    memory = MappedMemory(LAYOUT)
    mapped = memory._map
    memory.release()
    assert mapped.closed
    assert (memory.bytes.size, memory.sums.size) == (0, 0)


def test_release_with_a_view_still_out_leaves_the_mapping_to_it(caplog):
    memory = MappedMemory(LAYOUT)
    view = memory.bytes
    view[0] = 5
    memory.release()
    assert view[0] == 5
    assert caplog.record_tuples == [
        ("kv_offload_cpu", WARNING, "host memory stays mapped: somebody still has a view of it")
    ]


def test_rows_of_odd_sizes_have_checksums_too():
    memory = MappedMemory(HostLayout(3, 1, 33, 1, 33))
    memory.sums[:] = np.arange(3)[:, None]
    assert not memory.bytes.any()
    assert memory_bytes(memory.layout) == 3 * 33 + 3 * 4
    assert len(memory._map) <= mmap.PAGESIZE
    memory.release()


SMAPS = Path("/proc/self/smaps")


def flags_at(address):
    """What the kernel notes of the mapping that an address is in, as `man proc` has it."""
    begin = end = 0
    for line in SMAPS.read_text().splitlines():
        head, *rest = line.split()
        if head == "VmFlags:" and begin <= address < end:
            return set(rest)
        if not head.endswith(":"):
            begin, end = (int(number, 16) for number in head.split("-"))
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux says how memory is mapped")
def test_private_memory_is_shared_with_no_child_and_may_be_in_huge_pages():
    memory = MappedMemory(LAYOUT)
    flags = flags_at(memory.address)
    memory.release()
    assert {"rd", "wr", "dc"} <= flags, "dc: a child doesn't inherit it"
    assert "sh" not in flags, "shared memory gets no huge pages unless an administrator says so"
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()
