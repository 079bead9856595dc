"""The demo: its text, its page, and the whole of it on a user's own small files."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bertsmith.base.log import read_records
from bertsmith.cli import demo_text, page
from bertsmith.cli.app import main
from bertsmith.cli.demo import SEEDS
from bertsmith.errors import CorpusError, TaskError
from bertsmith.tasks.metrics.seeds import mean, spread


def library(packages: dict[str, int]) -> list[demo_text.Module]:
    """Modules with six docstrings each; every text is different."""
    return [
        demo_text.Module(
            f"{package}.m{number}", tuple(f"text {at} of the module {number} in {package}" for at in range(6))
        )
        for package, modules in packages.items()
        for number in range(modules)
    ]


class TestTheLabelledTask:
    def test_no_module_is_on_two_sides_and_each_label_on_all(self):
        rows, split = demo_text.label_docstrings(library(dict.fromkeys(demo_text.PACKAGES[:9], 18)))
        for side, members in rows.items():
            assert {row["label"] for row in members} == set(demo_text.PACKAGES[: demo_text.CLASSES])
            assert all(split[row["module"]] == side for row in members)
        sizes = {side: len(members) for side, members in rows.items()}
        assert sizes["train"] > sizes["test"] > sizes["dev"] > 0

    def test_too_few_packages_is_refused_by_name(self):
        with pytest.raises(TaskError, match=r"only 2 packages .*\(email, xml\).*--data FILE --labels FILE"):
            demo_text.label_docstrings(library({"email": 18, "xml": 18, "json": 2}))

    def test_a_sample_has_so_many_of_each_label_and_its_own_choice_for_each_seed(self):
        rows, _ = demo_text.label_docstrings(library(dict.fromkeys(demo_text.PACKAGES[:8], 18)))
        one, other = (demo_text.sample(rows["train"], seed=seed, per_label=20) for seed in (0, 1))
        for label in demo_text.PACKAGES[:8]:
            assert sum(row["label"] == label for row in one) == 20
        assert one == demo_text.sample(rows["train"], seed=0, per_label=20)
        assert {row["text"] for row in one} != {row["text"] for row in other}

    def test_docstrings_lose_their_doctests_and_keep_their_prose(self, tmp_path: Path):
        (tmp_path / "m.py").write_text('"""Adds.\n\n    >>> 1 + 1\n\n    Twice.\n    """\ndef f():\n    "Says f."\n')
        assert demo_text.docstrings_of(tmp_path / "m.py") == ["Adds.\n\nTwice.", "Says f."]
        (tmp_path / "broken.py").write_text("def (:")
        assert demo_text.docstrings_of(tmp_path / "broken.py") == []

    def test_the_text_that_python_carries_keeps_the_tasks_other_modules_out(self, tmp_path: Path):
        text = demo_text.build(tmp_path)
        assert {"train", "dev", "test"} == set(text.labelled)
        names = {side: {row["module"] for row in rows} for side, rows in text.labelled.items()}
        train, heldout = (set(re.findall('<doc id="(.*)">', path.read_text())) for path in (text.train, text.heldout))
        assert names["train"] <= train
        assert names["dev"] | names["test"] <= heldout
        assert not train & heldout
        assert 1_500_000 < text.sizes["characters"] < 4_000_000
        assert len({row["label"] for row in text.labelled["train"]}) == demo_text.CLASSES


class TestOnesOwnFiles:
    def test_a_single_long_text_is_cut_into_parts(self, tmp_path: Path):
        (tmp_path / "novel.txt").write_text("\n\n".join(f"Paragraph number {at}." for at in range(1_000)))
        text = demo_text.from_files([tmp_path / "novel.txt"], None, tmp_path / "text")
        assert text.sizes["documents"] == 8
        assert text.sizes["heldout documents"] == 2
        assert text.train.read_text().count("<doc ") == 8

    @pytest.mark.parametrize("documents", range(4, 40))
    def test_two_documents_at_least_on_each_side(self, tmp_path: Path, documents: int):
        (tmp_path / "t.txt").write_text("".join(f'<doc id="{at}">\nText {at}.\n</doc>\n' for at in range(documents)))
        text = demo_text.from_files([tmp_path / "t.txt"], None, tmp_path / "text")
        assert min(text.sizes["documents"], text.sizes["heldout documents"]) >= 2
        assert text.sizes["documents"] + text.sizes["heldout documents"] == documents

    def test_too_little_text_says_what_is_needed(self, tmp_path: Path):
        (tmp_path / "note.txt").write_text("One paragraph only.")
        with pytest.raises(CorpusError, match=r"1 documents .* at least four are needed"):
            demo_text.from_files([tmp_path / "note.txt"], None, tmp_path / "text")

    @pytest.mark.parametrize(
        ("rows", "message"),
        [("a,x\n" * 9, "one label only"), ("a,x\n" * 9 + "b,y\n", "1 rows with label 'y'; at least 8")],
    )
    def test_labels_that_show_nothing_are_refused(self, tmp_path: Path, rows: str, message: str):
        (tmp_path / "l.csv").write_text("text,label\n" + rows)
        with pytest.raises(TaskError, match=message):
            demo_text.labelled_table(tmp_path / "l.csv")

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path: Path, capsys):
        (tmp_path / "vocabulary").mkdir()
        assert main(["demo", "--out", str(tmp_path)]) == 1
        assert "holds other things than a demo (vocabulary)" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["vocabulary"]

    def test_several_files_may_follow_one_data(self, tmp_path: Path, capsys):
        (tmp_path / "a.txt").write_text("One paragraph.")
        assert (
            main(["demo", "--data", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--out", str(tmp_path / "o")])
            == 1
        )
        assert "b.txt: no such file" in capsys.readouterr().err

    def test_labels_without_text_is_a_usage_error(self, tmp_path: Path, capsys):
        assert main(["demo", "--labels", str(tmp_path / "l.csv"), "--out", str(tmp_path / "out")]) == 2
        assert "--data" in capsys.readouterr().err


class TestThePage:
    def test_charts_are_well_formed_and_hold_every_finite_point(self):
        figure = page.line_chart("Loss & <more>", {"a": [(0, 9.0), (10, 3.5), (20, float("nan"))]}, x="step", y="loss")
        svg = ElementTree.fromstring(re.search("<svg.*</svg>", figure, re.DOTALL).group())
        assert len(svg.findall("circle")) == 2
        assert svg.find("title").text == "Loss & <more>"

    def test_nothing_measured_is_said(self):
        assert "nothing was measured" in page.line_chart("Loss", {"a": []}, x="step", y="loss")

    @pytest.mark.parametrize(("low", "high"), [(0, 1), (0.1, 0.11), (5, 5), (-3, 9_000_000), (0, 0)])
    def test_ticks_enclose_the_values(self, low: float, high: float):
        values = page.ticks(low, high)
        assert values[0] <= low <= high <= values[-1]
        assert 2 <= len(values) <= 10

    def test_text_is_escaped(self):
        html = page.page("<b>", [page.table(["a<"], [["<script>"]]), page.filled("<", ">", [("&", 0.5)], "&")])
        assert "<script>" not in html
        assert "&lt;script&gt;" in html


@pytest.mark.slow
def test_the_whole_demo_on_ones_own_files(tmp_path: Path, capsys):
    """Also that a second call finds everything done and says the same."""
    topics = {
        "10": "the ship sails over the deep blue water of the sea",
        "2": "the farmer ploughs the brown soil of his field",
    }
    rng = random.Random(0)
    names = ["".join(rng.choice(letters) for letters in ("bdfgklmnprst", "aeiou") * 3) for _ in range(80)]
    lines = [
        f"{words} on day {at} of {rng.choice(names)}, said {rng.choice(names)}."
        for at in range(240)
        for words in topics.values()
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(rng.sample(lines, 3)) for _ in range(900)))
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "".join(f"{words} {at},{label}\n" for at in range(16) for label, words in topics.items())
    )
    small = ("steps=6", "warmup=2", "batch=8"), ("width=32", "heads=2", "ffn_width=64", "depth=1")
    settings = [f"train.{one}" for one in small[0]] + [f"model.{one}" for one in small[1]]
    command = ["demo", "--data", str(tmp_path / "text.txt"), "--labels", str(tmp_path / "labels.csv"), "--quiet"]
    command += ["--out", str(tmp_path / "out"), *(word for one in settings for word in ("--set", one))]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "BERT, pre-trained" in first
    assert "held-out accuracy, NSP" in first
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("<svg") == 2
    assert "Confusion matrix" in report
    assert json.loads((tmp_path / "out" / "result.json").read_text())["task"]["labels"] == ["2", "10"]
    assert re.search(r"<th>2</th>\s*<th>10</th>", report)
    assert "http" not in report.replace("http-equiv", "")
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert main([*command, "--set", "train.steps=7"]) == 1
    assert "holds a demo of other text or with other settings" in capsys.readouterr().err
    steps = [json.loads(line) for line in (tmp_path / "out" / "run" / "run.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "done" for line in steps) == 1


@pytest.mark.slow
def test_pre_training_pays_on_the_documentation_of_python(tmp_path: Path):
    """The promise of `make demo`, as a process of its own with all cores, for so many steps however long they take."""
    free = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "bertsmith", "demo", "--out", str(tmp_path), "--quiet"]
    command += ["--set", "train.steps=320", "--set", "train.minutes=none"]
    subprocess.run(command, env=free, check=True, capture_output=True)
    end = [line for line in read_records(tmp_path / "run" / "run.jsonl") if line["kind"] == "heldout"][-1]
    assert end["mlm_accuracy"] >= 3 * end["frequent_accuracy"]
    assert end["nsp_accuracy"] > 0.6
    scores = {
        init: [
            json.loads((tmp_path / "classifier" / f"{init}-{seed}" / "scores.json").read_text())["mean"]["test"][
                "accuracy"
            ]
            for seed in SEEDS
        ]
        for init in ("random", "pretrained")
    }
    margin = mean(scores["pretrained"]) - mean(scores["random"])
    assert margin > max(spread(values) for values in scores.values())
    assert "Confusion matrix" in (tmp_path / "report.html").read_text()
