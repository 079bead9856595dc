"""Fine-tuning end to end on a task of a few words: it learns, restarts, flags, and maps labels by name."""

import io
import json
import random

import pytest
import torch

from bertsmith.base.config import to_mapping, with_settings
from bertsmith.base.log import Log
from bertsmith.checkpoints.folder import load_model, read_provenance, save_model
from bertsmith.errors import ConfigError, Interrupted, NonFiniteLoss, StateError, TaskError
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn.heads import LabelHead
from bertsmith.nn.layers import initialise
from bertsmith.tasks.metrics.seeds import show_finetuned
from bertsmith.tasks.readers.splits import split_by_label
from bertsmith.tasks.readers.table import Columns, Example, columns
from bertsmith.text.normalize import Normalizer
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import Vocabulary
from bertsmith.train import finetune as finetune_module
from bertsmith.train.evaluate import evaluate, load_label_model, predict_file, write_predictions
from bertsmith.train.finetune import FinetuneSettings, finetune

GOOD, BAD = ["좋다", "great", "재미", "fun"], ["나쁘다", "awful", "지루", "dull"]
OTHER = ["영화", "the", "film", "was", "정말", "a", "b"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHER]
FAST = FinetuneSettings(
    epochs=6, batch=16, learning_rate=1e-2, dropout=0.0, max_length=16, precision="fp32", device="cpu"
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Steps this small spend their time waiting for the other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "model"
    encoder = Bert(BertConfig(vocab_size=len(PIECES), width=16, depth=1, heads=2, ffn_width=32, max_length=32))
    initialise(encoder, 0, std=0.2)
    save_model(
        folder, encoder=encoder, tokenizer=Tokenizer(Vocabulary(PIECES), Normalizer("unicode-safe")), provenance={}
    )
    return folder


def rows(many, seed, labels=("부정", "긍정")):
    rng = random.Random(seed)
    found = []
    for _ in range(many):
        good = rng.random() < 0.5
        words = [rng.choice(GOOD if good else BAD), *rng.choices(OTHER, k=rng.randrange(0, 8))]
        rng.shuffle(words)
        found.append((" ".join(words), labels[good]))
    return found


def table(path, found, header=True):
    lines = [*(["text\tlabel"] if header else []), *("\t".join(row) for row in found)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    train, dev, test = (
        table(tmp_path / f"{name}.tsv", rows(many, many)) for name, many in (("train", 160), ("dev", 60), ("test", 61))
    )
    return {"train": train, "dev": dev, "test": test}


def quiet(**settings):
    return Log(screen=io.StringIO(), **settings)


def test_it_learns_and_the_folder_answers(model, files, tmp_path):
    log = quiet(run=tmp_path / "run")
    scores = finetune(FAST, model=model, **files, out=tmp_path / "run", log=log)
    assert scores["mean"]["dev"]["accuracy"] > 0.95
    assert scores["mean"]["test"]["accuracy"] > 0.95
    assert scores["spread"]["dev"]["accuracy"] is None
    assert scores["labels"] == ["긍정", "부정"]
    assert scores["collapsed"] == []
    assert "text from column 'text', label from column 'label'" in log.screen.getvalue()
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == scores
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "run" / "run.jsonl").read_text().splitlines()}
    assert {"step", "epoch", "finetuned"} <= kinds
    found = evaluate(tmp_path / "run" / "model", files["test"], log=quiet(), scores=tmp_path / "s.json")
    assert found.accuracy == scores["seeds"][0]["test"]["accuracy"]
    assert json.loads((tmp_path / "s.json").read_text())["accuracy"] == found.accuracy
    ready = load_label_model(tmp_path / "run" / "model")
    assert [p.label for p in ready.predict(["정말 좋다", "the film was awful"])] == ["긍정", "부정"]
    assert load_model(tmp_path / "run" / "model").provenance["task"]["labels"] == ["긍정", "부정"]


def test_labels_go_by_name_whatever_their_order(model, files, tmp_path):
    finetune(FAST, model=model, **files, out=tmp_path / "run", log=quiet())
    found = sorted(rows(60, 60), key=lambda row: row[1], reverse=True)
    turned = evaluate(tmp_path / "run" / "model", table(tmp_path / "t.tsv", found), log=quiet())
    straight = evaluate(tmp_path / "run" / "model", files["dev"], log=quiet())
    assert turned.confusion == straight.confusion
    # One label only: the other still has its own number.
    few = evaluate(
        tmp_path / "run" / "model", table(tmp_path / "f.tsv", [r for r in found if r[1] == "부정"]), log=quiet()
    )
    assert few.accuracy > 0.9
    strange = table(tmp_path / "s.tsv", rows(5, 5, ("neg", "pos")))
    with pytest.raises(
        TaskError, match=r"s\.tsv:2: the label .* is none of the labels of (.|\n)*known: '긍정', '부정'\n.*'neg', 'pos'"
    ):
        evaluate(tmp_path / "run" / "model", strange, log=quiet())


def test_seeds_give_mean_and_spread_and_the_best_becomes_the_model(model, files, tmp_path):
    settings = with_settings(FAST, ["seeds=[3, 1, 2]", "epochs=1", "learning_rate=1e-3"])
    scores = finetune(settings, model=model, **files, out=tmp_path / "run", log=quiet())
    values = [seed["dev"]["accuracy"] for seed in scores["seeds"]]
    assert scores["mean"]["dev"]["accuracy"] == pytest.approx(sum(values) / 3)
    assert scores["spread"]["dev"]["accuracy"] == pytest.approx(
        (sum((v - sum(values) / 3) ** 2 for v in values) / 2) ** 0.5
    )
    assert scores["best_seed"] == scores["seeds"][values.index(max(values))]["seed"]
    provenance = load_model(tmp_path / "run" / "model").provenance
    assert provenance["finetune"]["seed"] == scores["best_seed"]
    assert evaluate(tmp_path / "run" / "model", files["dev"], log=quiet()).accuracy == max(values)


def test_the_same_seed_gives_the_same_scores_and_weights(model, files, tmp_path):
    settings = with_settings(FAST, ["epochs=2", "dropout=0.1"])
    one, two = (finetune(settings, model=model, **files, out=tmp_path / name, log=quiet()) for name in ("one", "two"))
    for seed in (one["seeds"][0], two["seeds"][0]):
        seed.pop("seconds")
    assert one == two
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]


def test_a_seed_that_says_one_label_is_flagged(model, files, tmp_path):
    settings = with_settings(FAST, ["learning_rate=1e-9", "epochs=1", "seeds=[0, 1]"])
    log = quiet()
    scores = finetune(settings, model=model, **files, out=tmp_path / "run", log=log)
    flagged = [
        seed["seed"]
        for seed in scores["seeds"]
        if len({p for p in zip(*seed["dev"]["confusion"], strict=True) if any(p)}) == 1
    ]
    assert scores["collapsed"] == flagged
    same = [Example("the film", None, label, f"x:{index}") for index, label in enumerate("ababa")]
    scores = finetune(FAST, model=model, train=same, dev=same, out=tmp_path / "same", log=log)
    assert scores["collapsed"] == [0]
    assert "1 of 1 seeds say one label for everything" in show_finetuned(scores)


def test_resume_skips_finished_seeds_and_adds_new_ones(model, files, tmp_path, monkeypatch):
    out, settings = tmp_path / "run", with_settings(FAST, ["seeds=[0, 1]", "epochs=1"])
    real, trained = finetune_module._one_seed, []

    def until_seed_one(job, rate, seed):
        if seed == 1:
            raise KeyboardInterrupt
        return real(job, rate, seed)

    monkeypatch.setattr(finetune_module, "_one_seed", until_seed_one)
    with pytest.raises(Interrupted, match="kept: seed-0"):
        finetune(settings, model=model, **files, out=out, log=quiet())
    before = (out / "seed-0" / "scores.json").read_text()
    with pytest.raises(ConfigError, match="--resume"):
        finetune(settings, model=model, **files, out=out, log=quiet())

    def counted(job, rate, seed):
        trained.append(seed)
        return real(job, rate, seed)

    monkeypatch.setattr(finetune_module, "_one_seed", counted)
    scores = finetune(settings, model=model, **files, out=out, log=quiet(), resume=True)
    assert trained == [1]
    assert (out / "seed-0" / "scores.json").read_text() == before
    assert [seed["seed"] for seed in scores["seeds"]] == [0, 1]
    finetune(with_settings(settings, ["seeds=[0, 1, 2]"]), model=model, **files, out=out, log=quiet(), resume=True)
    assert trained == [1, 2]
    with pytest.raises(StateError, match=r"settings epochs was 1, now it is 2"):
        finetune(with_settings(settings, ["epochs=2"]), model=model, **files, out=out, log=quiet(), resume=True)
    with pytest.raises(StateError, match="holds seed 2 already"):
        finetune(settings, model=model, **files, out=out, log=quiet(), resume=True)
    table(files["train"], rows(100, 5))
    with pytest.raises(StateError, match="data train was"):
        finetune(settings, model=model, **files, out=out, log=quiet(), resume=True)


def test_a_model_whose_seed_was_given_up_is_not_taken_for_the_best(model, files, tmp_path, monkeypatch):
    """Killed between the model folder and the scores of seed 1, then gone on without seed 1."""
    settings = with_settings(FAST, ["seeds=[0, 1]", "epochs=1"])
    whole = finetune(with_settings(settings, ["seeds=[0]"]), model=model, **files, out=tmp_path / "whole", log=quiet())

    def killed(path, text, real=finetune_module.write_file):
        if path.parent.name == "seed-1":
            raise KeyboardInterrupt
        real(path, text)

    out = tmp_path / "run"
    monkeypatch.setattr(finetune_module, "write_file", killed)
    monkeypatch.setattr(finetune_module, "_best_seed", lambda settings, finished: max(finished))
    with pytest.raises(Interrupted):
        finetune(settings, model=model, **files, out=out, log=quiet())
    monkeypatch.undo()
    assert read_provenance(out / "model")["finetune"]["seed"] == 1
    scores = finetune(with_settings(settings, ["seeds=[0]"]), model=model, **files, out=out, log=quiet(), resume=True)
    assert scores["mean"] == whole["mean"]
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (out, tmp_path / "whole")]
    assert weights[0] == weights[1]


def test_resuming_where_nothing_is_begins(model, files, tmp_path):
    scores = finetune(
        with_settings(FAST, ["epochs=1"]), model=model, **files, out=tmp_path / "run", log=quiet(), resume=True
    )
    assert len(scores["seeds"]) == 1


def test_learning_rates_are_searched_on_dev(model, files, tmp_path):
    settings = with_settings(FAST, ["search=[1e-9, 1e-2]"])
    scores = finetune(settings, model=model, **files, out=tmp_path / "run", log=quiet())
    assert scores["learning_rate"] == 1e-2
    assert scores["search"]["0.01"] > scores["search"]["1e-09"]
    assert load_model(tmp_path / "run" / "model").provenance["finetune"]["learning_rate"] == 1e-2
    with pytest.raises(ConfigError, match="search compares"):
        finetune(
            with_settings(settings, ["dev_share=0"]),
            model=model,
            train=files["train"],
            out=tmp_path / "no",
            log=quiet(),
        )


def test_without_dev_a_share_of_train_is_set_aside(model, files, tmp_path):
    scores = finetune(FAST, model=model, train=files["train"], out=tmp_path / "run", log=quiet())
    assert scores["rows"]["train"] + scores["rows"]["dev"] == 160
    assert scores["rows"]["dev"] == 16
    scores = finetune(
        with_settings(FAST, ["dev_share=0", "epochs=1"]),
        model=model,
        train=files["train"],
        out=tmp_path / "none",
        log=quiet(),
    )
    assert (scores["mean"], scores["rows"]["train"]) == ({}, 160)
    assert (tmp_path / "none" / "model" / "config.json").exists()


def test_the_split_keeps_labels_and_order():
    examples = [
        Example(str(index), None, "rare" if index == 7 else "ab"[index % 2], f"x:{index}") for index in range(40)
    ]
    rest, aside = split_by_label(examples, 0.25)
    assert sorted([*rest, *aside], key=lambda e: int(e.text)) == examples
    assert [e.text for e in rest] == sorted((e.text for e in rest), key=int)
    assert "rare" not in {e.label for e in aside}
    assert [e.label for e in aside].count("a") == [e.label for e in aside].count("b") == 5


def test_random_weights_have_the_same_shape(model, files, tmp_path):
    scores = finetune(
        with_settings(FAST, ["init=random", "epochs=1"]), model=model, **files, out=tmp_path / "run", log=quiet()
    )
    assert scores["init"] == "random"
    assert load_model(tmp_path / "run" / "model").config.width == 16


def test_pairs_from_jsonl(model, tmp_path):
    rng = random.Random(0)
    path = tmp_path / "pairs.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(120):
            left, right = rng.choice(["a", "b"]), rng.choice([*GOOD, *BAD])
            file.write(
                json.dumps({"sentence1": left, "sentence2": right, "label": right in GOOD}, ensure_ascii=False) + "\n"
            )
    scores = finetune(FAST, model=model, train=path, out=tmp_path / "run", log=quiet())
    assert scores["labels"] == ["false", "true"]
    assert scores["mean"]["dev"]["accuracy"] > 0.9
    one = tmp_path / "one.csv"
    one.write_text("text,label\na,true\n")
    with pytest.raises(TaskError, match="no column 'sentence1'"):
        evaluate(tmp_path / "run" / "model", one, log=quiet())
    with pytest.raises(TaskError, match="was fine-tuned on pairs, this table has single texts"):
        evaluate(tmp_path / "run" / "model", one, columns=columns(text="text", label="label"), log=quiet())


def test_a_table_without_header_stays_one(model, tmp_path):
    path = tmp_path / "cola.tsv"
    path.write_text("".join(f"x\t{label}\t\t{text}\n" for text, label in rows(160, 1)), encoding="utf-8")
    named = columns(text=4, label=2, header=False)
    finetune(FAST, model=model, train=path, columns=named, out=tmp_path / "run", log=quiet())
    assert evaluate(tmp_path / "run" / "model", path, log=quiet()).accuracy > 0.9
    assert evaluate(tmp_path / "run" / "model", path, columns=Columns(format="tsv"), log=quiet()).accuracy > 0.9
    lines = tmp_path / "lines.txt"
    lines.write_text("정말 좋다\n\n")
    assert [example.text for example, _ in predict_file(tmp_path / "run" / "model", lines, log=quiet())] == [
        "정말 좋다",
        "",
    ]


def test_a_long_text_is_cut_as_in_training(model, tmp_path):
    log = quiet()
    examples = [Example(f"{'the ' * 40}{word}", None, word, f"x:{word}") for word in ("great", "awful") * 4]
    settings = with_settings(FAST, ["max_length=64", "epochs=1", "dev_share=0"])
    finetune(settings, model=model, train=examples, out=tmp_path / "run", log=log)
    assert "max_length 64 is lowered to 32" in log.screen.getvalue()
    assert "8 of 8 train texts are longer than 32 tokens" in log.screen.getvalue()
    assert load_label_model(tmp_path / "run" / "model").task.max_length == 32


def test_predictions_to_file(model, files, tmp_path):
    finetune(with_settings(FAST, ["epochs=1"]), model=model, **files, out=tmp_path / "run", log=quiet())
    ready = load_label_model(tmp_path / "run" / "model")
    found = {}
    for suffix in ("csv", "tsv", "jsonl"):
        found[suffix] = predict_file(ready, files["test"], predictions=tmp_path / "p" / f"p.{suffix}", log=quiet())
    assert found["csv"] == found["tsv"] == found["jsonl"]
    lines = (tmp_path / "p" / "p.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 61
    example, prediction = found["csv"][0]
    assert json.loads(lines[0]) == {
        "text": example.text,
        "label": prediction.label,
        "probabilities": prediction.probabilities,
    }
    tsv = (tmp_path / "p" / "p.tsv").read_text(encoding="utf-8").splitlines()
    assert tsv[0] == "label\tp(긍정)\tp(부정)"
    assert tsv[1].split("\t")[0] == prediction.label
    assert (tmp_path / "p" / "p.csv").read_text(encoding="utf-8").splitlines()[0] == "text,label,p(긍정),p(부정)"
    with pytest.raises(TaskError, match=r"suffix \.txt"):
        write_predictions(tmp_path / "p.txt", [prediction])
    with pytest.raises(TaskError, match=r"suffix '\.xls' does not say"):
        predict_file(ready, files["test"], predictions=tmp_path / "p.xls", log=quiet())


def test_bad_data_is_refused_before_any_training(model, files, tmp_path):
    strange = table(tmp_path / "strange.tsv", [("the film", "mixed")])
    with pytest.raises(
        TaskError, match=r"strange\.tsv:2: the label 'mixed' is none of train's labels(.|\n)*'긍정', '부정'\n.*'mixed'"
    ):
        finetune(FAST, model=model, train=files["train"], dev=strange, out=tmp_path / "run", log=quiet())
    one = table(tmp_path / "one.tsv", [("the film", "x"), ("the cat", "x")])
    with pytest.raises(TaskError, match="every row has the label 'x'; at least two"):
        finetune(FAST, model=model, train=one, out=tmp_path / "run", log=quiet())
    mixed = [Example("a", None, "x", "m:1"), Example("a", "b", "y", "m:2")]
    with pytest.raises(TaskError, match="m:2: a pair, but m:1 is a single text"):
        finetune(FAST, model=model, train=mixed, out=tmp_path / "run", log=quiet())
    assert not (tmp_path / "run").exists()
    with pytest.raises(TaskError, match="has no classifier"):
        evaluate(model, files["dev"], log=quiet())


def test_a_loss_that_breaks_names_seed_and_step(model, files, tmp_path, monkeypatch):
    settings = with_settings(FAST, ["learning_rate=1e30", "clip=none"])
    with pytest.raises(NonFiniteLoss, match="seed 0, learning rate 1e\\+30: step"):
        finetune(settings, model=model, **files, out=tmp_path / "run", log=quiet())


def test_an_old_classifier_gives_way_to_a_fresh_one(model, files, tmp_path):
    loaded, head = load_model(model), LabelHead(16, 3, 0.1)
    save_model(
        tmp_path / "old",
        encoder=loaded.encoder,
        label=head,
        labels=["x", "y", "z"],
        tokenizer=loaded.tokenizer,
        provenance={},
    )
    log = quiet()
    scores = finetune(with_settings(FAST, ["epochs=1"]), model=tmp_path / "old", **files, out=tmp_path / "run", log=log)
    assert "already has a classifier (3 labels)" in log.screen.getvalue()
    assert scores["labels"] == ["긍정", "부정"]
    # A folder from elsewhere has labels but no columns: they are guessed.
    found = table(tmp_path / "xyz.tsv", [("the film", "z")])
    assert evaluate(tmp_path / "old", found, log=quiet()).rows == 1


@pytest.mark.parametrize(
    "change",
    [
        "epochs=0",
        "batch=0",
        "learning_rate=0",
        "warmup=1.0",
        "dropout=1.0",
        "seeds=[]",
        "seeds=[1,1]",
        "dev_share=1.0",
        "max_length=2",
    ],
)
def test_settings_that_make_no_sense(change):
    with pytest.raises(ConfigError, match=f"{change.partition('=')[0]}.*was expected"):
        with_settings(FAST, [change])


def test_the_papers_settings_are_the_defaults():
    known = to_mapping(FinetuneSettings())
    paper = {
        "epochs": 3,
        "batch": 32,
        "learning_rate": 2e-5,
        "warmup": 0.1,
        "dropout": 0.1,
        "weight_decay": 0.01,
        "optimizer": "adamw",
    }
    assert {name: known[name] for name in paper} == paper
    assert len(known) <= 30
