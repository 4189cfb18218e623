"""Ports for engines: each has its own, and nobody who connects somewhere is given one meanwhile."""

import os
import socket

import pytest

from kv_vllm.driver.surroundings import ports
from kv_vllm.driver.surroundings.ports import free_ports, process_with


def test_engines_of_a_process_have_none_in_common():
    """Nor one that a system hands out by itself, from 32768 on in Linux: others may get it meanwhile."""
    given = [int(number) for _ in range(20) for number in free_ports().values()]
    assert len(set(given)) == len(given) == 60
    assert 1024 < min(given) < max(given) < 32_000


def test_processes_begin_at_different_places_and_come_by_all(monkeypatch):
    begun = set()
    for number in (7, 8, 4242):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        tried = ports._from_anywhere()
        numbers = [next(tried) for _ in range(1500)]
        assert len(set(numbers)) == 1500
        assert [next(tried) for _ in range(1500)] == numbers
        begun.add(numbers[0])
    assert len(begun) == 3


def test_where_somebody_listens_is_passed_over(monkeypatch):
    free = [*free_ports().values()]
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(ports, "_NUMBERS", iter([taken.getsockname()[1], *map(int, free)]))
        assert [*free_ports().values()] == free


def test_they_stand_in_the_environment_for_a_while(monkeypatch):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "7")
    monkeypatch.delenv("VLLM_P2P_SIDE_CHANNEL_PORT", raising=False)
    monkeypatch.delenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", raising=False)
    given = free_ports()

    def in_it(fails):
        with process_with(given):
            assert {name: os.environ[name] for name in given} == given
            assert os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] != "7"
            assert "VLLM_P2P_SIDE_CHANNEL_PORT" in os.environ
            assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" in os.environ
            assert not fails, "it couldn't be made"

    in_it(fails=False)
    with pytest.raises(AssertionError, match="it couldn't be made"):
        in_it(fails=True)
    assert os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "7"
    assert "VLLM_P2P_SIDE_CHANNEL_PORT" not in os.environ
