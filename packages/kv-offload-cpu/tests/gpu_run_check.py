"""All methods on a GPU, beside the obvious model. ``nox -s gpu`` runs it, and fails where there is none.

It isn't named like a test file, so that no other run collects it.
"""

from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_offload_cpu_torch import check_jobs

from kv_offload_cpu import CopyEngineChoice, CopySubmission
from kv_offload_cpu.copy.choose import METHODS, by_buffer

if not torch.cuda.is_available():
    raise RuntimeError("torch sees no GPU here")


@pytest.mark.parametrize("submission", CopySubmission)
@pytest.mark.parametrize("choice", [*METHODS, CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_stored_is_what_is_loaded(choice, submission, data):
    units = [16, 256] if choice is CopyEngineChoice.CUDA_BULK else [1, 2, 4, 8, 16, 256]
    check_jobs(data, choice, submission, "cuda", units)


@pytest.mark.parametrize("submission", CopySubmission)
@pytest.mark.parametrize("unit", [1, 2, 4, 8, 16, 1024])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_small_buffer_moves_words_of_all_widths_in_many_pieces(submission, unit, data):
    """Those of 1,024 bytes are in pages of several steps."""
    small = partial(by_buffer, half_bytes=64 * unit)
    with patch.dict(METHODS, {CopyEngineChoice.CUDA_STAGED: small}):
        check_jobs(data, CopyEngineChoice.CUDA_STAGED, submission, "cuda", [unit])
