"""Tables as people have them, and every broken one named with its line."""

import csv
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import ConfigError, FileError, TaskError
from bertsmith.tasks.readers.table import Columns, Example, check_labels, columns, find_columns, label_order, read_table


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows_of(examples):
    return [(e.text, e.pair, e.label) for e in examples]


def test_three_formats_say_the_same(put):
    wanted = [("좋아요, 정말", None, "1"), ("bad", None, "0")]
    assert rows_of(read_table(put("a.csv", 'sentence,label\n"좋아요, 정말",1\nbad,0\n'))) == wanted
    assert rows_of(read_table(put("a.tsv", "sentence\tlabel\n좋아요, 정말\t1\nbad\t0"))) == wanted
    lines = [{"sentence": "좋아요, 정말", "label": 1}, {"label": "0", "sentence": "bad"}]
    assert rows_of(read_table(put("a.jsonl", "\n".join(map(json.dumps, lines))))) == wanted


def test_where_is_file_and_line_also_after_quoted_newlines(put):
    path = put("a.csv", 'text,label\n"one\ntwo",x\nthree,y\n')
    assert read_table(path) == [
        Example("one\ntwo", None, "x", f"{path}:2"),
        Example("three", None, "y", f"{path}:4"),
    ]


def test_a_label_that_only_looks_known_is_explained(put):
    path = put(
        "a.csv", "text,label\na,좋다\n".encode().replace("좋다".encode(), unicodedata.normalize("NFD", "좋다").encode())
    )
    with pytest.raises(TaskError, match="though one looks the same"):
        check_labels(read_table(path), ["좋다", "나쁘다"], path)
    with pytest.raises(TaskError, match=r"none of the labels known here\.\n  known"):
        check_labels(read_table(path), ["나쁘다"], path)


def test_tsv_quotes_are_just_quotes(put):
    path = put("a.tsv", 'sentence\tlabel\n"Yes\t1\nsay "no" \t0\n')
    assert rows_of(read_table(path)) == [('"Yes', None, "1"), ('say "no" ', None, "0")]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_byte_order_mark_and_crlf(put, suffix):
    tab = "," if suffix == "csv" else "\t"
    path = put(f"a.{suffix}", b"\xef\xbb\xbf" + f"text{tab}label\r\none{tab}a\r\ntwo{tab}b\r\n\r\n".encode())
    assert rows_of(read_table(path)) == [("one", None, "a"), ("two", None, "b")]


def test_line_separators_inside_a_text_are_not_line_ends(put):
    path = put("a.tsv", "text\tlabel\none\u2028two\x85three\x0bfour\ta\n")
    assert rows_of(read_table(path)) == [("one\u2028two\x85three\x0bfour", None, "a")]


def test_without_header_columns_go_by_number(put):
    path = put("a.tsv", "gj04\t1\t\tThe boat sank.\ngj04\t0\t*\tSank the boat the.\n")
    examples = read_table(path, text=4, label="2", header=False)
    assert rows_of(examples) == [("The boat sank.", None, "1"), ("Sank the boat the.", None, "0")]
    with pytest.raises(TaskError, match=r"a number from 1 to 4"):
        read_table(path, text=5, label=2, header=False)
    with pytest.raises(TaskError, match="which of its 4 columns is the text"):
        read_table(path, header=False)


def test_columns_are_guessed_where_that_is_plain(put):
    path = put("a.tsv", "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tyes\n")
    assert find_columns(path, Columns()) == Columns("sentence1", "sentence2", "gold_label", True, "tsv")
    assert rows_of(read_table(path)) == [("a", "b", "yes")]
    assert rows_of(read_table(path, text="sentence2")) == [("b", None, "yes")]
    assert rows_of(read_table(path, labelled=False)) == [("a", "b", None)]


def test_a_guess_that_is_not_plain_is_refused(put):
    with pytest.raises(TaskError, match=r"'text', 'sentence' could all be the text"):
        read_table(put("a.csv", "text,sentence,label\na,b,c\n"))
    with pytest.raises(TaskError, match=r"no column is called label or gold_label.*Found: 'text', 'klass'"):
        read_table(put("b.csv", "text,klass\na,b\n"))


def test_a_missing_column_names_the_nearest(put):
    path = put("a.csv", "review,sentiment\na,b\n")
    with pytest.raises(TaskError, match=r"no column 'reviews' for the text; did you mean 'review'\?"):
        read_table(path, text="reviews", label="sentiment")
    with pytest.raises(TaskError, match="by number only in a table without header"):
        read_table(path, text=1, label="sentiment")
    with pytest.raises(TaskError, match="as text and as label"):
        read_table(path, text="review", label="review")
    with pytest.raises(TaskError, match="2 columns are called 'text'"):
        read_table(put("b.csv", "text,text,label\na,b,c\n"))


@pytest.mark.parametrize(("suffix", "tab"), [("csv", ","), ("tsv", "\t")])
def test_ragged_rows_are_refused_with_both_counts(put, suffix, tab):
    short = put(f"a.{suffix}", f"text{tab}label\nfine{tab}a\nshort\n")
    with pytest.raises(TaskError, match=rf"a\.{suffix}:3: 1 column, but line 1 has 2 columns"):
        read_table(short)
    long = put(f"b.{suffix}", f"text{tab}label\nfine{tab}a\nb{tab}c{tab}d\n")
    with pytest.raises(TaskError, match=rf"b\.{suffix}:3: 3 columns, but line 1 has 2 columns"):
        read_table(long)
    empty = put(f"c.{suffix}", f"text{tab}label\n\nfine{tab}a\n")
    with pytest.raises(TaskError, match=rf"c\.{suffix}:2: 1 column.*this line is empty"):
        read_table(empty)


def test_a_row_without_label_names_its_line(put):
    with pytest.raises(TaskError, match=r"a\.csv:3: this row has no label"):
        read_table(put("a.csv", "text,label\na,x\nb,\n"))
    with pytest.raises(TaskError, match=r"a\.jsonl:2: this row has no label"):
        read_table(put("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n'))


def test_an_unknown_label_is_refused_with_both_lists(put):
    path = put("a.csv", "text,label\na,yes\nb,maybe\n")
    with pytest.raises(TaskError, match=r"a\.csv:3: the label 'maybe'(.|\n)*known: 'yes', 'no'\n.*'maybe', 'yes'"):
        read_table(path, labels=["yes", "no"])


def test_empty_texts_are_kept(put):
    assert rows_of(read_table(put("a.csv", "text,label\n,x\n"))) == [("", None, "x")]
    assert rows_of(read_table(put("a.txt", "one\n\n세 번째\n"), labelled=False)) == [
        ("one", None, None), ("", None, None), ("세 번째", None, None)
    ]  # fmt: skip


def test_plain_lines_have_no_labels(put):
    path = put("a.txt", "a\tb\n")
    with pytest.raises(TaskError, match="plain lines have no labels"):
        read_table(path)
    # Columns of a model's task do not bind a file that has none.
    assert rows_of(read_table(path, text="sentence", pair="other", labelled=False)) == [("a\tb", None, None)]


def test_broken_csv_names_where_the_quote_opened(put):
    with pytest.raises(TaskError, match=r"a\.csv:2: not CSV: .*the quote opened there never closes"):
        read_table(put("a.csv", 'text,label\n"open,x\nmore,y\n'))
    with pytest.raises(TaskError, match=r"b\.csv:3: not CSV"):
        read_table(put("b.csv", 'text,label\nfine,x\n"a"b,y\n'))


def test_a_very_long_field_is_no_trouble(put):
    limit = csv.field_size_limit()
    long = "word " * 100_000
    assert rows_of(read_table(put("a.csv", f"text,label\n{long},x\n"))) == [(long, None, "x")]
    assert csv.field_size_limit() == limit


def test_broken_json_names_its_line(put):
    good = '{"text": "a", "label": "x"}\n'
    with pytest.raises(TaskError, match=r"a\.jsonl:2: not JSON"):
        read_table(put("a.jsonl", good + "{oops\n"))
    with pytest.raises(TaskError, match=r"a\.jsonl:2: a JSON list"):
        read_table(put("a.jsonl", good + "[1, 2]\n"))
    with pytest.raises(TaskError, match=r"a\.jsonl:2: no key 'text'; did you mean 'texts'\?"):
        read_table(put("a.jsonl", good + '{"texts": "a", "label": "x"}\n'))
    with pytest.raises(TaskError, match=r"a\.jsonl:2: 'text' is 7 \(int\)"):
        read_table(put("a.jsonl", good + '{"text": 7, "label": "x"}\n'))
    with pytest.raises(TaskError, match=r"a\.jsonl:2: the label is 0\.5"):
        read_table(put("a.jsonl", good + '{"text": "a", "label": 0.5}\n'))


def test_json_labels_true_and_false(put):
    path = put("a.jsonl", '{"text": "a", "label": true}\n\n{"text": "b", "label": false}\n')
    assert rows_of(read_table(path)) == [("a", None, "true"), ("b", None, "false")]


def test_files_that_are_no_tables(put, tmp_path):
    with pytest.raises(FileError, match=r"none\.csv: no such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        read_table(tmp_path / "folder.csv")
    with pytest.raises(TaskError, match="the file is empty"):
        read_table(put("empty.csv", ""))
    with pytest.raises(TaskError, match="no rows after the header"):
        read_table(put("head.csv", "text,label\n"))
    with pytest.raises(FileError, match="binary"):
        read_table(put("bin.csv", b"text,label\n\0\1\2"))
    with pytest.raises(FileError, match="UTF-16"):
        read_table(put("wide.csv", "text,label\na,b\n".encode("utf-16")))
    with pytest.raises(FileError, match=r"latin\.csv:2: not UTF-8"):
        read_table(put("latin.csv", b"text,label\ncaf\xe9,b\n"))
    with pytest.raises(TaskError, match=r"suffix '\.xlsx' does not say what this is"):
        read_table(put("a.xlsx", "text,label\na,b\n"))
    with pytest.raises(ConfigError, match="did you mean 'jsonl'"):
        columns(format="json")


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8))
def test_csv_comes_back_as_it_was_written(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "pair", "label"), *((text, pair, "x") for text, pair in table)])
    assert rows_of(read_table(path)) == [(text, pair, "x") for text, pair in table]


def test_label_order():
    assert label_order({"10", "2", "-1"}) == ["-1", "2", "10"]
    assert label_order({"b", "a", "2"}) == ["2", "a", "b"]
