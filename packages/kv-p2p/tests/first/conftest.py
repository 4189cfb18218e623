"""A test that waits for ever ends the run, and says where all threads are; and pairs of buffers."""

import faulthandler
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kv_p2p_simple_buffers import Buffers, end, make

HANGS_AFTER_SECONDS = 120


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANGS_AFTER_SECONDS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["local", "local of one", "tcp"])
def sort(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def buffers(sort: str) -> Iterator[Buffers]:
    pair = make(sort)
    yield pair
    end(pair)
