"""The gathering kernel under Triton's interpreter, on the host: which bytes go where.

``nox -s kernel`` runs it, and sets TRITON_INTERPRET=1. It isn't named like a test file, so that no other run
collects it: Triton takes a gigabyte.
"""

import os
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_kernels import check_a_job

import kv_offload_cpu.copy.cuda.gather_kernel as gather_kernel
from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Kernels

settings.register_profile("kernel", max_examples=60, deadline=None)
settings.load_profile("kernel")

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("set TRITON_INTERPRET=1")


class Driver:
    """Tables on the host, and kernels on it."""

    def __init__(self):
        self.mapped_shift = 0
        self.launched = []

    def new_table(self, num_rows):
        return SimpleNamespace(numbers=np.zeros(COLUMNS * num_rows, np.int64))

    def new_steps(self, numbers, count, word, kernels):
        return torch.from_numpy(numbers)

    def upload(self, stream, table, num_rows):
        table.on_device = torch.from_numpy(table.numbers[: COLUMNS * num_rows].copy())

    def run_kernel(self, stream, launch):
        steps = launch.steps
        self.launched.append(steps.word)
        told = gather_kernel.arguments(
            launch.table.on_device,
            launch.num_rows,
            launch.rows,
            steps.on_device,
            steps.num_steps,
            is_store=launch.direction is Direction.STORE,
            word=steps.word,
        )
        count = gather_kernel.num_programs(len(launch.rows) * steps.num_steps, steps.word, launch.programs)
        gather_kernel.move_pages[(count,)](*told)


@given(st.integers(1, 3), st.sampled_from(Direction), st.data())
def test_the_kernel_moves_what_the_job_is_made_of(programs, direction, data):
    check_a_job(data, Driver(), direction, [1, 2, 4, 8, 16], programs, Kernels.GATHER)


def test_as_many_programs_as_have_something_to_do():
    height = gather_kernel.TILES[16].height
    expected = {0: 1, 1: 1, height: 1, height + 1: 2, 3 * height: 3, 100 * height: 4}
    assert {items: gather_kernel.num_programs(items, 16, 4) for items in expected} == expected
