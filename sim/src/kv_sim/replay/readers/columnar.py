"""The rows of a Parquet or an Arrow file, as what JSON would have made of them.

A date becomes text, a decimal a number, a map an object, and what is null isn't there: in a file every row has all
columns, and all objects of a column have the fields of each. Needs pyarrow, which the extra ``parquet`` brings.

Arrow comes as a file, which Feather is, too, or as a stream, as Hugging Face's datasets are saved.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError

_PARQUET: Final = "Parquet"
_FILE: Final = "Arrow"
_STREAM: Final = "a stream of Arrow"
_KINDS: Final = {b"PAR1": _PARQUET, b"ARROW1": _FILE, b"\xff\xff\xff\xff": _STREAM}
"""How files begin."""
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream ends."""

_ROWS: Final = 256
"""How many are made at once: of conversations a row may be a megabyte."""
_MOST_SHOWN: Final = 120


def is_columnar(path: Path) -> bool:
    """Whether a file begins as one. One that can't be read is none."""
    return _kind_of(path) is not None


def has_rows(path: Path) -> bool:
    """Whether there is something in a file. What writes many files leaves some of them empty."""
    with _opened(path) as (_, count, batches):
        return any(batch.num_rows for batch in batches) if count is None else bool(count)


def rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """What each row has, by the names of its columns, of which each has to be another one."""
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
    """The names of the columns of a file, how many rows it has if it says so, and these, some at a time.

    What goes wrong is said of the file.
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
        raise ConfigError(f"{path}: truncated or damaged, or not to be read: {said:.{_MOST_SHOWN}}") from None


def _check_end(path: Path, file: Any) -> None:
    """A stream that is cut off between two batches would else be read as one that ends there."""
    file.seek(file.size() - len(_END))
    if file.read() != _END:
        raise ConfigError(
            f"{path}: truncated, or whoever wrote it hasn't closed it: the end of the stream is missing"
        )
    file.seek(0)


def _batches(reader: Any) -> Iterator[Any]:
    """The batches of Arrow, one in memory at a time."""
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def _few(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows in batches of few."""
    for batch in batches:
        yield from (batch.slice(begin, _ROWS) for begin in range(0, batch.num_rows, _ROWS))


def _values(column: Any, pyarrow: Any) -> list[Any]:
    readable = _readable(column.type, pyarrow)
    if readable != column.type:
        column = column.cast(readable, safe=False)  # of a time only what is less than a microsecond is lost
    values: list[Any] = column.to_pylist()
    types = pyarrow.types
    is_plain = types.is_integer(readable) or types.is_floating(readable) or types.is_string(readable)
    return values if is_plain else [*map(_plain, values)]


def _readable(kind: Any, pyarrow: Any) -> Any:
    """The type of a column that Python has values for, however deep: dates of microseconds, in UTC."""
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
    """What JSON would have made of a value."""
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
        return value.total_seconds()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
