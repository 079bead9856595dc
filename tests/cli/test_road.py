"""Every command once, on what the ones before it left."""

import csv
import io
import json
import shutil
import sys

import pytest
from main_road import SMALL, typed, write_table
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertsmith
from bertsmith.cli.train import find_recipe
from bertsmith.errors import ConfigError


def ok(*words):
    ran = typed(*words)
    assert ran.code == 0, ran.err
    return ran


def test_vocab_writes_exactly_the_size_and_reports(road):
    lines = (road.vocabulary / "vocab.txt").read_text().splitlines()
    assert len(lines) == 150
    assert lines[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert "pieces per word" in road.said["vocab"].out


def test_vocab_is_the_same_for_any_number_of_workers_and_replaces_an_older_one(road, tmp_path):
    before = (road.vocabulary / "vocab.txt").read_bytes()
    ok("vocab", road.text, "--out", tmp_path / "v", "--size", 120, "--workers", 1)
    ran = ok("vocab", road.text, "--out", tmp_path / "v", "--size", 150, "--workers", 2, "--json", "--quiet")
    assert (tmp_path / "v" / "vocab.txt").read_bytes() == before
    found = json.loads(ran.out)
    assert found["pieces"] == 150
    assert found["report"]["pieces_per_word"] >= 1
    assert ran.err == ""


def test_vocab_options_reach_the_vocabulary(road, tmp_path):
    ok("vocab", road.text, "--out", tmp_path, "--size", 100, "--cased", "--preset", "unicode-safe", "--unused", 3)
    lines = (tmp_path / "vocab.txt").read_text().splitlines()
    assert lines[5:8] == ["[unused0]", "[unused1]", "[unused2]"]
    assert "T" in lines
    found = json.loads(ok("inspect", tmp_path, "--json").out)
    assert (found["normalizer"]["preset"], found["normalizer"]["lowercase"]) == ("unicode-safe", False)


def test_prepare_says_what_it_made_and_a_second_time_changes_nothing(road):
    assert "documents    30" in road.said["prepare"].out
    again = ok("prepare", road.text, "--tokenizer", road.vocabulary, "--out", road.corpus, "--json")
    assert json.loads(again.out)["documents"] == 30


def test_pretrain_leaves_settings_log_and_a_model(road):
    assert "steps = 6" in (road.run / "recipe.toml").read_text()
    assert (road.pretrained / "model.safetensors").exists()
    assert road.said["pretrain"].out.split() == ["model", str(road.pretrained)]


def test_pretrain_dry_run_shows_and_writes_nothing(road, tmp_path):
    ran = ok("pretrain", "tiny", "--data", road.corpus, "--out", tmp_path / "run", "--dry-run", *SMALL)
    assert "steps = 6" in ran.out
    assert "parameters" in ran.out
    assert not (tmp_path / "run").exists()


def test_pretrain_resumes_a_finished_run_and_starts_from_a_model(road, tmp_path):
    done = ok("pretrain", "tiny", "--data", road.corpus, "--out", road.run, "--resume", *SMALL)
    assert "finished already" in done.err
    begun = ok(
        *("pretrain", "tiny", "--data", road.corpus, "--out", tmp_path / "run", "--init", road.pretrained),
        *("--heldout", road.corpus, "--json", "--quiet", *SMALL, "--set", "train.steps=2", "--set", "train.warmup=1"),
    )
    assert json.loads(begun.out) == {"model": str(tmp_path / "run" / "model")}


def test_a_recipe_is_a_name_or_a_file(tmp_path):
    assert find_recipe("tiny").name == "tiny.toml"
    assert find_recipe(str(tmp_path / "mine.toml")) == tmp_path / "mine.toml"
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        find_recipe("tinny")


def test_finetune_reports_every_seed_and_transformers_reads_the_model(road):
    assert "spread" in road.said["finetune"].out
    model = AutoModelForSequenceClassification.from_pretrained(road.classifier)
    assert model.config.id2label == {0: "alive", 1: "thing"}
    assert AutoTokenizer.from_pretrained(road.classifier).tokenize("the cat") == ["the", "cat"]


def test_finetune_from_random_weights_with_columns_without_header(road, tmp_path):
    table = tmp_path / "rows.tsv"
    table.write_text("1\tyes\tthe cat\ta dog\n2\tno\tthe king\tthe river\n" * 6)
    ran = ok(
        *("finetune", "--train", table, "--dev", table, "--test", table, "--no-header", "--text", 3, "--pair", 4),
        *("--label", 2, "--init", "random", "--model", road.pretrained, "--out", tmp_path / "out", "--json", "--quiet"),
        *("--set", "epochs=1", "--set", "max_length=24"),
    )
    scores = json.loads(ran.out)
    assert (scores["init"], scores["labels"], scores["rows"]["test"]) == ("random", ["no", "yes"], 12)
    single = typed("predict", "--model", tmp_path / "out" / "model", "one text")
    assert (single.code, "pairs" in single.err) == (1, True)
    assert len(ok("predict", "--model", tmp_path / "out" / "model", "--input", table).out.splitlines()) == 12


def test_evaluate_scores_and_writes(road, tmp_path):
    words = ("evaluate", "--model", road.classifier, "--data", road.table)
    assert "accuracy" in ok(*words).out
    ran = ok(*words, "--json", "--out", tmp_path / "s.json", "--predictions", tmp_path / "p.csv")
    found, written = json.loads(ran.out), json.loads((tmp_path / "s.json").read_text())
    assert found["accuracy"] == written["accuracy"]
    assert len(list(csv.reader(io.StringIO((tmp_path / "p.csv").read_text())))) == 61


def test_scores_go_to_a_folder_that_is_made(road, tmp_path):
    words = ("evaluate", "--model", road.classifier, "--data", road.table, "--out", tmp_path / "new" / "scores.json")
    assert typed(*words).code == 0
    assert "accuracy" in (tmp_path / "new" / "scores.json").read_text()


def test_a_classifier_saved_from_python_still_knows_its_task(road, tmp_path):
    model = bertsmith.load(road.classifier)
    assert model.max_length == 24
    model.save(tmp_path / "saved")
    assert bertsmith.load(tmp_path / "saved").max_length == 24
    assert typed("evaluate", "--model", tmp_path / "saved", "--data", road.table).code == 0
    bertsmith.load(road.classifier, head="label", labels=["a", "b"]).save(tmp_path / "other")
    assert "task" not in json.loads((tmp_path / "other" / "bertsmith.json").read_text())["provenance"]


def test_a_run_that_was_killed_while_it_wrote_a_record_can_be_inspected(road, tmp_path):
    shutil.copytree(road.run, tmp_path / "run")
    with open(tmp_path / "run" / "run.jsonl", "a") as file:
        file.write('{"kind": "step", "ti')
    ran = typed("inspect", tmp_path / "run")
    assert ran.code == 0
    assert "last step" in ran.out


def test_predict_texts_tables_lines_and_stdin_agree(road, tmp_path, monkeypatch):
    texts = ["my aunt sees a broken clock.", "", "the river hides its own shadow."]
    words = ("predict", "--model", road.classifier)
    typed = [json.loads(line) for line in ok(*words, "--json", *texts).out.splitlines()]
    assert [row["text"] for row in typed] == texts
    assert all(abs(sum(row["probabilities"].values()) - 1) < 1e-9 for row in typed)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(texts) + "\n")
    assert [json.loads(line) for line in ok(*words, "--json", "--input", lines).out.splitlines()] == typed
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    assert [json.loads(line) for line in ok(*words, "--json").out.splitlines()] == typed
    plain = [line.split("\t") for line in ok(*words, *texts).out.split("\n")[:-1]]
    assert [(label, text) for label, _, text in plain] == [(row["label"], row["text"]) for row in typed]


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl"])
def test_predict_writes_tables(road, tmp_path, name):
    ran = ok("predict", "--model", road.classifier, "--input", road.table, "--output", tmp_path / name)
    assert ran.out == ""
    assert len((tmp_path / name).read_text().splitlines()) == 60 + (name != "p.jsonl")


def test_predict_refuses_an_output_that_says_no_format_before_any_work(road, tmp_path):
    ran = typed("predict", "--model", tmp_path / "none", "--output", tmp_path / "p.xls", "text")
    assert ran.code == 1
    assert "p.xls" in ran.err


def test_predict_with_nothing_to_label_is_a_usage_error(road, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    ran = typed("predict", "--model", road.classifier)
    assert ran.code == 2
    assert "--input" in ran.err


def test_fill_shows_pieces_and_probabilities(road):
    lines = ok("fill", "--model", road.pretrained, "the [MASK] sees a [MASK].", "--top", 3).out.splitlines()
    assert [lines[0], lines[4]] == ["[MASK] 1", "[MASK] 2"]
    found = json.loads(ok("fill", "--model", road.pretrained, "the [MASK] sees.", "--json").out)
    assert len(found["masks"][0]) == 5
    assert all(0 < guess["probability"] < 1 for guess in found["masks"][0])


def test_inspect_knows_every_kind_of_folder(road):
    for folder, kind in (
        (road.vocabulary, "vocabulary"),
        (road.vocabulary / "vocab.txt", "vocabulary"),
        (road.corpus, "corpus"),
        (road.run, "run"),
        (road.tuned, "run"),
        (road.pretrained, "model"),
        (road.classifier, "model"),
    ):
        assert json.loads(ok("inspect", folder, "--json").out)["kind"] == kind
        assert ok("inspect", folder).out.startswith("kind")
    assert "right" in ok("inspect", road.corpus, "--verify").out


def test_inspect_reports_on_text(road):
    for folder in (road.vocabulary, road.corpus, road.pretrained):
        assert "pieces per word" in ok("inspect", folder, "--text", road.text).out


def test_doctor_says_which_precision_and_why(tmp_path):
    found = json.loads(ok("doctor", "--json", "--folder", tmp_path / "not" / "there").out)
    assert found["precision"].startswith(("fp32 (", "bf16 ("))
    assert "GiB" in found["disk free"]
    assert "torch" in ok("doctor").out


def test_a_table_is_read_with_the_columns_of_training(road, tmp_path):
    table = write_table(tmp_path / "t.csv", 5, 9)
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace("text,label", "what,kind"))
    ran = typed("evaluate", "--model", road.classifier, "--data", other)
    assert ran.code == 1
    assert "'what', 'kind'" in ran.err
    assert ok("evaluate", "--model", road.classifier, "--data", other, "--text", "what", "--label", "kind").out
