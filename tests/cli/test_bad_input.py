"""What people give by mistake: one clear message, exit code 1, nothing half-written in the place of something whole."""

import os
import shutil
from pathlib import Path

import pytest
from junk import edited
from main_road import SMALL, WRITERS, Ran, files_in, typed, writers

from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import Vocabulary


def refused(ran: Ran, *said: object) -> None:
    """Exit code 1 and one error that names what was found and where."""
    assert ran.code == 1, ran
    assert ran.out == ""
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in ran.err
    for text in said:
        assert str(text) in ran.err


@pytest.fixture
def bad(tmp_path: Path):
    """Makes one bad file or folder by name."""

    def make(kind: str, suffix: str) -> Path:
        path = tmp_path / f"{kind}{suffix}"
        content = {
            "empty": b"",
            "blank": b"\n \n\n",
            "binary": bytes(range(256)) * 40,
            "utf-16": "text,label\nein Satz,ja\n".encode("utf-16"),
            "broken": b"text,label\ngood,yes\nb\xe4d,no\n",
        }
        if kind in content:
            path.write_bytes(content[kind])
        elif kind == "folder":
            path.mkdir()
        else:
            assert kind == "missing"
        return path

    return make


TEXT_KINDS = ["missing", "folder", "empty", "blank", "binary", "utf-16", "broken"]


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_vocab_refuses(bad, kind, tmp_path):
    path = bad(kind, ".txt")
    ran = typed("vocab", path, "--out", tmp_path / "out", "--workers", 1)
    refused(ran, *([] if kind == "blank" else [path.name]))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_prepare_refuses(road, bad, kind, tmp_path):
    path, out = bad(kind, ".txt"), tmp_path / "out"
    refused(typed("prepare", path, "--tokenizer", road.vocabulary, "--out", out, "--workers", 1), path.name)
    assert not (out / "manifest.json").exists()


def test_the_same_in_worker_processes(road, bad, tmp_path):
    broken = bad("broken", ".txt")
    refused(typed("vocab", road.text, broken, "--out", tmp_path / "v", "--workers", 2), broken.name, "byte")
    refused(
        typed("prepare", road.text, broken, "--tokenizer", road.vocabulary, "--out", tmp_path / "c", "--workers", 2),
        broken.name,
        "byte",
    )


def test_broken_bytes_can_be_replaced(road, bad, tmp_path):
    words = ("prepare", bad("broken", ".txt"), "--tokenizer", road.vocabulary, "--out", tmp_path / "c")
    ran = typed(*words, "--workers", 1, "--encoding-errors", "replace")
    assert ran.code == 0
    assert "replaced" in ran.err


def test_vocab_replaces_them_too_and_tells_what_it_passed_over(bad, road, tmp_path):
    (tmp_path / "hollow.txt").write_text("<doc id=1>\n</doc>\n<doc id=2>\nfull\n</doc>\n")
    files = (bad("broken", ".txt"), tmp_path / "hollow.txt", road.text)
    for workers in (1, 2):
        ran = typed(
            *("vocab", *files, "--out", tmp_path / f"v{workers}", "--size", 150, "--workers", workers),
            *("--encoding-errors", "replace"),
        )
        assert ran.code == 0
        assert "1 broken bytes were replaced" in ran.err
        assert "1 empty documents skipped" in ran.err


def test_vocab_says_which_size_is_possible(road, tmp_path):
    refused(typed("vocab", road.text, "--out", tmp_path / "v", "--size", 9_000), "--size")
    refused(typed("vocab", road.text, "--out", tmp_path / "v", "--size", 20), "--limit-alphabet")
    assert files_in(tmp_path) == []


TABLE_KINDS = ["missing", "folder", "empty", "blank", "binary", "utf-16", "broken"]


@pytest.fixture
def table_commands(road, tmp_path):
    """Each command that reads a table, as a function of the table."""
    return {
        "train": lambda path: typed("finetune", "--train", path, "--model", road.pretrained, "--out", tmp_path / "run"),
        "dev": lambda path: typed(
            *("finetune", "--train", road.table, "--dev", path, "--model", road.pretrained, "--out", tmp_path / "run")
        ),
        "evaluate": lambda path: typed("evaluate", "--model", road.classifier, "--data", path),
        "predict": lambda path: typed("predict", "--model", road.classifier, "--input", path),
    }


@pytest.mark.parametrize("command", ["train", "dev", "evaluate", "predict"])
@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_tables_are_refused(table_commands, bad, command, kind, tmp_path):
    path = bad(kind, ".csv")
    refused(table_commands[command](path), path.name)
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("command", ["train", "dev", "evaluate", "predict"])
def test_ragged_rows_are_refused_by_line(table_commands, tmp_path, command):
    path = tmp_path / "ragged.csv"
    path.write_text("text,label\nthe cat,alive\na dog\nthe king,alive\n")
    refused(table_commands[command](path), "ragged.csv:3")


@pytest.mark.parametrize("command", ["dev", "evaluate"])
def test_a_label_that_training_never_saw_is_refused_with_both_lists(table_commands, tmp_path, command):
    path = tmp_path / "strange.csv"
    path.write_text("text,label\nthe cat,alive\na ghost,undead\n")
    refused(table_commands[command](path), "strange.csv:3", "'undead'", "'alive', 'thing'")


def test_a_suffix_that_says_nothing_is_refused(table_commands, road, tmp_path):
    shutil.copy(road.table, tmp_path / "table.xls")
    refused(table_commands["train"](tmp_path / "table.xls"), ".xls")


@pytest.fixture
def model_commands(road, tmp_path):
    """Each command that reads a model folder, as a function of the folder."""
    return {
        "finetune": lambda model: typed("finetune", "--train", road.table, "--model", model, "--out", tmp_path / "run"),
        "evaluate": lambda model: typed("evaluate", "--model", model, "--data", road.table),
        "predict": lambda model: typed("predict", "--model", model, "the cat"),
        "fill": lambda model: typed("fill", "--model", model, "the [MASK]"),
        "init": lambda model: typed(
            "pretrain", "tiny", "--data", road.corpus, "--out", tmp_path / "run", "--init", model, *SMALL
        ),
    }


def broken_model(kind: str, road, path: Path) -> Path:
    if kind == "a file":
        path.write_text("not a model")
    elif kind == "empty":
        path.mkdir()
    elif kind != "missing":
        shutil.copytree(road.classifier, path)
        weights = path / "model.safetensors"
        if kind == "truncated":
            weights.write_bytes(weights.read_bytes()[:100_000])
        elif kind == "no weights":
            weights.unlink()
        elif kind == "other vocabulary":
            pieces = Tokenizer.load(path).vocabulary.pieces
            Tokenizer(Vocabulary([*pieces, "one", "more"])).save(path)
        elif kind == "bad config":
            (path / "config.json").write_text('{"model_type": "bert", ')
    return path


MODEL_KINDS = ["missing", "a file", "empty", "truncated", "no weights", "other vocabulary", "bad config"]


@pytest.mark.parametrize("command", ["finetune", "evaluate", "predict", "fill", "init"])
@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_model_folders_are_refused(model_commands, road, command, kind, tmp_path):
    path = broken_model(kind, road, tmp_path / "broken")
    refused(model_commands[command](path), "broken", *(["152", "150"] if kind == "other vocabulary" else []))
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("kind", ["truncated", "other vocabulary", "no weights"])
def test_inspect_says_that_a_model_does_not_fit_together(road, kind, tmp_path):
    ran = typed("inspect", broken_model(kind, road, tmp_path / "broken"))
    assert ran.code == 1
    assert "fits" in ran.out
    assert "Traceback" not in ran.err


def test_inspect_refuses_what_it_does_not_know(road, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0\0\0")
    refused(typed("inspect", tmp_path), "it holds photo.jpg")
    refused(typed("inspect", tmp_path / "none"), "none")
    refused(typed("inspect", tmp_path / "photo.jpg"), "photo.jpg")


def test_a_model_without_the_head_that_is_needed(road):
    refused(typed("predict", "--model", road.pretrained, "text"), "finetune")
    refused(typed("fill", "--model", road.classifier, "the [MASK]"), "masked-LM head")
    refused(typed("fill", "--model", road.pretrained, "no mask"), "[MASK]")


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "truncated", "flipped"])
def test_corpora_are_refused(road, kind, tmp_path):
    path = tmp_path / "broken"
    if kind in ("truncated", "flipped"):
        shutil.copytree(road.corpus, path)
        tokens = next(path.glob("shard-*")) / "tokens.bin"
        data = tokens.read_bytes()
        tokens.write_bytes(data[:-100] if kind == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    elif kind == "empty":
        path.mkdir()
    elif kind == "a file":
        path.write_text("x")
    if kind == "flipped":  # one bit: found by reading everything
        refused(typed("inspect", path, "--verify"), "broken")
        return
    refused(typed("pretrain", "tiny", "--data", path, "--out", tmp_path / "run", *SMALL), "broken")
    assert not (tmp_path / "run" / "model").exists()


def test_tokenizers_are_refused(road, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n\nb\n")
    out = tmp_path / "out"
    refused(typed("prepare", road.text, "--tokenizer", tmp_path / "vocab.txt", "--out", out), "vocab.txt:7")
    refused(typed("prepare", road.text, "--tokenizer", tmp_path / "none", "--out", out), "none")
    assert not out.exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("tinny", [], "did you mean 'tiny'"),
        ("missing.toml", [], "missing.toml"),
        ("tiny", ["train.stepps=3"], "did you mean"),
        ("tiny", ["train.steps=many"], "a whole number was expected"),
        ("tiny", ["steps"], "name=value"),
        ("tiny", ["train.batch=0"], "train.batch 0"),
        ("tiny", ["model.size=huge"], "huge"),
        ("tiny", ["model.family=brt"], "did you mean 'bert'"),
        ("tiny", ["train.device=cpu:x"], "cpu:x"),
        ("tiny", ["train.weight_decay=-1"], "weight_decay"),
        ("tiny", ["data.length=100_000"], "100"),
    ],
)
def test_settings_are_refused(road, tmp_path, recipe, settings, said):
    changes = [word for setting in settings for word in ("--set", setting)]
    refused(typed("pretrain", recipe, "--data", road.corpus, "--out", tmp_path / "run", *changes), said)
    assert not (tmp_path / "run" / "model").exists()


def test_a_recipe_with_a_syntax_error_and_finetune_settings(road, tmp_path):
    (tmp_path / "mine.toml").write_text("[train]\nsteps = = 3\n")
    refused(typed("pretrain", tmp_path / "mine.toml", "--data", road.corpus, "--out", tmp_path / "run"), "line 2")
    words = ("finetune", "--train", road.table, "--model", road.pretrained, "--out", tmp_path / "run")
    refused(typed(*words, "--set", "learning_rat=1e-3"), "did you mean 'learning_rate'")
    refused(typed(*words, "--set", "clip=-1"), "clip -1")
    (tmp_path / "short.toml").write_text("[model]\nsize = 'tiny'\n[train]\nsteps = 5\n")
    short = ("pretrain", tmp_path / "short.toml", "--data", road.corpus, "--out", tmp_path / "short", "--dry-run")
    refused(typed(*short), "train.warmup 10000")
    assert typed(*short, "--set", "train.warmup=2").code == 0


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("where", ["under a file", "proc"])
def test_a_place_that_cannot_be_written_is_said(road, command, where, tmp_path):
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "out" if where == "under a file" else Path("/proc/bertsmith-out")
    refused(typed(*writers(road, out)[command]), "/proc" if where == "proc" else "file")
    assert files_in(tmp_path) == ["file"]


def test_predictions_that_cannot_be_written_are_refused_before_the_model_is_read(road, tmp_path):
    (tmp_path / "taken.csv").mkdir()
    (tmp_path / "file").write_text("x")
    for place, said in (("taken.csv", "is a folder"), ("file/out.csv", "file"), ("out.txt", ".csv, .tsv or .jsonl")):
        for words in (
            ("predict", "--model", tmp_path / "none", "--input", road.table, "--output", tmp_path / place),
            ("predict", "--model", tmp_path / "none", "a text", "--output", tmp_path / place),
            ("evaluate", "--model", tmp_path / "none", "--data", road.table, "--predictions", tmp_path / place),
        ):
            refused(typed(*words), said)
    assert files_in(tmp_path) == ["file", "taken.csv"]


@pytest.mark.parametrize("command", ["vocab", "prepare", "finetune"])
def test_a_folder_with_other_things_is_not_replaced(road, command, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    refused(typed(*writers(road, tmp_path)[command]), tmp_path.name)
    assert files_in(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("command", ["vocab", "prepare", "pretrain", "finetune"])
def test_a_file_where_a_folder_is_to_be(road, command, tmp_path):
    (tmp_path / "out").write_text("mine")
    refused(typed(*writers(road, tmp_path / "out")[command]), "out")
    assert (tmp_path / "out").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_a_run_that_is_there_is_not_overwritten(road, command):
    before = {path: path.read_bytes() for path in (road.run, road.tuned) for path in path.rglob("*") if path.is_file()}
    refused(typed(*writers(road, road.run if command == "pretrain" else road.tuned)[command]), "--resume")
    for path, data in before.items():
        assert path.read_bytes() == data


def test_a_fine_tuning_does_not_take_the_place_of_the_run_it_begins_with(road):
    before = files_in(road.run)
    refused(typed(*writers(road, road.run)["finetune"]), "other things than a fine-tuning")
    refused(typed(*writers(road, road.run)["finetune"], "--resume"), "other things than a fine-tuning")
    assert files_in(road.run) == before


def test_a_vocabulary_of_the_same_size_from_elsewhere_does_not_fit(road, tmp_path):
    shutil.copytree(road.pretrained, tmp_path / "model")
    pieces = Tokenizer.load(tmp_path / "model").vocabulary.pieces
    Tokenizer(Vocabulary([*pieces[:-2], pieces[-1], pieces[-2]])).save(tmp_path / "model")
    refused(typed("fill", "--model", tmp_path / "model", "the [MASK]"), "not the one these weights were saved with")
    assert typed("inspect", tmp_path / "model").code == 1


def test_a_device_that_is_none(road):
    refused(typed("predict", "--model", road.classifier, "--device", "cpu:x", "the cat"), "cpu:x")


@pytest.mark.parametrize(
    ("folder", "name", "command"),
    [
        ("corpus", "manifest.json", "prepare"),
        ("corpus", "manifest.json", "inspect"),
        ("corpus", "shard-00000/manifest.json", "inspect"),
        ("tuned", "plan.json", "finetune"),
        ("tuned", "seed-0/scores.json", "finetune"),
    ],
)
def test_our_own_files_edited_are_read_or_refused(road, tmp_path, folder, name, command):
    whole, out = getattr(road, folder), tmp_path / "out"
    shutil.copytree(whole, out)
    again = ["--resume", "--seeds", 2] if command == "finetune" else []
    words = ["inspect", out, "--verify"] if command == "inspect" else [*writers(road, out)[command], *again]
    for what in edited(out / name, 25):
        ran = typed(*words)
        assert ran.code in (0, 1), f"{what}: {ran.err}"
        if command != "inspect":  # what was found to be wrong may have been made again
            shutil.copytree(whole, out, dirs_exist_ok=True)
