"""pytest's door to the testbed: ``pytest --kv-connector my_package:MyConnector``.

It is loaded into every pytest run of an environment that has kv-sim, so it imports nothing until it is asked for.
"""

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ABOUT_IT = (
    "--kv-extra",
    "--kv-traits",
    "--kv-serves-peers",
    "--kv-shares-store",
    "--kv-engine",
    "--kv-histories",
    "--kv-seed",
    "--kv-save",
)
"""Options about the connector that is tested."""


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the options."""
    group = parser.getgroup("kv-sim", "conformance of a KV connector")
    group.addoption(
        "--kv-connector", metavar="NAME", help="test this connector: module:Class, or an installed one"
    )
    group.addoption(
        "--kv-spec",
        metavar="NAME",
        help="test this offloading medium: module:Class, or an installed one",
    )
    group.addoption(
        "--kv-extra", metavar="JSON", help="settings to add to the connector's kv_connector_extra_config"
    )
    group.addoption(
        "--kv-traits", metavar="A,B", help="what the connector claims to support, or none (the default)"
    )
    group.addoption(
        "--kv-serves-peers",
        action="store_const",
        const=1,
        help="the connector serves other engines by tickets in kv_transfer_params; here one engine pulls from "
        "itself",
    )
    group.addoption(
        "--kv-two-engines",
        dest="kv_serves_peers",
        action="store_const",
        const=2,
        help="the same with two engines, for a connector that can't pull from itself",
    )
    group.addoption(
        "--kv-shares-store",
        action="store_true",
        default=None,
        help="run two engines that share the connector's store, without tickets",
    )
    group.addoption("--kv-engine", metavar="NAME", help="which engine drives it (default builtin)")
    group.addoption(
        "--kv-histories", type=int, metavar="N", help="how many histories to run for each scenario (default 100)"
    )
    group.addoption("--kv-seed", metavar="N", help="the first seed (default 0; 0x… is one, too)")
    group.addoption(
        "--kv-save",
        metavar="DIR",
        help="folder for schedule files of failures (default: rootdir)",
    )


def pytest_configure(config: "pytest.Config") -> None:
    """Add the tests, if a connector is to be tested."""
    if config.getoption("--kv-connector") is None and config.getoption("--kv-spec") is None:
        given = [option for option in ABOUT_IT if config.getoption(option) is not None]
        if given:
            import pytest

            raise pytest.UsageError(f"{given[0]}: of which connector? Say --kv-connector or --kv-spec")
        return
    rootdir = str(config.rootpath)
    if rootdir not in sys.path:  # there lies what somebody is writing
        sys.path.append(rootdir)
    with warnings.catch_warnings():  # whatever the user makes of warnings is meant for the connector
        warnings.simplefilter("ignore")
        from kv_sim.conformance.items import Conformance
    config.pluginmanager.register(Conformance(config), "kv-sim-conformance")
