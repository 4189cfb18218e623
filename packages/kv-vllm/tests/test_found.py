"""What fuzzing vLLM's own connectors has found: each schedule breaks, twice, as it did when it was found.

One that doesn't any more is news: this vLLM has mended it, which is to be listed, or the driver has changed.
"""

from pathlib import Path

import pytest

pytest.importorskip("kv_sim")

from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import replay
from kv_vllm.installed import vllm_version

SCHEDULES = Path(__file__).parent / "schedules"
LOAD = "NO-CRASH  worker # side, start_load_kv: "

FOUND = {
    "example-stores-what-is-not-computed": "CONTENT  request # token #: rank # block # holds poison",
    "example-stores-too-little": LOAD + "RuntimeError: shape mismatch",
    "example-looks-under-another-key": LOAD + "FileNotFoundError",
    "example-answers-less-than-nothing": "PROTOCOL  request #: get_num_new_matched_tokens(…, #) answered (-#",
    "example-ignores-the-adapter": "CONTENT  request # token #: rank # block # holds token # of request #, ",
    "example-rewrites-cached-blocks": "OWNERSHIP  rank # block # (of request #): the connector writes it",
    "multi-example-stores-what-is-not-computed": "CONTENT  request # token #: rank # block # holds poison, last",
    "offloading-is-reset-twice": "NO-CRASH  scheduler side, reset_cache: AssertionError",
    "offloading-loads-after-a-reset": "NO-CRASH  scheduler side, build_connector_meta: AssertionError:  (",
    "multi-offloading-is-reset-twice": "NO-CRASH  scheduler side, reset_cache: AssertionError",
    "offloading-stores-zeroes": "CONTENT  request # token #: rank # block # holds zeroes, last written",
    "offloading-fenced-too-late": "OWNERSHIP  rank # block # (of request #): step # zeroes it while store copy",
    "offloading-job-fails": "NO-CRASH  worker # side, get_transfer_results: AssertionError",
    "offloading-gets-an-id-again": "NO-CRASH  scheduler side, update_connector_output: KeyError",
    "offloading-gets-an-id-again-later": "NO-CRASH  scheduler side, build_connector_meta: AssertionError: New",
    "offloading-stores-a-session-wrongly": "CONTENT  request # token #: rank # block # holds token # of request #",
    "offloading-fences-no-window-at-the-end": "OWNERSHIP  rank # block # (of request #): step # computes into it",
    "offloading-stores-a-passed-window": "NO-CRASH  scheduler side, update_connector_output: KeyError: # (",
    "tiers-ask-again-for-good": "WORK  request #: get_num_new_matched_tokens answered 'ask again' # times in a",
    "tiers-are-not-reset": "HITS  request #: get_num_new_matched_tokens(…, #) found # tokens, but no request with",
    "tiers-example-keeps-nothing": "CONTENT  request # token #: rank # block # holds poison, last written by load",
}

MENDED = {"offloading-loads-after-a-reset": (0, 33), "offloading-stores-a-session-wrongly": (0, 33)}
"""Those that break nothing any more, and from which vLLM on."""


def test_every_schedule_is_listed():
    assert {file.stem for file in SCHEDULES.iterdir()} == set(FOUND)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOUND)
def test_it_breaks_as_it_did(name):
    pytest.importorskip("vllm")
    is_mended = name in MENDED and vllm_version() >= MENDED[name]
    from kv_vllm.driver.hunt import kind_of

    schedule = read_schedule(SCHEDULES / f"{name}.jsonl")
    for _ in range(2):
        _, violation = replay(schedule.subject, schedule.config, schedule.history)
        assert (violation is None) is is_mended
        assert violation is None or kind_of(violation)[: len(FOUND[name])] == FOUND[name]
