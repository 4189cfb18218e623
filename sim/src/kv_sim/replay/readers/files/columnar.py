"""The rows of a Parquet or an Arrow file, as objects like those of JSON.

A date becomes text, a decimal a number, a map an object, and nulls are dropped, since each row has all columns,
and each object all fields of its column. It needs pyarrow, which the extra ``parquet`` installs.

Arrow may be a file, as Feather is, or a stream, as Hugging Face saves its datasets.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.replay.readers.record import Moment

_PARQUET: Final = "Parquet"
_FILE: Final = "Arrow"
_STREAM: Final = "a stream of Arrow"
_KINDS: Final = {b"PAR1": _PARQUET, b"ARROW1": _FILE, b"\xff\xff\xff\xff": _STREAM}
"""How files begin."""
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream ends."""

_ROWS: Final = 256
"""How many rows are converted at once: a row with a conversation may be a megabyte."""
_MOST_SHOWN: Final = 120


def is_columnar(path: Path) -> bool:
    """Whether a file begins like Parquet or Arrow. False for a file that can't be read."""
    return _kind_of(path) is not None


def has_rows(path: Path) -> bool:
    """Whether a file has any rows. Programs that write many files leave some of them empty."""
    with _opened(path) as (_, count, batches):
        return any(batch.num_rows for batch in batches) if count is None else bool(count)


def rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Each row as a mapping by column names, which must differ."""
    pyarrow = _pyarrow(path)
    with _opened(path) as (names, _, batches):
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise ConfigError(f"{path}: two columns are called {twice[0]!r:.60}")
        for batch in batches:
            columns = [_values(column, pyarrow) for column in batch.columns]
            for row in zip(*columns, strict=True):
                yield {name: value for name, value in zip(names, row, strict=True) if value is not None}


def _kind_of(path: Path) -> str | None:
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(max(map(len, _KINDS)))
        return next((kind for magic, kind in _KINDS.items() if begin.startswith(magic)), None)
    return None


def _pyarrow(path: Path) -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            f"{path}: this is {_kind_of(path)}, which needs the package pyarrow: "
            "pip install 'kv-sim[parquet]', or save it as JSON lines"
        ) from None
    return importlib.import_module("pyarrow")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], int | None, Iterator[Any]]]:
    """A file's column names, its number of rows if it says that, and its rows in batches.

    Errors name the file.
    """
    pyarrow = _pyarrow(path)
    try:
        if _kind_of(path) == _PARQUET:
            with pyarrow.parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=_ROWS, use_threads=False)
                yield list(file.schema_arrow.names), file.metadata.num_rows, batches
        else:
            with pyarrow.OSFile(str(path)) as file:
                if _kind_of(path) == _STREAM:
                    _check_end(path, file)
                    reader = pyarrow.ipc.open_stream(file)
                else:
                    reader = pyarrow.ipc.open_file(file)
                yield list(reader.schema.names), None, _few(_batches(reader))
    except ConfigError:
        raise
    except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{path}: truncated, damaged or unreadable: {said:.{_MOST_SHOWN}}") from None


def _check_end(path: Path, file: Any) -> None:
    """Refuse a stream without its end mark: one that was truncated between two batches would seem complete."""
    file.seek(file.size() - len(_END))
    if file.read() != _END:
        raise ConfigError(f"{path}: truncated, or not closed by its writer: the end of the stream is missing")
    file.seek(0)


def _batches(reader: Any) -> Iterator[Any]:
    """The batches of Arrow, one in memory at a time."""
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def _few(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows in smaller batches."""
    for batch in batches:
        yield from (batch.slice(begin, _ROWS) for begin in range(0, batch.num_rows, _ROWS))


def _values(column: Any, pyarrow: Any) -> list[Any]:
    readable = _readable(column.type, pyarrow)
    if readable != column.type:
        column = column.cast(readable, safe=False)  # times lose only what is below a microsecond
    values: list[Any] = column.to_pylist()
    types = pyarrow.types
    is_plain = types.is_integer(readable) or types.is_floating(readable) or types.is_string(readable)
    return values if is_plain else [*map(_plain, values)]


def _readable(kind: Any, pyarrow: Any) -> Any:
    """The type to which a column is cast so that Python can hold its values: dates in microseconds and UTC."""
    types = pyarrow.types
    if types.is_timestamp(kind):
        return pyarrow.timestamp("us")
    if types.is_duration(kind):
        return pyarrow.duration("us")
    if types.is_time(kind):
        return pyarrow.string()
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pyarrow.struct([field.with_type(_readable(field.type, pyarrow)) for field in fields])
    if types.is_map(kind):
        return pyarrow.map_(_readable(kind.key_type, pyarrow), _readable(kind.item_type, pyarrow))
    if types.is_large_list(kind):
        return pyarrow.large_list(_readable(kind.value_type, pyarrow))
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return pyarrow.list_(_readable(kind.value_type, pyarrow))
    return kind


def _plain(value: Any) -> Any:
    """A value as JSON would have it."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # of a map
            return {str(_plain(name)): _plain(one) for name, one in value if one is not None}
        return [*map(_plain, value)]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return Moment(value.total_seconds())  # which aren't of the format's unit
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
