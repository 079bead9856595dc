"""Readers: every format in every packing, and every kind of bad input as one clear error."""

import gzip
import io
import json
import sys
import tarfile
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import documents as documents_module
from bertsmith.corpus import unpacking
from bertsmith.corpus.documents import ReadCounts, read_documents, read_texts
from bertsmith.corpus.unpacking import TextSource
from bertsmith.errors import CorpusError, FileError, MissingExtra

NOVEL = "First line\nof it. More.\n\nSecond paragraph.\n"
WIKI = (
    '<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\nOne line.\nAnother line.\n\n</doc>\n'
    '<doc id="2" url="u" title="Empty">\nEmpty\n\n</doc>\n'
    '<doc id="3" url="u" title="한국">\n한국\n\n한국은 나라이다.\n</doc>\n'
)


def read(path, **settings):
    counts = ReadCounts()
    return [document.paragraphs for document in read_documents(path, counts=counts, **settings)], counts


def broken_header(archive):
    """One bit of the second member's header flipped."""
    return archive[:1024] + bytes([archive[1024] ^ 1]) + archive[1025:]


def tar_of(members, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


PACKINGS = {
    "text.txt": lambda data: data,
    "text.txt.gz": gzip.compress,
    "two.gz": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    "text.zst": zstandard.ZstdCompressor().compress,
    "frames.zst": lambda data: b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:7], data[7:])),
    "text.tar": lambda data: tar_of({"a.txt": data, "._a.txt": b"\0\1"}),
    "text.tar.gz": lambda data: tar_of({"d/a.txt": data}, "w:gz"),
    "text.tgz": lambda data: tar_of({"d/a.txt.gz": gzip.compress(data)}, "w:gz"),
    "text.tar.zst": lambda data: zstandard.ZstdCompressor().compress(tar_of({"a.txt": data})),
}


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("text", [NOVEL, WIKI], ids=["novel", "wiki"])
def test_a_packed_file_reads_like_the_plain_one(tmp_path, name, text):
    (tmp_path / "plain").write_text(text)
    (tmp_path / name).write_bytes(PACKINGS[name](text.encode()))
    assert read(tmp_path / name)[0] == read(tmp_path / "plain")[0]
    counts = read(tmp_path / name)[1]
    assert counts.bytes == len(text.encode())
    assert counts.file_bytes == (tmp_path / name).stat().st_size
    assert list(counts.sha256) == [str(tmp_path / name)]


def test_text_paragraphs_end_at_blank_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + b"One\r\nline.\r\n \t\r\n\r\nTwo.\rThree.\r\r")
    assert read(tmp_path / "a")[0] == [("One line.", "Two. Three.")]


def test_doc_marks_divide_a_text_and_what_is_outside_is_a_document(tmp_path):
    (tmp_path / "a").write_text(
        'Before.\n<doc id="x">\nIn\nside.\n\nMore.\n</doc>\nBetween.\n<doc>\n\n</doc>\n<doc id=2>\nLast.'
    )
    found, counts = read(tmp_path / "a")
    assert found == [("Before.",), ("In side.", "More."), ("Between.",), ("Last.",)]
    assert (counts.documents, counts.empty_documents) == (4, 1)


def test_a_doc_mark_must_stand_alone_on_its_line(tmp_path):
    (tmp_path / "a").write_text("See <doc> here.\n<document>\n<doc> and text\n")
    assert read(tmp_path / "a")[0] == [("See <doc> here. <document> <doc> and text",)]


def test_wikiextractor_lines_are_paragraphs_and_titles_are_dropped(tmp_path):
    (tmp_path / "wiki_00").write_text(WIKI)
    for format in ("auto", "doc"):
        found, counts = read(tmp_path / "wiki_00", format=format)
        assert found == [("One line.", "Another line."), ("한국은 나라이다.",)]
        assert (counts.documents, counts.empty_documents) == (2, 1)


def test_one_sentence_a_line(tmp_path):
    (tmp_path / "a").write_text("\n\nOne.\n Two. Still two. \n\n\n\nThree.\n  \nFour.")
    found = list(read_documents(tmp_path / "a", format="lines"))
    assert [d.paragraphs for d in found] == [("One.", "Two. Still two."), ("Three.",), ("Four.",)]
    assert all(d.sentences for d in found)


def test_jsonl(tmp_path):
    records = [{"text": "One\nline.\n\nTwo.", "id": 1}, {"text": " "}, {"text": "세 \u2028 \U0001f600"}]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode() + b"\n\n"))
    found, counts = read(tmp_path / "a.jsonl.gz")
    assert found == [("One line.", "Two."), ("세 \u2028 \U0001f600",)]
    assert counts.empty_documents == 1


def test_source_names_the_member(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of({"x/1.txt": b"One.", "x/2.jsonl": b'{"text": "Two."}'}))
    assert [d.source.removeprefix(str(tmp_path)) for d in read_documents(tmp_path / "a.tar")] == [
        "/a.tar/x/1.txt",
        "/a.tar/x/2.jsonl",
    ]


def test_texts_of_several_files(tmp_path):
    (tmp_path / "a").write_text(NOVEL)
    (tmp_path / "b").write_text("B.")
    assert list(read_texts([tmp_path / "a", tmp_path / "b"])) == ["First line of it. More.", "Second paragraph.", "B."]


@given(st.text(st.sampled_from("ab .\n\r\u3000가é😀<doc>/="), max_size=80), st.integers(1, 9))
def test_pieces_of_any_size_give_the_same_documents(text, size):
    data = text.encode()

    def all_in_pieces(size):
        counts = ReadCounts()
        source = unpacking.TextSource("x", io.BytesIO(data), "strict", counts)
        collector = documents_module._Collector("x", False, counts)
        return [d.paragraphs for d in documents_module._text(source, False, collector)], counts

    chunk = unpacking.CHUNK
    try:
        whole = all_in_pieces(chunk)
        unpacking.CHUNK = size
        assert all_in_pieces(size) == whole
    finally:
        unpacking.CHUNK = chunk
    plain = "".join("".join(paragraph) for document in whole[0] for paragraph in document)
    if "doc>" not in text and "<doc" not in text:
        assert "".join(plain.split()) == "".join(text.split())


BAD = {
    "broken": (b"ok \xff end", {}, "broken: not UTF-8 at byte offset 3 (0xff"),
    "cut_sequence": ("한".encode()[:2], {}, "not UTF-8 at byte offset 0"),
    "after_bom": (b"\xef\xbb\xbfok \xe2\x82", {}, "byte offset 6"),
    "broken.gz": (gzip.compress(b"x" * 3_000_000 + b"\xc3("), {}, "byte offset 3,000,000 (0xc3"),
    "broken.tar": (tar_of({"a": b"fine", "b": b"\x80"}), {}, "broken.tar/b: not UTF-8 at byte offset 0"),
    "utf16": ("한국".encode("utf-16"), {}, "utf16: looks like UTF-16"),
    "utf16_bare": ("hello world".encode("utf-16-le"), {}, "looks like UTF-16"),
    "utf16_korean": ("한국어 문장과 가나다라마바사 ".encode("utf-16-be"), {}, "looks like UTF-16"),
    "utf32_korean": (
        "한국어 문장과 가나다라마바사 ".encode("utf-32-le"),
        {},
        "looks like UTF-16 (or UTF-32) without",
    ),
    "not_utf16": ("한국어 문장\0이다".encode(), {}, "zero byte at offset 16"),
    "binary": (b"some text" * 300 + b"\0\1\2", {}, "a zero byte at offset 2,700"),
    "zip": (b"PK\x03\x04 rest", {}, "a ZIP archive"),
    "gzip_unnamed": (gzip.compress(b"text"), {}, "gzip data"),
    "png": (b"\x89PNG\r\n\x1a\n", {"encoding_errors": "replace"}, "PNG"),
    "empty": (b"", {}, "the file is empty"),
    "empty.gz": (gzip.compress(b""), {}, "the file is empty"),
    "zero.gz": (b"", {}, "the file is empty"),
    "empty.jsonl": (b"", {}, "the file is empty"),
    "cut.gz": (gzip.compress(NOVEL.encode() * 999)[:-30], {}, "cut.gz: the file is cut short"),
    "cut.zst": (zstandard.ZstdCompressor().compress(NOVEL.encode() * 999)[:-3], {}, "cut.zst: the file is cut short"),
    "cut.tar": (tar_of({"a": b"x" * 5000})[:3000], {}, "cut short"),
    "cut_between.tar": (tar_of({"a": b"x" * 512, "b": b"y"})[:1024], {}, "cut short"),
    "cut.tgz": (tar_of({"a": bytes(range(32, 127)) * 999}, "w:gz")[:200], {}, "cut short"),
    "no.gz": (b"plain text", {}, "no.gz: damaged, or not what its name says"),
    "no.zst": (b"plain text", {}, "no.zst: damaged, or not what its name says"),
    "joined.tar": (tar_of({"a": b"x"}) + tar_of({"b": b"y"}), {}, "a second archive joined to it"),
    "bad_header.tar": (broken_header(tar_of({"a": b"x" * 512, "b": b"y"})), {}, "a damaged header"),
    "no.tar": (b"plain text", {}, "no.tar: damaged, or not what its name says"),
    "nothing.tar": (tar_of({}), {}, "no file in this archive"),
    "bad.jsonl": (b'{"text": "a"}\n\n{"text": \n', {}, "bad.jsonl:3: not JSON"),
    "list.jsonl": (b"[1]\n", {}, "list.jsonl:1: a JSON list"),
    "near.jsonl": (
        b'{"txt": "a"}\n',
        {},
        "near.jsonl:1: no field 'text'; the fields are 'txt'; did you mean --field txt",
    ),
    "far.jsonl": (b'{"id": 1, "body": "a"}\n', {}, "the fields are 'id', 'body'; choose one with --field"),
    "number.jsonl": (b'{"text": 3}\n', {}, "holds int, not text"),
    "half.jsonl": (b'{"text": "a\\ud83d"}\n', {}, "half.jsonl:1: half a surrogate pair"),
    "plain": (b"no marks", {"format": "doc"}, "no <doc ...> line"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(tmp_path, name):
    data, settings, expected = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name, **settings)
    assert expected in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(FileError, match="is a folder"):
        read(tmp_path)


def test_unknown_settings(tmp_path):
    with pytest.raises(CorpusError, match="did you mean 'jsonl'"):
        read_documents(tmp_path / "a", format="json")
    with pytest.raises(CorpusError, match="'strict' or 'replace'"):
        read_documents(tmp_path / "a", encoding_errors="ignore")


def test_a_missing_zstandard_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor().compress(b"text"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bertsmith\[zstd\]'"):
        read(tmp_path / "a.zst")


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"")), st.integers(1, 9))
def test_replaced_is_as_python_replaces_and_the_count_is_of_bytes(data, chunk):
    parts = iter([data[at : at + chunk] for at in range(0, len(data), chunk)])
    counts = ReadCounts()
    source = TextSource("t", SimpleNamespace(read=lambda size: next(parts, b"")), "replace", counts)
    source._refuse_binary = lambda data: None
    with_bom = data.removeprefix(b"\xef\xbb\xbf") if chunk >= 3 else data
    expected = with_bom.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(source.chunks()) == expected
    assert counts.replaced_bytes == len(with_bom) - len(with_bom.decode(errors="ignore").encode())


def test_a_file_in_another_encoding_is_replaced_in_no_time(tmp_path):
    """Two megabytes of CP949 with a million broken sequences: copying the rest for each one took hours."""
    (tmp_path / "a.txt").write_bytes("가나다라 ".encode("cp949") * 250_000)
    counts = ReadCounts()
    assert len(list(read_documents(tmp_path / "a.txt", encoding_errors="replace", counts=counts))) == 1
    assert counts.replaced_bytes > 1_000_000


def test_a_title_may_hold_quotes(tmp_path):
    (tmp_path / "a.txt").write_text(
        '<doc id="1" url="u" title=""Weird Al" Yankovic">\n"Weird Al" Yankovic\n\nHe sings.\n</doc>\n'
    )
    assert [d.paragraphs for d in read_documents(tmp_path / "a.txt")] == [("He sings.",)]


def test_broken_bytes_are_replaced_and_counted(tmp_path):
    (tmp_path / "a").write_bytes(b"a\xffb \xe2\x82 c\xc3")
    found, counts = read(tmp_path / "a", encoding_errors="replace")
    assert found == [("a\ufffdb \ufffd c\ufffd",)]
    assert counts.replaced_bytes == 4
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a\\ud83d"}')
    found, counts = read(tmp_path / "b.jsonl", encoding_errors="replace")
    assert (found, counts.replaced_bytes) == ([("a\ufffd",)], 3)


def test_a_sequence_across_two_pieces_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "CHUNK", 4)
    (tmp_path / "a").write_text("aé한국😀\r\n\r\nb")
    assert read(tmp_path / "a")[0] == [("aé한국😀", "b")]


def test_white_space_only_is_one_empty_document(tmp_path):
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text(" \n\n\t\n")
        found, counts = read(tmp_path / name)
        assert (found, counts.documents, counts.empty_documents) == ([], 0, 1)


@pytest.mark.parametrize("format", ["text", "lines"])
def test_long_paragraphs_and_documents_are_cut(tmp_path, monkeypatch, format):
    monkeypatch.setattr(documents_module, "PARAGRAPH_LIMIT", 100)
    monkeypatch.setattr(documents_module, "DOCUMENT_LIMIT", 1_000)
    text = "A cat. " * 500
    (tmp_path / "a").write_text(text)
    found, counts = read(tmp_path / "a", format=format)
    paragraphs = [paragraph for document in found for paragraph in document]
    assert " ".join(paragraphs) == text.strip()
    assert max(map(len, paragraphs)) <= 100
    assert all(paragraph.endswith(".") for paragraph in paragraphs)
    assert counts.cut_documents == len(found) - 1 > 1
    assert counts.empty_documents == 0


@pytest.mark.parametrize("blank", ["\n\n", "\n \n", "\n\t \n\n", "\n\n  \n"])
@pytest.mark.parametrize("chunk", [7, 64, 1_000])
def test_paragraphs_below_the_limit_are_never_cut(tmp_path, monkeypatch, blank, chunk):
    monkeypatch.setattr(documents_module, "PARAGRAPH_LIMIT", 100)
    monkeypatch.setattr(unpacking, "CHUNK", chunk)
    paragraphs = [f"{number} lines\nin a paragraph" + " and more" * (number % 8) for number in range(200)]
    (tmp_path / "a").write_text(blank.join(paragraphs))
    assert read(tmp_path / "a")[0] == [tuple(paragraph.replace("\n", " ") for paragraph in paragraphs)]


@pytest.mark.parametrize("unit", ["x", "word ", "한"])
def test_a_line_without_end_is_read_in_bounded_pieces(tmp_path, unit):
    (tmp_path / "a.gz").write_bytes(gzip.compress((unit * 18_000_000)[:18_000_000].encode(), 1))
    sizes = []
    for document in read_documents(tmp_path / "a.gz"):
        sizes += map(len, document.paragraphs)
        assert sum(map(len, document.paragraphs)) <= 17_000_000
    assert max(sizes) <= 1_000_000
    assert sum(sizes) >= 18_000_000 - len(sizes)


def test_a_json_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "JSON_LINE_LIMIT", 3_000_000)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "' + "x" * 9_000_000)
    with pytest.raises(CorpusError, match=r"a\.jsonl:2: more than 3,000,000 characters"):
        read(tmp_path / "a.jsonl")
