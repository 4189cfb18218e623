"""What is logged, and how an address is written."""

import logging

from kv_p2p.log import place_of, warn


def test_a_place_is_a_host_and_a_port():
    assert (place_of("there", 80), place_of("::1", 80)) == ("there:80", "[::1]:80")


def test_a_warning_is_in_the_name_of_its_caller(caplog):
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        warn("%s of %d", "one", 2)
    [said] = caplog.records
    assert (said.name, said.levelname, said.getMessage()) == ("kv_p2p", "WARNING", "one of 2")
    assert said.funcName == "test_a_warning_is_in_the_name_of_its_caller"
