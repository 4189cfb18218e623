"""What a real vLLM loads from us is what the testbed's engine model says, call by call. Run by ``vllm-long``."""

import pytest
from kv_vllm_predictions import check_prediction
from kv_vllm_runs import OURS, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("options", [{}, {"blocks_per_chunk": 2}, {"sync_load_budget_bytes": 1 << 30}], ids=str)
def test_loads_are_those_of_the_testbed(options, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    check_prediction(with_extra(OURS, **options), tmp_path)
