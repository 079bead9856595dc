"""Fine-tuning an encoder to label texts or pairs, with one seed or several (Devlin et al., 2019, 4.1, appendix A.3).

The paper's settings are the defaults (`search=[5e-5, 3e-5, 2e-5]` tries its three learning rates). What differs: AdamW
corrects its bias (without, small data sets often end in one label for everything), the last, smaller batch of an epoch
is used, texts of similar length share a batch and nothing is padded, and the epoch with the best dev score is kept
(`keep=last`: the last one). A run folder holds

    plan.json  scores.json  model/  seed-0/scores.json  seed-1/scores.json ...   (in lr-5e-05/ ... under `search`)

A seed is finished when its scores.json is there; `resume` repeats only those that are not.
"""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertsmith.base.config import to_mapping
from bertsmith.base.files import (
    as_written,
    check_own_folder,
    check_writable_folder,
    explained,
    folder_lock,
    fresh_folder,
    read_text,
    sha256_of,
    write_file,
)
from bertsmith.base.log import Log, Progress
from bertsmith.base.seeds import number
from bertsmith.checkpoints.folder import LoadedModel, load_model, read_provenance, save_model
from bertsmith.errors import ConfigError, Interrupted, NonFiniteLoss, StateError
from bertsmith.nn.attention import choose_kernel
from bertsmith.nn.device import Precision, choose_device, choose_precision
from bertsmith.nn.heads import LabelHead
from bertsmith.nn.layers import initialise
from bertsmith.tasks.label import LabelBatch, LabelModel, collate
from bertsmith.tasks.metrics.labels import METRICS, LabelScores, label_scores
from bertsmith.tasks.metrics.seeds import seeds_summary
from bertsmith.tasks.predict import encode, predict_encoded
from bertsmith.tasks.readers.splits import LabelData, Source, read_splits
from bertsmith.tasks.readers.table import Columns
from bertsmith.tasks.task import Task
from bertsmith.text.tokenizer import Encoding
from bertsmith.train.batches import by_length
from bertsmith.train.loop import Step, training_steps
from bertsmith.train.optimizers import build_optimizer
from bertsmith.train.process import fixed_torch
from bertsmith.train.schedules import linear

CHOOSE = "remove it and its seed, or choose another folder"


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune; the same fields for `--set name=value`."""

    epochs: int = 3
    batch: int = 32  # texts or pairs a step
    learning_rate: float = 2e-5
    search: tuple[float, ...] = ()  # learning rates to try instead; the one with the best mean dev score is taken
    warmup: float = 0.1  # share of the steps
    optimizer: Literal["adamw", "adamw2018", "muon"] = "adamw"
    weight_decay: float = 0.01  # none on biases and LayerNorm
    clip: float | None = 1.0  # largest gradient norm
    dropout: float | None = 0.1  # everywhere, attention included; None: as the model folder says
    max_length: int = 128  # tokens; longer texts are cut
    seeds: tuple[int, ...] = (0,)
    metric: Literal["accuracy", "macro_f1", "matthews"] = "accuracy"  # compares epochs, rates and seeds on dev
    keep: Literal["best", "last"] = "best"  # epoch; "best" looks at dev, so its dev score flatters a little
    dev_share: float = 0.1  # of train, split off by label, where no dev table is given; 0: none
    init: Literal["pretrained", "random"] = "pretrained"  # random: the same shape, fresh weights, for comparison
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        wrong = [
            (self.epochs < 1, f"epochs {self.epochs}: at least 1"),
            (self.batch < 1, f"batch {self.batch}: at least 1"),
            (
                not all(rate > 0 for rate in (self.learning_rate, *self.search)),
                "learning_rate, search: numbers above 0",
            ),
            (not 0 <= self.warmup < 1, f"warmup {self.warmup}: a share of the steps, from 0 to below 1,"),
            (self.dropout is not None and not 0 <= self.dropout < 1, f"dropout {self.dropout}: from 0 to below 1"),
            (self.clip is not None and self.clip <= 0, f"clip {self.clip}: a number above 0, or none,"),
            (self.weight_decay < 0, f"weight_decay {self.weight_decay}: 0 or more"),
            (self.max_length < 3, f"max_length {self.max_length}: at least 3 ([CLS], a piece, [SEP])"),
            (not self.seeds, "seeds: at least one"),
            (len(set(self.seeds)) < len(self.seeds), f"seeds {list(self.seeds)}: each once"),
            (len(set(self.search)) < len(self.search), f"search {list(self.search)}: each rate once"),
            (not 0 <= self.dev_share < 1, f"dev_share {self.dev_share}: from 0 to below 1"),
        ]
        for is_wrong, text in wrong:
            if is_wrong:
                raise ConfigError(f"{text} was expected")


def finetune(
    settings: FinetuneSettings,
    *,
    model: str | Path,
    train: Source,
    dev: Source | None = None,
    test: Source | None = None,
    columns: Columns | None = None,
    out: str | Path,
    log: Log,
    resume: bool = False,
) -> dict[str, Any]:
    """Fine-tunes the encoder of folder `model` once a seed; returns the scores that stand in out/scores.json.

    Tables are paths or examples already read; columns left open are guessed from train's header and then hold for all
    three. The labels are train's; a label only dev or test has is a TaskError with both lists. The best seed on dev
    becomes out/model. Raises ConfigError if `out` already holds seeds and `resume` is not set, StateError if they were
    made with other settings or data, Interrupted (finished seeds stay) on Ctrl-C.
    """
    out = Path(out)
    _check_folder(out, resume)
    data = read_splits(train, dev, test, columns or Columns(), dev_share=settings.dev_share, log=log)
    if settings.search and not data.dev:
        raise ConfigError("search compares learning rates on dev: give a dev table, or a dev_share above 0")
    loaded = load_model(Path(model))
    if loaded.labels and settings.init == "pretrained":
        log.say(f"{model} already has a classifier ({len(loaded.labels)} labels); a fresh one takes its place")
    check_writable_folder(out)
    with folder_lock(out):
        job = _Job.prepare(settings, data, loaded, str(model), log)
        _check_plan(out, _plan(settings, data, Path(model)), settings.seeds)
        try:
            with fixed_torch(job.device, None):
                scores = _every_rate(job, out)
        except KeyboardInterrupt:
            done = sorted(path.parent.relative_to(out).as_posix() for path in out.glob("**/seed-*/scores.json"))
            raise Interrupted(
                f"{out}: stopped; finished and kept: {', '.join(done) or 'no seed yet'}; go on with --resume"
            ) from None
        write_file(out / "scores.json", json.dumps(scores, ensure_ascii=False, indent=1) + "\n")
    log.record(
        "finetuned", **{name: scores[name] for name in ("learning_rate", "best_seed", "mean", "spread", "collapsed")}
    )
    return scores


@dataclass(frozen=True)
class _Job:
    """What all seeds share."""

    settings: FinetuneSettings
    data: LabelData
    loaded: LoadedModel
    source: str
    device: torch.device
    precision: Precision
    max_length: int
    train: list[Encoding]
    classes: list[int]
    dev: list[Encoding]
    test: list[Encoding]
    log: Log

    @staticmethod
    def prepare(settings: FinetuneSettings, data: LabelData, loaded: LoadedModel, source: str, log: Log) -> "_Job":
        device = choose_device(settings.device)
        precision = choose_precision(settings.precision, device)
        log.say(f"device {device}, precision {precision.name} ({precision.reason})")
        max_length = min(settings.max_length, loaded.config.max_length)
        if max_length < settings.max_length:
            log.say(f"max_length {settings.max_length} is lowered to {max_length}, the most that {source} takes")
        dropout = loaded.config.attention_dropout if settings.dropout is None else settings.dropout
        kernel = choose_kernel(device, half=precision.name == "bf16", longest=max_length, dropout=dropout)
        log.say(f"attention {kernel.name} ({kernel.reason})")
        parts = [
            encode(
                loaded.tokenizer,
                [example.item for example in part],
                max_length=max_length,
                log=log,
                what=f"{name} texts",
            )
            for name, part in (("train", data.train), ("dev", data.dev), ("test", data.test))
        ]
        number_of = {label: index for index, label in enumerate(data.labels)}
        classes = [number_of[str(example.label)] for example in data.train]
        return _Job(
            settings, data, loaded, source, device, precision, max_length, parts[0], classes, parts[1], parts[2], log
        )

    def score(self, model: LabelModel, name: Literal["dev", "test"]) -> LabelScores | None:
        encodings, examples = (self.dev, self.data.dev) if name == "dev" else (self.test, self.data.test)
        if not examples:
            return None
        predictions = predict_encoded(model, encodings, self.data.labels, precision=self.precision)
        truth = [str(example.label) for example in examples]
        return label_scores(truth, [prediction.label for prediction in predictions], self.data.labels)


def _every_rate(job: _Job, out: Path) -> dict[str, Any]:
    settings = job.settings
    if not settings.search:
        return _every_seed(job, out, settings.learning_rate)
    by_rate = {rate: _every_seed(job, out / f"lr-{rate:g}", rate) for rate in settings.search}
    means = {rate: scores["mean"]["dev"][settings.metric] for rate, scores in by_rate.items()}
    best = max(means, key=lambda rate: means[rate])
    with fresh_folder(out / "model") as folder:
        for file in sorted((out / f"lr-{best:g}" / "model").iterdir()):
            (folder / file.name).write_bytes(file.read_bytes())
    return {**by_rate[best], "search": {f"{rate:g}": mean for rate, mean in means.items()}}


def _every_seed(job: _Job, out: Path, rate: float) -> dict[str, Any]:
    paths = {seed: out / f"seed-{seed}" / "scores.json" for seed in job.settings.seeds}
    finished = {seed: _read_scores(path, job.data) for seed, path in paths.items() if path.exists()}
    for seed, path in paths.items():
        if seed in finished:
            job.log.say(f"seed {seed} at learning rate {rate:g} is finished already: {path}")
            continue
        model, finished[seed] = _one_seed(job, rate, seed)
        if _best_seed(job.settings, finished) == seed:
            _save(job, out / "model", model, finished[seed])
        # Written after the model, since it says that the seed is finished.
        with explained(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(finished[seed], ensure_ascii=False, indent=1) + "\n")
    best = _best_seed(job.settings, finished)
    if _saved_seed(out / "model") != best:  # ended between a model and its scores, and gone on without that seed
        job.log.say(f"{out / 'model'} is not that of the best seed, {best}, which is trained once more")
        _save(job, out / "model", _one_seed(job, rate, best)[0], finished[best])
    return {
        **seeds_summary([finished[seed] for seed in paths], job.data),
        "metric": job.settings.metric,
        "init": job.settings.init,
        "learning_rate": rate,
        "best_seed": best,
    }


def _best_seed(settings: FinetuneSettings, finished: Mapping[int, Mapping[str, Any]]) -> int:
    """The best on dev, never on test; the first of equals, so the first where there is no dev."""
    seeds = [seed for seed in settings.seeds if seed in finished]
    return max(seeds, key=lambda seed: finished[seed]["dev"][settings.metric] if finished[seed]["dev"] else 0.0)


def _saved_seed(model: Path) -> int | None:
    """The seed whose weights lie there, if any do."""
    history = read_provenance(model).get("finetune") if model.is_dir() else None
    return history.get("seed") if isinstance(history, dict) else None


@dataclass
class _Kept:
    """The epoch whose weights a seed ends with."""

    epoch: int = 0
    dev: LabelScores | None = None
    weights: dict[str, Tensor] | None = None  # None: those the model has after its last epoch

    def better(self, dev: LabelScores | None, settings: FinetuneSettings) -> bool:
        if dev is None or self.dev is None or settings.keep == "last":
            return True
        return getattr(dev, settings.metric) > getattr(self.dev, settings.metric)


def _one_seed(job: _Job, rate: float, seed: int) -> tuple[LabelModel, dict[str, Any]]:
    settings, began = job.settings, time.monotonic()
    model, kept, epochs = _fresh_model(job, seed), _Kept(), []
    per_epoch = math.ceil(len(job.train) / settings.batch)
    total = 0.0
    for step in _steps(job, model, rate, seed, per_epoch * settings.epochs):
        total += step.losses["label"]
        if step.number % per_epoch == 0:
            epoch, dev = step.number // per_epoch, job.score(model, "dev")
            scores = {} if dev is None else {f"dev_{name}": getattr(dev, name) for name in METRICS}
            epochs.append({"epoch": epoch, "loss": total / per_epoch, **scores})
            job.log.record("epoch", seed=seed, learning_rate=rate, **epochs[-1])
            total = 0.0
            if kept.better(dev, settings):
                copied = settings.keep == "best" and dev is not None and epoch < settings.epochs
                kept = _Kept(epoch, dev, _copy(model) if copied else None)
    if kept.weights is not None:
        model.load_state_dict(kept.weights)
    test = job.score(model, "test")
    seen = kept.dev or test
    return model, {
        "seed": seed,
        "learning_rate": rate,
        "epoch": kept.epoch,
        "collapsed": seen is not None and seen.collapsed,
        "dev": None if kept.dev is None else kept.dev.to_mapping(),
        "test": None if test is None else test.to_mapping(),
        "epochs": epochs,
        "seconds": round(time.monotonic() - began, 1),
    }


def _steps(job: _Job, model: LabelModel, rate: float, seed: int, steps: int) -> Iterator[Step]:
    settings = job.settings
    lr_at = linear(rate, round(settings.warmup * steps), steps)
    optimizer = build_optimizer(model, name=settings.optimizer, learning_rate=rate, weight_decay=settings.weight_decay)
    label = f"seed {seed}, learning rate {rate:g}"
    try:
        with Progress(job.log, steps, "steps", label) as progress:
            for step in training_steps(
                model, _batches(job, seed), optimizer, lr_at, first=1, last=steps,
                clip=settings.clip, precision=job.precision, device=job.device, seed=seed,
            ):  # fmt: skip
                loss = step.losses["label"]
                job.log.record("step", seed=seed, step=step.number, loss=loss, lr=step.lr, grad_norm=step.grad_norm)
                progress.advance(1, loss=f"{loss:.3f}")
                yield step
    except NonFiniteLoss as error:
        raise NonFiniteLoss(f"{label}: {error}") from error


def _fresh_model(job: _Job, seed: int) -> LabelModel:
    """The encoder's weights with a head drawn from `seed`; with init=random, the encoder is drawn from it too."""
    settings, trained = job.settings, job.loaded.encoder
    config = job.loaded.config
    if settings.dropout is not None:
        config = dataclasses.replace(config, dropout=settings.dropout, attention_dropout=settings.dropout)
    encoder = type(trained)(config, pooler=trained.pooler is not None)
    if settings.init == "pretrained":
        encoder.load_state_dict(trained.state_dict())
    else:
        initialise(encoder, number(seed, "encoder"))
    encoder.add_pooler(number(seed, "pooler"))  # a masked LM trained alone has none
    head = LabelHead(config.width, len(job.data.labels), config.dropout)
    initialise(head, number(seed, "head"))
    return LabelModel(encoder, head).to(job.device)


def _batches(job: _Job, seed: int) -> Iterator[LabelBatch]:
    lengths = [len(encoding.ids) for encoding in job.train]
    for epoch in range(job.settings.epochs):
        for indices in by_length(lengths, job.settings.batch, seed, epoch):
            indices.sort(key=lambda index: -lengths[index])  # attention wants the longest first
            yield collate(
                [job.train[index] for index in indices], [job.classes[index] for index in indices], job.device
            )


def _copy(model: LabelModel) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def _save(job: _Job, folder: Path, model: LabelModel, scores: Mapping[str, Any]) -> None:
    found = job.data.columns
    task = Task(
        pairs=job.data.train[0].pair is not None,
        text=found.text, pair=found.pair, label=found.label, header=found.header is not False, format=found.format,
        labels=tuple(job.data.labels), max_length=job.max_length,
    )  # fmt: skip
    provenance = {
        "task": task.to_mapping(),
        "finetune": {
            "settings": to_mapping(job.settings),
            "seed": scores["seed"],
            "learning_rate": scores["learning_rate"],
            "epoch": scores["epoch"],
            "scores": {
                name: {metric: scores[name][metric] for metric in METRICS} for name in ("dev", "test") if scores[name]
            },
            "data": job.data.fingerprints,
        },
        "base": {"folder": job.source, "init": job.settings.init, "provenance": job.loaded.provenance},
    }
    save_model(
        folder, encoder=model.encoder, label=model.head, labels=list(job.data.labels),
        tokenizer=job.loaded.tokenizer, provenance=provenance,
    )  # fmt: skip


def _plan(settings: FinetuneSettings, data: LabelData, model: Path) -> dict[str, Any]:
    kept = {name: value for name, value in to_mapping(settings).items() if name not in ("seeds", "device")}
    return {"settings": kept, "data": data.fingerprints, "model": _files_of(model)}


def _files_of(model: Path) -> dict[str, str]:
    """Fingerprints of the files that make a model folder's weights, shape and tokenizer."""
    names = [path for path in sorted(model.iterdir()) if path.suffix in (".safetensors", ".bin", ".txt", ".json")]
    return {path.name: sha256_of(path) for path in names if path.name != "bertsmith.json"}


def _check_folder(out: Path, resume: bool) -> None:
    """Before anything is read or written: no run of another kind, and none of this kind without `resume`."""
    check_own_folder(out, "a fine-tuning", ("plan.json",))
    if _finished(out) and not resume:
        raise ConfigError(f"{out}: already holds a fine-tuning; go on with it (--resume) or choose another folder")


def _finished(out: Path) -> set[int]:
    return {int(scores.parent.name.removeprefix("seed-")) for scores in out.glob("**/seed-*/scores.json")}


def _check_plan(out: Path, plan: Mapping[str, Any], seeds: Sequence[int]) -> None:
    """Seeds of different settings or data never meet in one folder. More seeds may join later."""
    path = out / "plan.json"
    finished = _finished(out)
    if not path.exists() or not finished:
        write_file(path, json.dumps(plan, ensure_ascii=False, indent=1) + "\n")
        return
    with as_written(path, StateError, CHOOSE):
        old = json.loads(read_text(path))
        names = [(part, name) for part in plan for name in sorted({*plan[part], *old.get(part, {})})]
        for part, name in names:
            before, now = old.get(part, {}).get(name), plan[part].get(name)
            if before != now:
                raise StateError(
                    f"{out}: cannot go on: {part} {name} was {before!r}, now it is {now!r}. "
                    "Use the same, or choose another folder"
                )
    strange = sorted(finished - set(seeds))
    if strange:
        raise StateError(f"{out}: holds seed {strange[0]} already; name it among the seeds, or choose another folder")


def _read_scores(path: Path, data: LabelData) -> dict[str, Any]:
    """A finished seed's scores; StateError unless everything is there that a summary needs."""
    with as_written(path, StateError, CHOOSE):
        found: dict[str, Any] = json.loads(read_text(path))
        numbers = [found["seed"], found["learning_rate"], found["epoch"], found["seconds"]]
        for part, examples in (("dev", data.dev), ("test", data.test)):
            numbers += [found[part][metric] for metric in METRICS] if examples else []
        if not all(isinstance(number, int | float) for number in numbers) or not isinstance(found["collapsed"], bool):
            raise TypeError("a score is no number")
    return found
