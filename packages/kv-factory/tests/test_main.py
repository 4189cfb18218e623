"""``python -m kv_factory``: the table as it is printed."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kv_factory
from kv_factory import KVConnectorFactory, Offer, OffloadingSpecFactory, Target
from kv_factory.__main__ import main
from kv_factory.listing import rows
from kv_factory.registry import LazyRegistry

NOTHING = """\
Nothing is installed that offers a connector or an offloading spec.
Install a package that does; in the same environment it is found by itself. Or write one: a package offers its
classes as entry points in the groups kv_connectors and kv_offload_specs.

kind             name                 target  origin         importable?
connector        MultiConnector       -       not installed  no: install the package kv-multi
connector        OffloadingConnector  -       not installed  no: install the package kv-offload
connector        P2PConnector         -       not installed  no: install the package kv-p2p
connector        SimpleConnector      -       not installed  no: install the package kv-p2p
offloading spec  CPUOffloadingSpec    -       not installed  no: install the package kv-offload-cpu
offloading spec  FileOffloadingSpec   -       not installed  no: install the package kv-offload-file
"""
TABLE = """\
kind             name                 target         origin         importable?
connector        Mine                 kvf_zoo:Two    registered     yes
connector        MultiConnector       kvf_zoo:Hma    kvf-multi 3.1  yes
connector        Wrong                kvf_zoo:Spec   registered     \
no: Spec is no connector: it doesn't derive from KVConnectorBase or KVConnectorBase_V1
connector        OffloadingConnector  -              not installed  no: install the package kv-offload
connector        P2PConnector         -              not installed  no: install the package kv-p2p
connector        SimpleConnector      -              not installed  no: install the package kv-p2p
offloading spec  Away                 kvf_nowhere:A  registered     no: there is no module 'kvf_nowhere'
offloading spec  CPUOffloadingSpec    -              not installed  no: install the package kv-offload-cpu
offloading spec  FileOffloadingSpec   -              not installed  no: install the package kv-offload-file
"""


def test_where_nothing_is_installed_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == NOTHING


def test_each_name_has_a_row(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    with kv_factory.isolated(
        connectors=[Offer("MultiConnector", Target(zoo, "Hma"), "from kvf-multi 3.1")], specs=()
    ):
        KVConnectorFactory.register_connector("Mine", zoo, "Two")
        KVConnectorFactory.register_connector("Wrong", zoo, "Spec")
        OffloadingSpecFactory.register_spec("Away", "kvf_nowhere", "A")
        assert main([]) == 0
    assert capsys.readouterr().out == TABLE


def test_an_error_of_several_lines_has_one_in_the_table_and_prints_go_elsewhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "kvf_loud.py").write_text("print('hello')\nraise RuntimeError('no\\n  device')\n")
    KVConnectorFactory.register_connector("Loud", "kvf_loud", "A")
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].endswith(
        "no: importing 'kvf_loud' failed: RuntimeError: no device (kvf_loud.py:2)"
    )
    assert ("hello" in printed.out, printed.err) == (False, "hello\n")


def test_a_name_that_two_packages_offer_is_said_to_clash(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    offers = [Offer("One", Target(zoo, name), f"from kvf-{name.lower()} 1.0") for name in ("Two", "Hma")]
    with kv_factory.isolated(connectors=offers, specs=()):
        assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "connector        One                  kvf_zoo:Hma, kvf_zoo:Two  kvf-hma 1.0, kvf-two 1.0  "
        "no: offered more than once"
    )


def test_json_says_the_same(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    KVConnectorFactory.register_connector("Mine", zoo, "Two")
    assert main(["--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('[\n  {\n    "kind"'), "for people, too"
    mine, *_, spec, _ = json.loads(printed)
    assert mine == {
        "kind": "connector", "name": "Mine", "target": "kvf_zoo:Two", "origin": "registered",
        "importable": True, "error": None,
    }  # fmt: skip
    assert spec == {
        "kind": "offloading spec", "name": "CPUOffloadingSpec", "target": None, "origin": "not installed",
        "importable": False, "error": "install the package kv-offload-cpu",
    }  # fmt: skip


def test_what_is_not_installed_is_listed_in_the_order_of_names() -> None:
    registry = LazyRegistry("thing", "things", (Exception,), {"b": "kv-b", "a": "kv-a"}, search=lambda group: [])
    assert [(row.name, row.error) for row in rows(registry)] == [
        ("a", "install the package kv-a"),
        ("b", "install the package kv-b"),
    ]


def test_help_says_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "every connector and offloading spec that is known here, and if it can be imported." in told
    assert "--json print a JSON array, an object for each name" in told


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--yaml"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("usage: python -m kv_factory ")
    assert "--yaml" in told


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_nobody_need_read_to_the_end(option: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "kv_factory", *option]
    late = {**os.environ, "PYTHONUNBUFFERED": ""}  # written at the end, since it isn't much
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, env=late)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_table_that_can_not_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no reader who has seen enough."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OSError, match="no space left"):
        main([])
