"""All methods on a GPU, beside the obvious model. ``nox -s gpu`` runs it, and fails where there is none.

It isn't named like a test file, so that no other run collects it.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_torch import check_jobs

from kv_offload_cpu import CopyEngineChoice, CopySubmission
from kv_offload_cpu.copy.choose import METHODS

if not torch.cuda.is_available():
    raise RuntimeError("torch sees no GPU here")


@pytest.mark.parametrize("submission", CopySubmission)
@pytest.mark.parametrize("choice", [*METHODS, CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_stored_is_what_is_loaded(choice, submission, data):
    units = [16, 256] if choice is CopyEngineChoice.CUDA_BULK else [1, 2, 8, 16, 256]
    check_jobs(data, choice, submission, "cuda", units)
