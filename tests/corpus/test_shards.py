"""The format on disk: what is written is read, what is damaged is refused by name."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import FILES, Corpus, Shard, write_shard
from bertsmith.errors import ShardError


def fill(folder, documents, vocabulary_size=30_000, seed=0):
    """`documents`: lists of sentence lengths."""
    lengths = np.array([length for document in documents for length in document], dtype=np.int64)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocabulary_size, lengths.sum()).astype(np.uint32)
    word_starts = rng.random(len(tokens)) < 0.7
    folder.mkdir()
    write_shard(
        folder,
        tokens=tokens,
        sentence_lengths=lengths,
        document_lengths=np.array([len(document) for document in documents]),
        word_starts=word_starts,
        fingerprint="f" * 64,
        vocabulary_size=vocabulary_size,
    )
    return tokens, word_starts


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=5), st.integers(0, 9))
def test_round_trip(tmp_path_factory, documents, seed):
    folder = tmp_path_factory.mktemp("shards") / "shard-00000"
    tokens, word_starts = fill(folder, documents, seed=seed)
    shard = Shard.open(folder, verify=True)
    assert shard.name == "shard-00000"
    assert shard.fingerprint == "f" * 64
    assert np.array_equal(shard.tokens, tokens)
    assert shard.tokens.dtype == np.uint16
    flat = [length for document in documents for length in document]
    assert shard.sentence_starts.tolist() == [0, *np.cumsum(flat)]
    assert shard.document_starts.tolist() == [0, *np.cumsum([len(document) for document in documents])]
    assert shard.sentence_starts.dtype == shard.document_starts.dtype == np.int64
    for start in range(0, len(tokens), 7):
        for end in (start, start + 1, min(start + 19, len(tokens)), len(tokens)):
            assert np.array_equal(shard.word_starts(start, end), word_starts[start:end])


def test_what_is_open_cannot_be_written_to(tmp_path):
    fill(tmp_path / "s", [[3, 4]])
    shard = Shard.open(tmp_path / "s")
    for array in (shard.tokens, shard.sentence_starts, shard.document_starts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(("size", "dtype"), [(65_535, np.uint16), (65_536, np.uint32), (120_000, np.uint32)])
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path, size, dtype):
    tokens, _ = fill(tmp_path / "s", [[50, 50]], vocabulary_size=size)
    assert Shard.open(tmp_path / "s", verify=True).tokens.dtype == dtype
    assert np.array_equal(Shard.open(tmp_path / "s").tokens, tokens)


def test_a_sentence_too_long_for_its_length_field_is_cut(tmp_path):
    fill(tmp_path / "s", [[3, 65_535], [65_536], [200_000, 1]])
    shard = Shard.open(tmp_path / "s", verify=True)
    assert np.diff(shard.sentence_starts).tolist() == [3, 65_535, 65_535, 1, 65_535, 65_535, 65_535, 3_395, 1]
    assert np.diff(shard.document_starts).tolist() == [2, 2, 5]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_cut_or_longer_is_named(tmp_path, name):
    fill(tmp_path / "s", [[5, 6], [7]])
    data = (tmp_path / "s" / name).read_bytes()
    for changed, expected in ((data[:-1], "cut short"), (data + b"\0", "too long"), (b"", "cut short")):
        (tmp_path / "s" / name).write_bytes(changed)
        with pytest.raises(ShardError, match=f"{name}: {expected}.*bertsmith prepare"):
            Shard.open(tmp_path / "s")
    (tmp_path / "s" / name).unlink()
    with pytest.raises(ShardError, match=f"{name}: missing"):
        Shard.open(tmp_path / "s")


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_found_by_verify(tmp_path, name):
    fill(tmp_path / "s", [[5, 6], [7]])
    data = bytearray((tmp_path / "s" / name).read_bytes())
    data[-1] ^= 64
    (tmp_path / "s" / name).write_bytes(data)
    Shard.open(tmp_path / "s")
    with pytest.raises(ShardError, match=f"{name}: damaged.*bertsmith prepare"):
        Shard.open(tmp_path / "s", verify=True)


def test_lengths_that_do_not_add_up_are_found_when_used(tmp_path):
    fill(tmp_path / "s", [[5, 6], [7]])
    (tmp_path / "s" / "sentences.idx").write_bytes(np.array([5, 6, 8], dtype="<u2").tobytes())
    with pytest.raises(ShardError, match=r"sentences\.idx: damaged.*19, not 18"):
        _ = Shard.open(tmp_path / "s").sentence_starts


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"magic": "other"}, "not a bertsmith shard"),
        ({"version": 99}, "version 99, this bertsmith reads up to 1; use the newer"),
        ({"version": None}, "version None"),
        ({"tokens": None}, "an entry is missing or wrong"),
        ({"sha256": {}}, "an entry is missing or wrong"),
        (None, "not JSON"),
    ],
)
def test_a_manifest_that_does_not_fit(tmp_path, change, expected):
    fill(tmp_path / "s", [[5]])
    path = tmp_path / "s" / "manifest.json"
    path.write_text("{" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ShardError, match=expected) as caught:
        Shard.open(tmp_path / "s")
    assert str(path) in str(caught.value)


@pytest.fixture
def corpus(tmp_path):
    words = ["the", "cat", "sat", "##s", ".", "a", "dog", "ran"]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (tmp_path / "a.txt").write_text("<doc>\nThe cats sat. A dog ran.\n</doc>\n<doc>\nA dogs cat sat.\n</doc>\n")
    prepare([tmp_path / "a.txt"], tokenizer_folder=tmp_path / "vocab.txt", out=tmp_path / "corpus")
    return tmp_path / "corpus"


def test_a_corpus_knows_its_totals(corpus):
    opened = Corpus.open(corpus, verify=True)
    assert (opened.documents, opened.sentences, opened.tokens) == (2, 3, 15)
    assert [shard.name for shard in opened.shards] == ["shard-00000"]
    assert opened.tokenizer_folder.is_dir()
    assert opened.fingerprint == Corpus.open(corpus).fingerprint
    starts = opened.shards[0].word_starts(0, 15).tolist()
    assert starts == [True, True, False, *[True] * 8, False, *[True] * 3]


def test_a_folder_without_a_whole_corpus_is_refused(corpus, tmp_path):
    with pytest.raises(ShardError, match="no such folder"):
        Corpus.open(tmp_path / "none")
    (corpus / "manifest.json").rename(tmp_path / "manifest.json")
    with pytest.raises(ShardError, match="not finished; run `bertsmith prepare`"):
        Corpus.open(corpus)


def test_a_shard_of_another_tokenizer_or_corpus_is_refused(corpus, tmp_path):
    path = corpus / "shard-00000" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "fingerprint": "0" * 64}))
    with pytest.raises(ShardError, match=r"shard-00000/manifest\.json: made with another tokenizer"):
        Corpus.open(corpus)
    path.write_text(json.dumps({**manifest, "sha256": {**manifest["sha256"], "tokens.bin": "0" * 64}}))
    with pytest.raises(ShardError, match="not the shard this corpus was made with"):
        Corpus.open(corpus)


def test_disk_size_is_at_most_1_2_times_the_tokens(tmp_path):
    """On the standard library's docstring-like text with a vocabulary of whole words, the worst case: fewest tokens."""
    import pydoc_data.topics

    text = "\n\n".join(pydoc_data.topics.topics.values())
    words = sorted(set("".join(c if c.isalnum() else " " for c in text.lower()).split()))
    signs = sorted({c for c in text if not c.isalnum() and not c.isspace()})
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *signs]) + "\n"
    )
    (tmp_path / "topics.txt").write_text(text)
    corpus = prepare([tmp_path / "topics.txt"], tokenizer_folder=tmp_path / "vocab.txt", out=tmp_path / "corpus")
    size = sum(file.stat().st_size for file in (tmp_path / "corpus" / "shard-00000").iterdir())
    assert corpus.tokens > 100_000
    assert size <= 1.2 * 2 * corpus.tokens
