"""A pre-training that was killed, interrupted or broken ends with the same bits as one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from main_road import Ran, typed
from test_faults import interrupts

from bertsmith.models.bert import Bert

ROOT = Path(__file__).parents[2]
# About 90 instances an epoch: step 5 is in the middle of the first, step 20 in the second.
COMMON = {"train.steps": 24, "train.batch": 8, "train.micro_batch": 4, "train.warmup": 2, "train.save_every": 5,
          "train.log_every": 1, "train.precision": "bf16", "train.threads": 2, "data.length": 32,
          "model.dropout": 0.1, "model.attention_dropout": 0.1}  # fmt: skip
KINDS = {
    "adamw": {},
    "muon": {"train.optimizer": "muon", "train.schedule": "wsd", "model.pre_norm": True, "data.whole_word": True},
}


def words(road, run: Path, kind: str, *more: object) -> list[object]:
    settings = COMMON | KINDS[kind]
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={str(value).lower()}")]
    return ["pretrain", "tiny", "--data", road.corpus, "--heldout", road.corpus, "--out", run, *changes, *more]


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def losses(run: Path) -> dict[int, list[float]]:
    """The last that was said of each step."""
    lines = map(json.loads, (run / "run.jsonl").read_text().splitlines())
    steps = [line for line in lines if line["kind"] == "step"]
    return {line["step"]: [line["mlm_loss"], line["nsp_loss"], line["grad_norm"]] for line in steps}


def states(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "state").glob("step-*"))


@pytest.fixture(scope="module")
def undisturbed(road, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("undisturbed")
    for kind in KINDS:
        ran = typed(*words(road, home / kind, kind))
        assert ran.code == 0, ran.err
    return {kind: home / kind for kind in KINDS}


def resumed(road, run: Path, kind: str) -> Ran:
    ran = typed(*words(road, run, kind, "--resume"))
    assert ran.code == 0, ran.err
    return ran


# Run in a process of its own: kills itself at the call number CALL of the function NAME of the module MODULE.
KILLED = """
import importlib, os, signal, sys
sys.path[:0] = {path!r}
from bertsmith.cli.app import main
home = importlib.import_module({module!r})
home = getattr(home, {holder!r}) if {holder!r} else home
real, calls = getattr(home, {name!r}), 0
def deadly(*arguments, **named):
    global calls
    calls += 1
    if calls == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
setattr(home, {name!r}, deadly)
sys.exit(main({words!r}))
"""
INSTANTS = {
    "before any state": ("bertsmith.models.bert", "Bert", "forward", 6, []),
    "between two micro-batches": ("bertsmith.train.loop", "", "autocast", 2 * 12 + 2, [5, 10]),
    "while a state is written": ("bertsmith.train.state", "", "_write", 2 * 2, [5]),
    "before the model is written": ("bertsmith.train.pretrain", "", "save_model", 1, [20, 24]),
}


@pytest.mark.parametrize(
    ("instant", "kind"), [*((instant, "adamw") for instant in INSTANTS), ("between two micro-batches", "muon")]
)
def test_killed_and_resumed_is_bit_equal(road, undisturbed, tmp_path, instant, kind):
    module, holder, name, call, left = INSTANTS[instant]
    run = tmp_path / "run"
    code = KILLED.format(
        path=[str(ROOT)], module=module, holder=holder, name=name, call=call,
        words=[str(word) for word in words(road, run, kind)],
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (run / "model").exists()
    assert states(run) == left
    ran = resumed(road, run, kind)
    assert ("resuming after step" in ran.err) == bool(left)
    assert ("starting from zero" in ran.err) == (not left)
    assert "not bit-equal" not in ran.err
    assert weights(run) == weights(undisturbed[kind])
    assert losses(run) == losses(undisturbed[kind])
    assert not [path for path in run.rglob("*") if path.name.endswith((".aside", ".old"))]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_state_and_says_how_to_go_on(road, undisturbed, tmp_path, monkeypatch, sent):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(signal, "SIGINT", sent)  # what `interrupts` sends
        patch.setattr(Bert, "forward", interrupts(Bert.forward, 33))
        ran = typed(*words(road, run, "adamw"))
    assert ran.code == 130
    assert f"{sent.name} after step" in ran.err
    assert "--resume" in ran.err
    [*_, last] = states(run)
    assert last % 5, "it was not waited for the next regular state"
    resumed(road, run, "adamw")
    assert weights(run) == weights(undisturbed["adamw"])


def test_a_loss_that_is_no_number_stops_before_harm_and_the_last_good_state_goes_on(
    road, undisturbed, tmp_path, monkeypatch
):
    run, real, trained = tmp_path / "run", Bert.forward, 0

    def breaks(self, *arguments, **named):
        nonlocal trained
        trained += self.training
        return real(self, *arguments, **named) * (float("nan") if trained == 2 * 12 + 1 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Bert, "forward", breaks)
        ran = typed(*words(road, run, "adamw"))
    assert ran.code == 1
    assert "step 13: mlm is nan" in ran.err
    assert f"last good state: {run / 'state' / 'step-000000010'} (--resume" in ran.err
    assert "lower" in ran.err  # the hint
    assert not (run / "model").exists()
    resumed(road, run, "adamw")
    assert weights(run) == weights(undisturbed["adamw"])


@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing", "edited"])
def test_a_damaged_state_is_passed_over_for_the_one_before(road, undisturbed, tmp_path, harm):
    run = tmp_path / "run"
    shutil.copytree(undisturbed["adamw"], run)
    shutil.rmtree(run / "model")
    newest = run / "state" / "step-000000024"
    victim = newest / ("state.json" if harm == "edited" else "optimizer.safetensors")
    data = victim.read_bytes()
    if harm == "missing":
        victim.unlink()
    else:
        harmed = {"truncated": data[:-9], "flipped": data[:-1] + bytes([data[-1] ^ 1]),
                  "edited": data.replace(b'"step": 24', b'"step": 23')}  # fmt: skip
        victim.write_bytes(harmed[harm])
    ran = resumed(road, run, "adamw")
    assert "looking for a state before it" in ran.err
    assert "resuming after step 20" in ran.err
    assert weights(run) == weights(undisturbed["adamw"])


def test_where_every_state_is_damaged_nothing_is_begun_again(road, undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed["adamw"], run)
    for path in (run / "state").glob("*/state.json"):
        path.write_text("{")
    before = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
    ran = typed(*words(road, run, "adamw", "--resume"))
    assert ran.code == 1
    assert "none of its 2 states can be read" in ran.err
    assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == before


def test_another_run_is_not_gone_on_with(road, undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed["adamw"], run)
    for change, said in (
        ("train.batch=16", "train.batch was 8"),
        ("train.seed=1", "train.seed was 0"),
        ("data.mask_rate=0.2", "data.mask_rate was 0.15"),
        ("model.dropout=0.2", "model.dropout was 0.1"),
    ):
        ran = typed(*words(road, run, "adamw", "--resume", "--set", change))
        assert (ran.code, said in ran.err) == (1, True), ran.err
    typed("prepare", road.table, "--tokenizer", road.vocabulary, "--format", "lines", "--out", tmp_path / "other")
    other = [tmp_path / "other" if word is road.corpus else word for word in words(road, run, "adamw", "--resume")]
    ran = typed(*other)
    assert ran.code == 1
    assert weights(run) == weights(undisturbed["adamw"])


def test_a_difference_that_ends_bit_equality_is_announced(road, undisturbed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed["adamw"], run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "state" / "step-000000024")
    ran = typed(*words(road, run, "adamw", "--resume", "--set", "train.threads=1", "--set", "train.learning_rate=1e-4"))
    assert ran.code == 0
    assert "not bit-equal" in ran.err
    assert "threads was 2, is 1" in ran.err
    assert "train.learning_rate was 0.001, is 0.0001" in ran.err


def test_a_time_limit_ends_the_run_with_a_model(road, tmp_path):
    ran = typed(*words(road, tmp_path / "run", "adamw", "--set", "train.minutes=1e-6"))
    assert ran.code == 0, ran.err
    assert states(tmp_path / "run") == [1]
    [last] = losses(tmp_path / "run")
    assert last == 1
    assert os.path.getsize(tmp_path / "run" / "model" / "model.safetensors")


def test_the_undisturbed_run_learned_and_says_how_well(undisturbed):
    for run in undisturbed.values():
        lines = [json.loads(line) for line in (run / "run.jsonl").read_text().splitlines()]
        held = [line for line in lines if line["kind"] == "heldout"]
        assert held[-1]["step"] == 24
        assert held[-1]["mlm_loss"] < max(line["mlm_loss"] for line in lines if line["kind"] == "step")
        steps = [line for line in lines if line["kind"] == "step"]
        assert [line["step"] for line in steps] == list(range(1, 25))
        assert all(line["tokens_per_second"] > 0 for line in steps)
        assert {"mlm_accuracy", "nsp_accuracy", "lr", "seconds", "memory_mib"} <= steps[0].keys()
