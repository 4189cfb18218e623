"""Schedule files: one history as JSON lines, to attach to a bug report and to replay anywhere.

The first line is the header: the connector, the world and the violation. Each further line is one action. The
fields of dataclasses, and ``ARGUMENTS``, say what a line may hold. Reading is strict: an error in a file that was
edited, or is of another version, is refused with its line and reason, so that no other history is replayed
silently. docs/schedules.md describes the format.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from kv_api import ConfigError
from kv_api.errors import did_you_mean
from kv_sim.actions import Action, Kind
from kv_sim.config import MOST_ENGINES, GroupConfig, WorldConfig
from kv_sim.engine.pause import PauseMode
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.failures import limits
from kv_sim.fuzz import Failure
from kv_sim.strict import Bad, check_keys, check_type, read_names, read_object, word
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

FORMAT: Final = "kv-sim schedule"
VERSION: Final = 1

ARGUMENTS: Final[Mapping[Kind, Mapping[str, Any]]] = {
    Kind.ADD: {"spec": RequestSpec},
    Kind.ABORT: {"request": str},
    Kind.TURN: {"request": str},
    Kind.STEP: {"rejects": dict},
    Kind.SCHEDULE: {"rejects": dict},
    Kind.EXECUTE: {"rank": int},
    Kind.RETIRE: {"rank": int},
    Kind.PROCESS: {},
    Kind.SETTLE: {},
    Kind.FINISH: {"rank": int, "copy": int},
    Kind.ADVANCE: {"rank": int, "copy": int, "pages": int},
    Kind.FAIL: {"rank": int, "copy": int},
    Kind.SPOIL: {"rank": int, "load": bool},
    Kind.LOSE: {"rank": int, "copy": int},
    Kind.FIND: {"rank": int, "copy": int},
    Kind.REPEAT: {"rank": int, "copy": int},
    Kind.RESTART: {"rank": int, "memory": bool},
    Kind.RESET: {"running": bool, "connector": bool},
    Kind.PAUSE: {"mode": PauseMode},
    Kind.SLEEP: {},
    Kind.WAKE: {},
}
"""The arguments of each kind of action; each has ``engine``, too, where a world has several."""

OPTIONAL: Final = frozenset({"engine", "rejects", "load"})
"""Arguments that are left out if they are empty or false; ``engine`` for the first engine."""


MAY_BE_NOTHING: Final = frozenset({"evicts", "run_ahead", "spec_tokens", "host_slots", "trouble"})
"""Numbers of a world that may be 0."""


class ScheduleError(ConfigError):
    """A schedule file can't be read; the message names the file, the line and the reason."""


@dataclass(frozen=True)
class Schedule:
    """The content of a schedule file."""

    subject: Subject
    config: WorldConfig
    history: list[Action]
    violation: str | None = None
    """The violation as text: the invariant, two spaces, the message."""
    seed: int | None = None
    """The seed of the history that this one was shrunk from."""
    without: frozenset[Invariant] = frozenset()
    """Checkers that were switched off."""

    @classmethod
    def of(cls, failure: Failure, without: frozenset[Invariant] = frozenset()) -> "Schedule":
        """The schedule of a failure."""
        return cls(
            failure.subject, failure.config, list(failure.history), str(failure.violation), failure.seed, without
        )

    @property
    def invariant(self) -> str | None:
        """Which invariant broke."""
        return self.violation.split()[0] if self.violation else None


# -- writing -----------------------------------------------------------------------------------


def to_text(schedule: Schedule) -> str:
    """The text of a schedule file."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "violation": schedule.violation,
        "seed": schedule.seed,
        "without": sorted(schedule.without),
        "subject": schedule.subject.to_json(),
        "world": schedule.config.to_json(),
    }
    lines = [header, *(action.to_json() for action in schedule.history)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def write_schedule(schedule: Schedule, folder: Path, stem: str) -> Path:
    """Write ``stem.jsonl``, or ``stem-2.jsonl`` and so on if that exists; no file is ever overwritten.

    If one of these files already has this schedule, no other is written.
    """
    text = to_text(schedule)
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        file = folder / (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl")
        try:
            _write_new(file, text)
            return file
        except FileExistsError:
            if file.is_file() and file.read_bytes() == text.encode():
                return file
        number += 1


def _write_new(file: Path, text: str) -> None:
    """Write a new file. If that fails, no part of it is left."""
    opened = file.open("x", encoding="utf-8", newline="\n")
    try:
        with opened:
            opened.write(text)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


# -- reading -----------------------------------------------------------------------------------


def read_schedule(file: Path) -> Schedule:
    """Read a schedule file."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ScheduleError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{file}: this is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return parse_schedule(text, str(file))


def parse_schedule(text: str, name: str) -> Schedule:
    """Read the text of a schedule file; ``name`` begins every error."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ScheduleError(f"{name}: line 1: the file is empty; it begins with a header line")
    number, line = lines[0]
    try:
        head = _header(read_object(line))
        history = []
        for number, line in lines[1:]:  # noqa: B007 - an error names it
            history.append(_action(read_object(line), head["config"]))
    except Bad as error:
        raise ScheduleError(f"{name}: line {number}: {error}") from None
    return Schedule(history=history, **head)


def _header(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``Schedule``, its history excepted."""
    if values.get("format") != FORMAT:
        raise Bad(f"this is no schedule file: 'format' is {values.get('format')!r}, expected {FORMAT!r}")
    if values.get("version") != VERSION:
        raise Bad(
            f"format version {values.get('version')!r}; this kv-sim reads version {VERSION}: "
            "use the kv-sim that wrote it, or write it anew"
        )
    wanted = {"format": str, "version": int, "violation": str | None, "seed": int | None, "without": list}
    check_keys("header", values, {**wanted, "subject": dict, "world": dict}, optional={"seed", "without"})
    return {
        "violation": values["violation"],
        "seed": values.get("seed"),
        "without": read_names("without", values.get("without", []), Invariant),
        "subject": _subject(values["subject"]),
        "config": _world(values["world"]),
    }


def _subject(values: dict[str, Any]) -> Subject:
    wanted = {
        "kv_connector": str,
        "module_path": str | None,
        "extra_config": dict,
        "traits": list,
        "blocks_per_chunk": int,
        "keeps_from": int,
        "evicts_oldest": bool,
        "serves_peers": bool,
        "engines": int,
        "shares_store": bool,
    }
    check_keys("subject", values, wanted, optional={*wanted} - {"kv_connector", "traits"})
    for key in ("blocks_per_chunk", "keeps_from", "engines"):
        if values.get(key, 1) < 1:
            raise Bad(f"subject.{key}: at least 1, got {values[key]}")
    limits.check_most("subject.engines", values.get("engines", 1), MOST_ENGINES)
    limits.check_most("subject.keeps_from", values.get("keeps_from", 1), limits.MOST_KEEPS_FROM)
    read_names("subject.traits", values["traits"], Trait)
    try:
        return Subject.from_json(values)
    except ConfigError as error:
        raise Bad(str(error)) from None


def _world(values: dict[str, Any]) -> WorldConfig:
    hints = {**get_type_hints(WorldConfig), "groups": list, "silent": list}
    check_keys("world", values, hints, optional=set(hints) - {"groups"})
    for index, group in enumerate(values["groups"]):
        where = f"world.groups[{index}]"
        if not isinstance(group, dict):
            raise Bad(f"{where}: expected an object, got {word(group)}")
        check_keys(where, group, get_type_hints(GroupConfig), optional={"window", "parts"})
        if group.get("window", 0) < 0:
            raise Bad(f"{where}.window: at least 0, got {group['window']}")
    if not values["groups"]:
        raise Bad("world.groups: expected at least one group, got none")
    for index, kind in enumerate(values.get("silent", [])):
        check_type(f"world.silent[{index}]", kind, str)
    for name, value in values.items():
        least = 0 if name in MAY_BE_NOTHING else 1
        if type(value) is int and value < least:
            raise Bad(f"world.{name}: at least {least}, got {value}")
    try:
        config = WorldConfig.from_json({"silent": [], **values})
    except ConfigError as error:
        raise Bad(f"world.{error}") from None
    limits.check_world(config)
    return config


def _action(values: dict[str, Any], config: WorldConfig) -> Action:
    name = values.get("action")
    if name not in list(Kind):
        kinds = [kind.value for kind in Kind]
        raise Bad(f"unknown action {name!r}; known: {', '.join(kinds)}{did_you_mean(name, kinds)}")
    wanted = ARGUMENTS[Kind(name)]
    check_keys(
        name,
        values,
        {"action": str, "engine": int, **{k: dict if v is RequestSpec else v for k, v in wanted.items()}},
        optional=OPTIONAL,
    )
    if "spec" in wanted:
        required = {f.name for f in fields(RequestSpec) if f.default is MISSING}
        hints = {**get_type_hints(RequestSpec), "turns": list | None}
        check_keys(f"{name}.spec", values["spec"], hints, optional=set(hints) - required)
        _check_spec(f"{name}.spec", values["spec"])
        limits.check_room(f"{name}.spec", RequestSpec.from_json(values["spec"]), config)
    for request, count in values.get("rejects", {}).items():
        check_type(f"{name}.rejects.{request}", count, int)
        if count < 0:
            raise Bad(f"{name}.rejects.{request}: not less than 0, got {count}")
    for key, value in values.items():
        if type(value) is int and value < 0:
            raise Bad(f"{name}.{key}: not less than 0, got {value}")
    if values.get("engine", 0) >= config.engines:
        raise Bad(f"{name}.engine: the world has {config.engines}, numbered from 0; got {values['engine']}")
    return Action.from_json(values)


def _check_spec(where: str, spec: dict[str, Any]) -> None:
    """Check that an engine would accept a request."""
    for key in ("shared_tokens", "own_tokens", "image_at"):
        if spec.get(key, 0) < 0:
            raise Bad(f"{where}.{key}: not less than 0, got {spec[key]}")
    if spec["shared_tokens"] + spec["own_tokens"] == 0:
        raise Bad(f"{where}: the prompt has no token: shared_tokens and own_tokens are 0")
    _check_samples(where, spec)
    for index, turn in enumerate(spec.get("turns") or ()):
        part = f"{where}.turns[{index}]"
        if not isinstance(turn, dict):
            raise Bad(f"{part}: expected an object, got {word(turn)}")
        check_keys(part, turn, get_type_hints(Turn), optional=set())
        if turn["tokens"] < 1:
            raise Bad(f"{part}.tokens: at least 1, got {turn['tokens']}")
        _check_samples(part, turn)
    limits.check_tokens(where, spec)


def _check_samples(where: str, asked: dict[str, Any]) -> None:
    output, most = asked["output_tokens"], asked["max_tokens"]
    if output < 1:
        raise Bad(f"{where}.output_tokens: at least 1, got {output}")
    if most < output:
        raise Bad(f"{where}.max_tokens: at least output_tokens, {output}, got {most}")
