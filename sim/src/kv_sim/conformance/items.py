"""A connector's scenarios as tests of pytest, and a summary of what they exercised.

Every scenario is a test, so ``-k``, ``-x``, ``--junitxml`` and parallel runs work as usual. A test's report
carries its findings as plain values, since it may have run in another process.
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from kv_api import ConfigError
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.conformance import report, scenarios
from kv_sim.console import selection, values
from kv_sim.console.exits import exits_are_raised
from kv_sim.subject import Subject

KEY: Final = "kv-sim"
MEDIUM_CONNECTOR: Final = "OffloadingConnector"


class ConnectorBroke(Exception):  # noqa: N818 - it carries what is printed
    """A scenario failed; the arguments are the lines to print."""


class Conformance:
    """Adds the tests of one connector to a session, and prints a summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.engine = config.getoption("--kv-engine") or BUILTIN_ENGINE
        self.name, self.subject, self.extra = _subject(config, self.engine)
        self.start = _checked(values.parse_seed, config.getoption("--kv-seed") or "0", "--kv-seed")
        histories = config.getoption("--kv-histories")
        self.histories = scenarios.USUAL_HISTORIES if histories is None else histories
        if self.histories < 1:
            raise pytest.UsageError(f"--kv-histories: more than 0, got {self.histories}")
        _checked(values.check_folder, "--kv-save", config.getoption("--kv-save"))
        self.folder = Path(config.getoption("--kv-save") or config.rootpath)
        self._rows: list[tuple[str, str, int, int, str]] = []
        self._situations: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add a test for each scenario; before others choose among the tests."""
        for scenario in scenarios.scenarios_of(self.subject):
            item = ScenarioItem.from_parent(session, name=f"{self.name}[{scenario.name}]")
            item.scenario, item.plan = scenario, self
            items.append(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test found."""
        found: Any = dict(report.user_properties).get(KEY)
        if report.when == "call" and found is not None:
            self._rows.append(tuple(found["row"]))
            self._situations.update(found["situations"])

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print what was tried and how often."""
        if not self._rows:
            return
        terminalreporter.section(f"conformance of {self.name}")
        for line in report.scenario_table(self._rows):
            terminalreporter.line(line)
        terminalreporter.line("")
        stopped = self._rows[-1][-1].startswith("breaks")
        traits = self.subject.traits
        for line in () if stopped else report.situation_table(self.subject, self._situations, traits):
            terminalreporter.line(line)
        for note in report.notes(self.subject, self._situations, is_whole=not stopped):
            terminalreporter.line(f"note: {note}")


class ScenarioItem(pytest.Item):
    """One scenario."""

    scenario: scenarios.Scenario
    plan: Conformance

    @exits_are_raised()
    def runtest(self) -> None:
        """Run its histories."""
        plan = self.plan
        outcome = scenarios.run_scenario(
            plan.subject, self.scenario, start=plan.start, histories=plan.histories, engine=plan.engine
        )
        found = {"row": report.row_of(outcome), "situations": dict(outcome.coverage.situations)}
        self.user_properties.append((KEY, found))
        if outcome.failure is not None:
            lines: list[str] = []
            report.tell_failure(
                plan.name,
                plan.extra,
                outcome.failure,
                plan.folder,
                say=lines.append,
                note=lambda text: lines.append(f"note: {text}"),
            )
            raise ConnectorBroke(*lines)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A failure as the testbed prints it; anything else as a traceback."""
        if isinstance(excinfo.value, ConnectorBroke):
            return "\n".join(map(str, excinfo.value.args))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is: in no file."""
        return self.plan.folder, None, self.name


def _subject(config: pytest.Config, engine: str) -> tuple[str, Subject, str | None]:
    connector, spec = config.getoption("--kv-connector"), config.getoption("--kv-spec")
    extra, traits = config.getoption("--kv-extra"), config.getoption("--kv-traits")
    if spec is not None:
        extra = _checked(values.with_spec, spec, extra)
    name = connector or MEDIUM_CONNECTOR
    kind = {name: config.getoption(f"--kv-{name}") for name in ("serves-peers", "shares-store")}
    choose = partial(
        selection.choose_subject, serves_peers=kind["serves-peers"], shares_store=kind["shares-store"]
    )
    return spec or name, _checked(choose, name, extra, traits, engine), extra


def _checked(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ConfigError as error:
        raise pytest.UsageError(re.sub(r"^--(?=connector|spec|extra|traits)", "--kv-", str(error))) from None
