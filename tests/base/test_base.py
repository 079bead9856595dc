"""Settings, files, streams and the log: the promises that everything above relies on."""

import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base import config, seeds
from bertsmith.base.files import (
    check_readable,
    check_writable_folder,
    folder_lock,
    fresh_folder,
    read_text,
    sha256_of,
    write_file,
)
from bertsmith.base.log import Log, Progress, clock, read_records
from bertsmith.errors import ConfigError, FileError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    steps: int = 100
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    minutes: float | None = None
    name: str = "adamw"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    train: Train = Train()
    seed: int = 0


class TestConfig:
    def test_set_changes_nested_values_and_converts(self):
        recipe = config.with_settings(
            Recipe(),
            [
                "train.steps=7",
                "train.learning_rate=1",
                "train.betas=[0.9, 0.98]",
                "train.name=muon",
                "train.minutes=2.5",
            ],
        )
        assert recipe.train == Train(steps=7, learning_rate=1.0, betas=(0.9, 0.98), name="muon", minutes=2.5)
        assert config.with_settings(recipe, ["train.minutes=none"]).train.minutes is None

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("train.step=7", "did you mean 'train.steps'"),
            ("steps=7", "did you mean 'train.steps'"),
            ("train=7", "group of settings"),
            ("train.steps", "name=value"),
            ("train.steps=many", "whole number"),
            ("train.steps=true", "whole number"),
            ("train.steps.more=1", "no settings inside"),
            ("train.betas=[0.9]", "2 values"),
        ],
    )
    def test_a_wrong_setting_is_refused_with_advice(self, change, message):
        with pytest.raises(ConfigError, match=message):
            config.with_settings(Recipe(), [change])

    def test_mapping_and_toml_round_trip(self, tmp_path: Path):
        recipe = Recipe(train=Train(steps=3, name='a "quoted" 한국어 name'), seed=5)
        (tmp_path / "r.toml").write_text(config.write_toml(config.to_mapping(recipe)))
        assert config.from_mapping(Recipe, config.read_toml(tmp_path / "r.toml"), where="r.toml") == recipe

    def test_an_unknown_name_in_a_file_names_the_nearest(self):
        with pytest.raises(ConfigError, match=r"r\.toml: train: unknown setting 'stepz'; did you mean 'steps'"):
            config.from_mapping(Recipe, {"train": {"stepz": 1}}, where="r.toml")

    def test_bad_toml_names_the_file(self, tmp_path: Path):
        (tmp_path / "r.toml").write_text("[train\n")
        with pytest.raises(ConfigError, match=r"r\.toml: not valid TOML"):
            config.read_toml(tmp_path / "r.toml")


class TestFiles:
    def test_a_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch):
        write_file(tmp_path / "a", "old")
        monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(FileError, match="disk is full"):
            write_file(tmp_path / "a", "new")
        assert [p.name for p in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_text() == "old"

    def test_a_fresh_folder_replaces_whole_or_not_at_all(self, tmp_path: Path):
        with fresh_folder(tmp_path / "m") as folder:
            (folder / "x").write_text("1")
        with pytest.raises(ValueError, match="stop"), fresh_folder(tmp_path / "m") as folder:
            (folder / "y").write_text("2")
            raise ValueError("stop")
        assert [p.name for p in (tmp_path / "m").iterdir()] == ["x"]
        with fresh_folder(tmp_path / "m") as folder:
            (folder / "y").write_text("2")
        assert [p.name for p in (tmp_path / "m").iterdir()] == ["y"]
        assert [p.name for p in tmp_path.iterdir()] == ["m"]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("가나".encode("utf-16"), "UTF-16"),
            (b"ab\0c", "offset 2: this is a binary file"),
            (b"ok\nab\xffc", r":2: not UTF-8 at byte offset 5 \(0xff\)"),
        ],
    )
    def test_what_is_not_text_is_refused_with_the_place(self, tmp_path: Path, data, message):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(FileError, match=message):
            read_text(tmp_path / "f")

    def test_missing_and_folder(self, tmp_path: Path):
        with pytest.raises(FileError, match="no such file"):
            check_readable(tmp_path / "nothing")
        with pytest.raises(FileError, match="is a folder"):
            read_text(tmp_path)
        (tmp_path / "file").write_text("x")
        with pytest.raises(FileError, match=r"file, not a folder|is a file|File exists"):
            check_writable_folder(tmp_path / "file" / "below")

    def test_a_byte_order_mark_is_dropped(self, tmp_path: Path):
        (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb")
        assert read_text(tmp_path / "f") == "a\r\nb"

    def test_a_second_lock_is_refused_and_names_the_holder(self, tmp_path: Path):
        with folder_lock(tmp_path), pytest.raises(FileError, match=f"pid {os.getpid()}"), folder_lock(tmp_path):
            pass
        with folder_lock(tmp_path):
            pass

    def test_sha256(self, tmp_path: Path):
        (tmp_path / "f").write_bytes(b"abc")
        assert (
            sha256_of(tmp_path / "f")
            == sha256_of(b"abc")
            == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        )


class TestSeeds:
    @given(st.integers(0, 2**40), st.lists(st.one_of(st.integers(0, 2**40), st.text(max_size=5)), max_size=4))
    def test_the_same_names_give_the_same_numbers(self, seed, names):
        assert seeds.stream(seed, *names).integers(2**60) == seeds.stream(seed, *names).integers(2**60)
        assert 0 <= seeds.number(seed, *names) < 2**63

    def test_different_uses_differ(self):
        keys = [(0, "a", 1), (0, "a1"), (0, "a", "1"), (1, "a", 1), (0, "a", 1, 0), (0,), (0, "a", 11)]
        assert len({seeds.number(*key) for key in keys}) == len(keys)

    def test_the_numbers_are_pinned(self):
        """A run resumed by a later version must see the same data."""
        assert seeds.number(0, "dropout", 700, 0) == 2315706742240359476
        assert int(seeds.stream(0, "pairs", 1).integers(1_000_000)) == 587002


class TestLeftOver:
    """What a process killed by kill -9 left beside a folder."""

    @pytest.fixture
    def dead(self) -> int:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        return process.pid

    def test_it_goes_when_the_folder_is_written_again(self, tmp_path: Path, dead: int):
        for name in (f".model.{dead}.aside", f".model.{dead}.old", f".models.{dead}.aside", ".model.1.aside"):
            (tmp_path / name).mkdir()
        (tmp_path / "model").mkdir()
        with fresh_folder(tmp_path / "model"):
            pass
        # Process 1 runs, and "models" is another folder.
        assert {path.name for path in tmp_path.iterdir()} == {"model", f".models.{dead}.aside", ".model.1.aside"}

    def test_the_old_folder_comes_back_if_the_new_one_never_came(self, tmp_path: Path, dead: int):
        (tmp_path / f".model.{dead}.old").mkdir()
        (tmp_path / f".model.{dead}.old" / "whole").write_text("")
        with pytest.raises(ValueError, match="no luck"), fresh_folder(tmp_path / "model"):
            raise ValueError("no luck")
        assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"]


class TestLog:
    @pytest.mark.parametrize("half", ['{"kind": "ha', '{"kind": "old"}\n{"kind": "ha', ""])
    def test_records_are_whole_lines_also_after_half_a_one(self, tmp_path: Path, half: str):
        (tmp_path / "run.jsonl").write_text(half)
        log = Log(tmp_path, screen=io.StringIO())
        log.record("step", number=1, text="한\u2028국")
        log.warn("careful")
        *old, step, warning = read_records(tmp_path / "run.jsonl")
        assert [record["kind"] for record in old] == ["old"] * half.count("old")
        assert step["text"] == "한\u2028국"
        assert warning["kind"] == "warning"

    def test_reading_passes_over_half_a_line_and_refuses_a_broken_one(self, tmp_path: Path):
        (tmp_path / "run.jsonl").write_text('{"kind": "a"}\n{"kin')
        assert read_records(tmp_path / "run.jsonl") == [{"kind": "a"}]
        (tmp_path / "run.jsonl").write_text('{"kind": "a"}\n{"kin\n')
        with pytest.raises(FileError, match=r"run.jsonl:2: not a JSON line"):
            read_records(tmp_path / "run.jsonl")
        assert read_records(tmp_path / "none") == []

    def test_progress_shows_rate_eta_and_memory(self):
        progress = Progress(Log(quiet=True), 10, "steps", "pretrain")
        progress.advance(5)
        assert re.search(r"pretrain  5/10 steps  .* steps/s  ETA \d+:\d\d  [\d,]+ MiB", progress.line({}))

    def test_time_left_is_what_is_allowed_if_that_is_less(self):
        progress = Progress(Log(quiet=True), 1e9, "steps", "pretrain", at_most=90)
        progress.advance(1)
        assert "ETA 1:30" in progress.line({})

    @pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3723, "1:02:03")])
    def test_clock(self, seconds, text):
        assert clock(seconds) == text
