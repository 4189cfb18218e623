"""Rows of tables, whose cells may hold anything in quotes, compared with Python's own reader of whole texts."""

import csv
import io
from random import Random

import pytest

from kv_sim.replay.readers.files.table import Table
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing

PARTS = ["a", " ", '"', '""', "\n", "\n\n", ",", ";", "\t", "1.5", "ü", ""]


def rows_of(table, text):
    lines = enumerate(io.StringIO(text), 1)
    return [(number, cells) for number, _, cells in table.rows(lines)]


@pytest.mark.parametrize("seed", range(200))
def test_what_is_written_is_read(seed):
    random = Random(seed)
    between = random.choice(",;\t")
    rows = [["".join(random.choices(PARTS, k=random.randrange(4))) for _ in range(3)] for _ in range(5)]
    rows = [row for row in rows if any(cell.strip() for cell in row)]  # what is blank is no row
    text = io.StringIO()
    writer = csv.writer(text, delimiter=between, lineterminator="\n", quoting=random.choice([0, 1]))
    begins = []
    for row in rows:
        begins.append(1 + text.getvalue().count("\n"))
        writer.writerow(row)
    expected = [cells for cells in csv.reader(io.StringIO(text.getvalue()), delimiter=between) if cells]
    table = Table(between.join("abc"))
    assert expected == rows
    assert rows_of(table, text.getvalue()) == [*zip(begins, expected, strict=True)]


def test_a_row_stands_where_it_begins():
    assert rows_of(Table("a,b"), '1,2\n\n"x\ny\n\nz",3\n4,5\n') == [
        (1, ["1", "2"]),
        (3, ["x\ny\n\nz", "3"]),
        (7, ["4", "5"]),
    ]


@pytest.mark.parametrize("cell", ['5" pipe', ' "a"', 'a"b"c'])
def test_quotes_within_a_cell_are_letters(cell):
    [(_, cells)] = rows_of(Table("a,b"), f"{cell},2\n")
    assert cells == [cell, "2"] == next(csv.reader([f"{cell},2"]))


def test_an_open_quote_hides_nothing_but_its_own_row(tmp_path):
    file = tmp_path / "trace.csv"
    rows = [f"{number},64,1\n" for number in range(3000)]
    rows[1000] = '1000,"64,1\n'
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(rows))
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP, sharing=parse_sharing("none")))
    assert len(columns) == 2999
    assert columns.notes[-1] == f"1 malformed record was skipped, first: {file}:1002: a quote is not closed"


def test_a_table_begins_with_its_header_wherever_that_stands(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("\n\narrived_at,num_prefill_tokens,num_decode_tokens\n0,64,1\n\n1,64,x\n")
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP, sharing=parse_sharing("none")))
    assert len(columns) == 1
    assert columns.notes[-1].startswith(f"1 malformed record was skipped, first: {file}:6: num_decode_tokens:")


def test_a_row_goes_over_so_many_lines_and_no_more():
    after = [(1003, ["3", "4"])]
    assert rows_of(Table("a,b"), '"' + "\n" * 1000 + 'x",2\n\n3,4\n') == [(1, ["\n" * 1000 + "x", "2"]), *after]
    assert rows_of(Table("a,b"), '"' + "\n" * 1001 + 'x",2\n3,4\n') == [(1, None), (1002, ['x"', "2"]), *after]


def test_a_cell_of_megabytes_is_a_cell(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text('arrived_at,num_prefill_tokens,num_decode_tokens,what\n1,64,1,"' + 5_000_000 * "x" + '\n"\n')
    assert len(open_trace(file, TraceOptions(sharing=parse_sharing("none")))) == 1
