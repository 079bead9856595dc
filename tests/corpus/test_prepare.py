"""One pass, the same bytes for any number of workers, kills and restarts, and what is refused."""

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bertsmith.base.log import Log
from bertsmith.corpus import prepare as prepare_module
from bertsmith.corpus import shards as shards_module
from bertsmith.corpus.documents import read_documents
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.sentences import split_sentences
from bertsmith.corpus.shards import Corpus
from bertsmith.errors import ConfigError, CorpusError, FileError, ShardError
from bertsmith.text.tokenizer import Tokenizer

WORDS = ["the", "a", "cat", "dog", "bird", "sat", "ran", "saw", "house", "tree", "and", "on", "in", "under", "small"]


@pytest.fixture
def vocabulary(tmp_path):
    return write_vocabulary(tmp_path / "vocab.txt")


def write_vocabulary(path, more=()):
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", ".", "!", *more]) + "\n")
    return path


def write_texts(folder, files=5, documents=12, seed=0):
    """Files of different sizes, with <doc> marks, empty documents and a document without a token."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    paths = []
    for number in range(files):
        lines = ["<doc>\n</doc>", "<doc>\n\u200b\n</doc>"]
        for _ in range(documents * (1 + number % 3)):
            sentences = [
                " ".join(rng.choice(WORDS, rng.integers(3, 9))).capitalize() + "." for _ in range(rng.integers(1, 9))
            ]
            lines.append("<doc>\n" + " ".join(sentences) + "\n</doc>")
        path = folder / f"text-{number}.txt"
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


@pytest.fixture
def small(monkeypatch):
    """Units and shards so small that a few kilobytes make many."""
    monkeypatch.setattr(prepare_module, "UNIT_BYTES", 6_000)
    monkeypatch.setattr(prepare_module, "PART_CHARACTERS", 2_500)


def bytes_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run(paths, vocabulary, out, workers=1, **settings):
    screen = io.StringIO()
    corpus = prepare(paths, tokenizer_folder=vocabulary, out=out, workers=workers, log=Log(screen=screen), **settings)
    return corpus, screen.getvalue()


def test_the_tokens_are_those_of_the_sentences(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    corpus, _ = run(paths, vocabulary, tmp_path / "out")
    tokenizer = Tokenizer.load(corpus.tokenizer_folder)
    assert len(corpus.shards) > 5
    found = [
        [shard.tokens[s:e].tolist() for s, e in itertools.pairwise(starts)]
        for shard in corpus.shards
        for first, last in itertools.pairwise(shard.document_starts)
        for starts in [shard.sentence_starts[first : last + 1]]
    ]
    expected = []
    for path in paths:
        for document in read_documents(path):
            sentences = [s for paragraph in document.paragraphs for s in split_sentences(paragraph)]
            ids = [tokenizer.encode(sentence, special=False).ids for sentence in sentences]
            expected.append([sentence for sentence in ids if sentence])
    assert found == [document for document in expected if document]
    counts = corpus.manifest["counts"]
    assert (counts["documents"], counts["empty_documents"], counts["dropped_documents"]) == (len(found), 5, 5)
    assert counts["bytes"] == sum(path.stat().st_size for path in paths)
    assert counts["tokens"] == corpus.tokens == sum(map(len, (s for d in found for s in d)))
    assert corpus.fingerprint == Corpus.open(tmp_path / "out", verify=True).fingerprint
    assert not (tmp_path / "out" / "unfinished").exists()


def test_the_same_bytes_for_any_number_of_workers(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    for workers in (1, 2, 3):
        run(paths, vocabulary, tmp_path / f"out{workers}", workers)
    assert bytes_of(tmp_path / "out1") == bytes_of(tmp_path / "out2") == bytes_of(tmp_path / "out3")


def test_several_workers_share_one_big_file(tmp_path, vocabulary, small):
    [path] = write_texts(tmp_path / "in", files=1, documents=150)
    for workers in (1, 2):
        run([path], vocabulary, tmp_path / f"out{workers}", workers)
    assert len(Corpus.open(tmp_path / "out1").shards) > 6
    assert bytes_of(tmp_path / "out1") == bytes_of(tmp_path / "out2")


def test_small_files_make_one_unit_and_files_keep_their_order(tmp_path, vocabulary):
    paths = write_texts(tmp_path / "in")
    corpus, _ = run(paths, vocabulary, tmp_path / "out")
    assert [shard.name for shard in corpus.shards] == ["shard-00000"]
    assert [source["name"] for source in corpus.manifest["sources"]] == [path.name for path in paths]
    other, _ = run(paths[::-1], vocabulary, tmp_path / "reversed")
    assert other.fingerprint != corpus.fingerprint
    assert other.tokens == corpus.tokens


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", [f"word{number}" for number in range(65_600)])
    (tmp_path / "a.txt").write_text("The cat word65599 sat.\n")
    corpus, _ = run([tmp_path / "a.txt"], vocabulary, tmp_path / "out")
    assert corpus.shards[0].tokens.dtype == np.uint32
    assert corpus.shards[0].tokens[2] > 65_535


SCRIPT = """
import sys, time
from pathlib import Path
from bertsmith.base.log import Log
from bertsmith.corpus import prepare as module
module.UNIT_BYTES, module.PART_CHARACTERS = 6_000, 2_500

class SlowTokenizer(module.Tokenizer):
    def sentence_ids(self, sentences):
        time.sleep(float(sys.argv[3]))
        return super().sentence_ids(sentences)

    def __reduce__(self):
        return SlowTokenizer, (self.vocabulary, self.normalizer)

if __name__ == "__main__":
    module.Tokenizer = SlowTokenizer
    folder = Path(sys.argv[1])
    module.prepare(sorted((folder / "in").iterdir()), tokenizer_folder=folder / "vocab.txt", out=folder / "out",
                   workers=int(sys.argv[2]))
"""


def start(tmp_path, workers, pause):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), str(workers), str(pause)]
    root = str(Path(prepare_module.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_shards(out, number, process):
    deadline = time.monotonic() + 60
    while len(list(out.glob("shard-*"))) < number:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def identity(out):
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("shard-*/*")}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_and_started_again_it_goes_on(tmp_path, vocabulary, small, workers):
    paths = write_texts(tmp_path / "in")
    undisturbed, _ = run(paths, vocabulary, tmp_path / "undisturbed")
    out = tmp_path / "out"
    for number in (2, 5):  # twice, in different places
        process = start(tmp_path, workers, 0.05)
        wait_for_shards(out, number, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (out / "manifest.json").exists()
        with pytest.raises(ShardError, match="bertsmith prepare"):
            Corpus.open(out)
    finished = identity(out)
    assert len(finished) >= 5 * 5
    corpus, screen = run(paths, vocabulary, out)
    assert "going on" in screen
    assert finished.items() <= identity(out).items()  # neither redone nor touched
    assert bytes_of(out) == bytes_of(tmp_path / "undisturbed")
    assert corpus.fingerprint == undisturbed.fingerprint


def test_ctrl_c_ends_the_workers_and_leaves_nothing_half_written(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    process = start(tmp_path, 2, 0.05)
    wait_for_shards(tmp_path / "out", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert error.count("Traceback") == 1  # the workers say nothing
    wait_for_the_end(process.pid)
    assert not (tmp_path / "out" / "manifest.json").exists()
    run(paths, vocabulary, tmp_path / "out")
    run(paths, vocabulary, tmp_path / "undisturbed")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_worker_whose_parent_was_killed_ends(tmp_path, vocabulary, small):
    write_texts(tmp_path / "in")
    process = start(tmp_path, 2, 0.05)
    wait_for_shards(tmp_path / "out", 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    wait_for_the_end(process.pid)


def wait_for_the_end(group):
    """Of all processes of the group."""
    deadline = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)


def test_a_file_changed_after_a_kill_is_done_again(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in", files=9)
    paths[-1].write_bytes(b"broken \xff")
    with pytest.raises(CorpusError, match=r"text-8\.txt: not UTF-8 at byte offset 7"):
        run(paths, vocabulary, tmp_path / "out")
    before = identity(tmp_path / "out")
    paths[-1].write_text("The cat sat. The dog ran.")
    paths[0].write_text(paths[0].read_text().replace("cat", "dog"))
    _, screen = run(paths, vocabulary, tmp_path / "out")
    assert "changed since the last run" in screen
    kept = before.items() & identity(tmp_path / "out").items()
    assert 0 < len(kept) < len(before)
    run(paths, vocabulary, tmp_path / "undisturbed")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "undisturbed")


def test_other_spellings_of_a_path_are_the_same_file(tmp_path, vocabulary, small, monkeypatch):
    paths = write_texts(tmp_path / "text")
    with pytest.raises(CorpusError, match="given twice"):
        run([paths[0], paths[0].parent / ".." / "text" / paths[0].name], vocabulary, tmp_path / "out")
    unit = prepare_module._units([str(paths[0])])[0]
    monkeypatch.chdir(tmp_path)
    assert prepare_module._key(unit) == prepare_module._key(prepare_module._units([f"text/{paths[0].name}"])[0])


def test_a_cased_vocabulary_taken_as_lower_casing_is_warned_about(tmp_path):
    cased = write_vocabulary(tmp_path / "vocab.txt", ["The", "Cat", "한국어"])
    paths = write_texts(tmp_path / "text")
    out = io.StringIO()
    prepare(paths, tokenizer_folder=cased, out=tmp_path / "a", log=Log(screen=out))
    assert "3 of 26 pieces" in out.getvalue()
    assert "--cased" in out.getvalue()
    out = io.StringIO()
    prepare(paths, tokenizer_folder=cased, out=tmp_path / "b", lowercase=False, log=Log(screen=out))
    assert "warning" not in out.getvalue()
    assert "normalizer: preset bert, cased" in out.getvalue()
    assert not Tokenizer.load(tmp_path / "b" / "tokenizer").normalizer.lowercase


def test_another_tokenizer_in_its_folder_is_noticed(tmp_path, vocabulary):
    prepare(write_texts(tmp_path / "text"), tokenizer_folder=vocabulary, out=tmp_path / "out", log=Log(quiet=True))
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.tokenizer().fingerprint == corpus.tokenizer_fingerprint
    Tokenizer.load(vocabulary, lowercase=False).save(tmp_path / "out" / "tokenizer")
    with pytest.raises(ShardError, match="not the tokenizer this corpus was made with"):
        corpus.tokenizer()


def test_a_complete_corpus_is_left_alone(tmp_path, vocabulary):
    paths = write_texts(tmp_path / "in")
    run(paths, vocabulary, tmp_path / "out")
    before = identity(tmp_path / "out")
    (tmp_path / "out" / "unfinished").mkdir()  # as a kill in the last instant leaves it
    for path in paths:
        os.utime(path)
    _, screen = run(paths, vocabulary, tmp_path / "out")
    assert "already complete" in screen
    assert identity(tmp_path / "out") == before
    assert not (tmp_path / "out" / "unfinished").exists()


def test_a_folder_of_something_else_is_refused_and_told_why(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    run(paths, vocabulary, tmp_path / "out")
    with pytest.raises(CorpusError, match="5 input files, not 4"):
        run(paths[:4], vocabulary, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"text-0\.txt, not text-1\.txt"):
        run([paths[1], paths[0], *paths[2:]], vocabulary, tmp_path / "out")
    with pytest.raises(CorpusError, match="format 'auto', not 'lines'"):
        run(paths, vocabulary, tmp_path / "out", format="lines")
    with pytest.raises(CorpusError, match="another tokenizer"):
        run(paths, write_vocabulary(tmp_path / "other.txt", ["zebra"]), tmp_path / "out")
    text = paths[2].read_text()
    paths[2].write_text(text.replace("cat", "dog", 1))
    with pytest.raises(CorpusError, match=r"text-2\.txt has changed since"):
        run(paths, vocabulary, tmp_path / "out")
    paths[2].write_text(text)
    Corpus.open(tmp_path / "out", verify=True)


def test_an_unfinished_folder_of_something_else_is_refused(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    paths[-1].write_bytes(b"\xff")
    with pytest.raises(CorpusError, match="not UTF-8"):
        run(paths, vocabulary, tmp_path / "out")
    with pytest.raises(CorpusError, match="holds an unfinished corpus of something else: 5 input files, not 1"):
        run(paths[:1], vocabulary, tmp_path / "out")


def test_where_nothing_was_finished_something_else_may_begin(tmp_path, vocabulary):
    good, bad = write_texts(tmp_path / "in", files=2)
    bad.write_bytes(b"\xff")
    with pytest.raises(CorpusError, match="not UTF-8"):
        run([bad], vocabulary, tmp_path / "out")
    assert run([good], vocabulary, tmp_path / "out")[0].documents


def test_one_document_is_warned_of(tmp_path, vocabulary):
    (tmp_path / "novel.txt").write_text("The cat sat.\n\nA dog ran.\n")
    _, said = run([tmp_path / "novel.txt"], vocabulary, tmp_path / "out")
    assert "one document only" in said


def test_what_cannot_be_started(tmp_path, vocabulary):
    [path] = write_texts(tmp_path / "in", files=1)
    with pytest.raises(CorpusError, match="no input file"):
        run([], vocabulary, tmp_path / "out")
    with pytest.raises(CorpusError, match="given twice"):
        run([path, path], vocabulary, tmp_path / "out")
    with pytest.raises(FileError, match="no such file"):
        run([tmp_path / "none"], vocabulary, tmp_path / "out")
    with pytest.raises(FileError, match="is a folder"):
        run([tmp_path], vocabulary, tmp_path / "out")
    with pytest.raises(ConfigError, match="workers 0"):
        run([path], vocabulary, tmp_path / "out", workers=0)
    with pytest.raises(FileError, match="is a file"):
        run([path], vocabulary, path)
    with pytest.raises(FileError, match="not a corpus"):
        run([path], vocabulary, tmp_path)
    assert not (tmp_path / "out").exists()


def test_text_without_a_document_is_refused(tmp_path, vocabulary):
    (tmp_path / "a.txt").write_text(" \n\u200b\n")
    with pytest.raises(CorpusError, match=r"a\.txt: no document with text"):
        run([tmp_path / "a.txt"], vocabulary, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "a.txt").write_text("The cat.")
    run([tmp_path / "a.txt"], vocabulary, tmp_path / "out")


def test_a_full_disk_is_one_message_and_can_be_gone_on_from(tmp_path, vocabulary, small, monkeypatch):
    paths = write_texts(tmp_path / "in")
    written = []

    def full(handle):
        written.append(handle)
        if len(written) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shards_module.os, "fsync", full)
        with pytest.raises(FileError, match="the disk is full"):
            run(paths, vocabulary, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.aside"))
    run(paths, vocabulary, tmp_path / "out")
    run(paths, vocabulary, tmp_path / "undisturbed")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "undisturbed")


def test_a_second_prepare_in_the_same_folder_is_refused(tmp_path, vocabulary, small):
    paths = write_texts(tmp_path / "in")
    process = start(tmp_path, 1, 0.1)
    try:
        wait_for_shards(tmp_path / "out", 1, process)
        with pytest.raises(FileError, match="in use by another process"):
            run(paths, vocabulary, tmp_path / "out")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_mostly_one_sentence_documents_are_warned_about(tmp_path, vocabulary):
    (tmp_path / "a.txt").write_text("The cat.\n\nThe dog.\n\nA bird. A tree.\n")
    corpus, screen = run([tmp_path / "a.txt"], vocabulary, tmp_path / "out", format="lines")
    assert corpus.manifest["counts"]["one_sentence_documents"] == 3
    assert "warning: 3 of 3 documents have one sentence only" in screen
    _, screen = run([tmp_path / "a.txt"], vocabulary, tmp_path / "text")
    assert "one sentence only" not in screen


def test_replaced_bytes_are_counted(tmp_path, vocabulary):
    (tmp_path / "a.txt").write_bytes(b"The cat\xff sat. The dog ran.")
    corpus, screen = run([tmp_path / "a.txt"], vocabulary, tmp_path / "out", encoding_errors="replace")
    assert corpus.manifest["counts"]["replaced_bytes"] == 1
    assert "1 broken bytes were replaced" in screen


def test_the_manifest_names_no_folder(tmp_path, vocabulary):
    paths = write_texts(tmp_path / "in")
    run(paths, vocabulary, tmp_path / "out")
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["sources"][0]["size"] == paths[0].stat().st_size


def test_torch_is_not_imported():
    code = "import sys, bertsmith.corpus.prepare, bertsmith.base.workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
