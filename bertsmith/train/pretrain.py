"""Pre-training: from a prepared corpus and a recipe to a model folder, through any interruption.

A run folder holds recipe.toml (the settings), run.jsonl (what happened), state/ (what it needs to go on) and, at the
end, model/. Given the same machine, threads and versions, a run that was killed and resumed ends with the same bits as
one that was not, unless `train.minutes` is set: the learning rate then follows max(steps done / steps, minutes
trained / minutes), and clocks do not repeat.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bertsmith.base.config import from_mapping, to_mapping, write_toml
from bertsmith.base.files import folder_lock, write_file
from bertsmith.base.log import Log, Progress, memory_mib
from bertsmith.base.seeds import number
from bertsmith.checkpoints.folder import load_model, read_provenance, save_model
from bertsmith.corpus.instances import Instances, Position
from bertsmith.corpus.shards import Corpus
from bertsmith.errors import ConfigError, Interrupted, NonFiniteLoss, StateError
from bertsmith.models.bert import compile_encoder
from bertsmith.models.catalog import FAMILIES
from bertsmith.nn.attention import choose_kernel
from bertsmith.nn.device import Precision, choose_device, choose_precision
from bertsmith.objectives.pretraining import BertPretraining, fresh_pretraining
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.train.batches import Feed, pretraining_counts
from bertsmith.train.heldout import evaluate_pretraining, log_shares, piece_frequencies
from bertsmith.train.loop import Step, training_steps
from bertsmith.train.optimizers import Optimizer, build_optimizer
from bertsmith.train.plan import dry_run, encoder_config, schedule_of
from bertsmith.train.process import Stop, fixed_torch, stop_signals
from bertsmith.train.settings import ANNOUNCED, FREE, Recipe, check_recipe, differences
from bertsmith.train.state import (
    Machine,
    RunState,
    machine_differences,
    newest_state,
    restore_state,
    save_state,
    this_machine,
)

__all__ = ["dry_run", "evaluate_pretraining", "pretrain"]

Found = tuple[Path, RunState]


def pretrain(
    recipe: Recipe,
    *,
    data: Path,
    run: Path,
    heldout: Path | None = None,
    resume: bool = False,
    init: Path | None = None,
    log: Log,
) -> Path:
    """Runs `recipe` on the prepared corpus `data` in the folder `run`; the model folder it made.

    `resume` goes on from the newest whole state. `init` is a model folder whose weights and shape are taken to begin
    with. `heldout` is a prepared corpus to evaluate on (default: the recipe's). Raises Interrupted on SIGINT and
    SIGTERM once the state is saved, NonFiniteLoss, ConfigError where `run` holds another run, StateError where it
    cannot go on.
    """
    check_recipe(recipe)
    run = Path(run)
    heldout = heldout or (Path(recipe.train.heldout) if recipe.train.heldout else None)
    sources = _Sources.open(recipe, Path(data), heldout)
    with folder_lock(run), stop_signals() as stop:
        log = log if log.run == run else Log(run, quiet=log.quiet, screen=log.screen)
        found = _found_in(run, resume, log)
        device = choose_device(recipe.train.device)
        precision = choose_precision(recipe.train.precision, device)
        with fixed_torch(device, recipe.train.threads):
            machine = this_machine(device, precision.name)
            if found is not None:
                _check_resumable(found[1], found[0], recipe, sources, machine, log)
                if _finished(found[1].step, found[1].minutes, recipe) and _steps_of(run / "model") == found[1].step:
                    log.say(f"{run}: finished already, after {found[1].step:,} steps")
                    return run / "model"
            work = _begin(recipe, sources, found, init, device, precision, machine, log)
            write_file(run / "recipe.toml", write_toml(to_mapping(recipe)))
            scores = _train(work, recipe, sources, run, stop, log)
            return _finish(work, recipe, sources, run, init, scores, log)


@dataclass(frozen=True)
class _Sources:
    """What a run reads."""

    corpus: Corpus
    tokenizer: Tokenizer
    instances: Instances
    heldout: Instances | None
    frequencies: torch.Tensor | None  # of the pieces in (the beginning of) the training corpus

    @classmethod
    def open(cls, recipe: Recipe, data: Path, heldout: Path | None) -> "_Sources":
        corpus = Corpus.open(data)
        tokenizer = corpus.tokenizer()
        settings = to_mapping(recipe.data)
        settings["mask_rule"] = tuple(settings["mask_rule"])
        instances = Instances(corpus, tokenizer.vocabulary, seed=recipe.train.seed, **settings)
        wanted = heldout is not None or recipe.train.frequent_bias
        frequencies = piece_frequencies(corpus, len(tokenizer.vocabulary)) if wanted else None
        if heldout is None:
            return cls(corpus, tokenizer, instances, None, frequencies)
        other = Corpus.open(heldout)
        if other.tokenizer().fingerprint != tokenizer.fingerprint:
            raise ConfigError(
                f"{heldout}: prepared with another tokenizer than {data}; prepare it again with "
                f"--tokenizer {corpus.tokenizer_folder}"
            )
        held = Instances(other, tokenizer.vocabulary, seed=recipe.train.seed, **settings)
        return cls(corpus, tokenizer, instances, held, frequencies)


@dataclass
class _Work:
    """What is trained and how far it is."""

    model: BertPretraining
    optimizer: Optimizer
    device: torch.device
    precision: Precision
    machine: Machine
    config: dict[str, Any]
    step: int = 0
    position: Position = field(default_factory=Position)
    minutes: float = 0.0
    tokens: int = 0


def _begin(
    recipe: Recipe,
    sources: _Sources,
    found: Found | None,
    init: Path | None,
    device: torch.device,
    precision: Precision,
    machine: Machine,
    log: Log,
) -> _Work:
    """The model and its optimizer: new, from `init`, or as a state left them."""
    nsp = recipe.data.objective == "mlm+nsp"
    family, seed = FAMILIES[recipe.model.family], number(recipe.train.seed, "init")
    if found is not None:
        config = from_mapping(family.config, found[1].config, where=str(found[0]))
        model = BertPretraining(family.encoder(config), nsp=nsp)
    elif init is not None:
        model = _initial(init, sources.tokenizer, nsp, seed, log)
    else:
        config = encoder_config(recipe.model, len(sources.tokenizer.vocabulary))
        model = fresh_pretraining(family.encoder(config), nsp=nsp, seed=seed)
        if recipe.train.frequent_bias:
            assert sources.frequencies is not None, "counted when the sources were opened"
            with torch.no_grad():
                model.mlm.bias.copy_(log_shares(sources.frequencies))
    if recipe.data.length > model.encoder.config.max_length:
        raise ConfigError(
            f"data.length {recipe.data.length}: the model has {model.encoder.config.max_length} positions; lower it or "
            "raise model.max_length"
        )
    model.to(device)
    train = recipe.train
    optimizer = build_optimizer(
        model,
        name=train.optimizer,
        learning_rate=train.learning_rate,
        adam_learning_rate=train.adam_learning_rate,
        weight_decay=train.weight_decay,
        betas=train.betas,
        eps=train.eps,
    )
    work = _Work(model, optimizer, device, precision, machine, to_mapping(model.encoder.config))
    if found is not None:
        folder, state = found
        restore_state(folder, model, optimizer)
        work.step, work.position, work.minutes, work.tokens = state.step, state.position, state.minutes, state.tokens
        log.say(f"resuming after step {state.step:,} ({state.minutes:.1f} minutes trained)")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log.say(f"model {recipe.model.family}, {parameters:,} parameters; optimizer {optimizer.about}")
    log.say(f"device {device}, {torch.get_num_threads()} threads; precision {precision.name} ({precision.reason})")
    dropout = model.encoder.config.attention_dropout
    kernel = choose_kernel(device, half=precision.name == "bf16", longest=recipe.data.length, dropout=dropout)
    log.say(f"attention {kernel.name} ({kernel.reason})")
    told = _tell_instances(sources.instances, log) if found is None else {}
    log.record(
        "resume" if found else "start",
        step=work.step,
        parameters=parameters,
        **told,
        optimizer=optimizer.about,
        settings=to_mapping(recipe),
        corpus=sources.corpus.fingerprint,
        machine=dataclasses.asdict(machine),
    )
    return work


def _train(work: _Work, recipe: Recipe, sources: _Sources, run: Path, stop: Stop, log: Log) -> dict[str, float]:
    """Takes the steps that are left, and gives the last held-out scores."""
    train = recipe.train
    if _finished(work.step, work.minutes, recipe):  # killed between the last state and the model folder
        return {} if sources.heldout is None else _evaluate(work, sources, recipe, log)
    micro_batch = train.micro_batch or train.batch
    feed = Feed(sources.instances, work.position, batch=train.batch, micro_batch=micro_batch, device=work.device)
    follow = schedule_of(recipe)

    def lr_at(step: int) -> float:
        return follow(step if train.minutes is None else max(step, work.minutes / train.minutes * train.steps))

    if train.compile:
        compile_encoder(work.model.encoder)
    interval = _Interval()
    scores: dict[str, float] = {}
    saved_at, saved_minutes = work.step, work.minutes
    if sources.heldout is not None and train.evaluate_every and work.step == 0:
        scores = _evaluate(work, sources, recipe, log)  # where the curve begins
    at_most = math.inf if train.minutes is None else (train.minutes - work.minutes) * 60
    with Progress(log, train.steps, "steps", "pretrain", done=work.step, at_most=at_most) as progress:
        steps = training_steps(
            work.model,
            feed,
            work.optimizer,
            lr_at,
            first=work.step + 1,
            last=train.steps,
            micro_batches=train.batch // micro_batch,
            clip=train.clip,
            precision=work.precision,
            device=work.device,
            seed=train.seed,
            counts_of=pretraining_counts,
        )
        begin = time.monotonic()
        for step in _with_advice(steps, run):
            seconds = time.monotonic() - begin
            work.step, work.position, work.tokens = step.number, feed.position, work.tokens + step.tokens
            work.minutes += seconds / 60
            interval.add(step, seconds)
            done = _finished(work.step, work.minutes, recipe)
            progress.advance(1, **interval.shown())
            if step.number % train.log_every == 0 or done or stop.by:
                log.record("step", **interval.record(step, work.minutes * 60, work.device))
                interval = _Interval()
            if sources.heldout is not None and (done or _due(step.number, train.evaluate_every)):
                scores = _evaluate(work, sources, recipe, log)
            minutes_due = train.save_minutes is not None and work.minutes - saved_minutes >= train.save_minutes
            if done or stop.by or minutes_due or _due(step.number, train.save_every):
                _save(work, recipe, sources, run)
                saved_at, saved_minutes = work.step, work.minutes
            if done:
                break
            if stop.by and saved_at == step.number:  # one that came while the state was saved takes one step more
                raise Interrupted(f"{stop.by} after step {saved_at:,}; the state is saved, --resume goes on from there")
            begin = time.monotonic()
    return scores


def _with_advice(steps: Iterator[Step], run: Path) -> Iterator[Step]:
    """The steps; NonFiniteLoss also says from where the run can go on."""
    try:
        yield from steps
    except NonFiniteLoss as error:
        states = sorted((run / "state").glob("step-*"))
        kept = f"last good state: {states[-1]} (--resume goes on from it)" if states else "no state was saved before"
        raise NonFiniteLoss(f"{error}; {kept}") from error


def _tell_instances(instances: Instances, log: Log) -> dict[str, Any]:
    """Says what an epoch is made of, by one shard of it; the same for the record."""
    report = instances.report(1)
    text = f"instances {report['instances_per_epoch']:,} an epoch, {report['mean_length']:.0f} tokens in the mean"
    if instances.pairs:
        text += (
            f"; random next segments {report['random_next']:.1%}, "
            f"where there was a choice {report['random_next_of_several']:.1%}"
        )
    log.say(text)
    if report["warning"]:
        log.warn(str(report["warning"]))
    return {"instances": report}


def _steps_of(model: Path) -> int | None:
    """How long the model in that folder was trained; None if there is none, or from somewhere else."""
    steps = read_provenance(model).get("steps")
    return steps if isinstance(steps, int) else None


def _finish(
    work: _Work,
    recipe: Recipe,
    sources: _Sources,
    run: Path,
    init: Path | None,
    scores: dict[str, float],
    log: Log,
) -> Path:
    provenance = {
        "recipe": to_mapping(recipe),
        **({} if init is None else {"init": str(init)}),  # its shape is the model's then, and not the recipe's
        "corpus": sources.corpus.fingerprint,
        "steps": work.step,
        "tokens": work.tokens,
        "minutes": round(work.minutes, 2),
        "machine": dataclasses.asdict(work.machine),
        "heldout": scores,
    }
    model = work.model
    save_model(
        run / "model",
        encoder=model.encoder,
        mlm=model.mlm,
        nsp=model.nsp,
        tokenizer=sources.tokenizer,
        provenance=provenance,
    )
    log.record("done", step=work.step, tokens=work.tokens, minutes=work.minutes, model="model")
    log.say(f"finished after {work.step:,} steps, {work.tokens:,} tokens, {work.minutes:.1f} minutes: {run / 'model'}")
    return run / "model"


def _evaluate(work: _Work, sources: _Sources, recipe: Recipe, log: Log) -> dict[str, float]:
    assert sources.heldout is not None, "asked for without held-out text"
    scores = evaluate_pretraining(
        work.model,
        sources.heldout,
        rows=recipe.train.evaluate_rows,
        batch=recipe.train.micro_batch or recipe.train.batch,
        device=work.device,
        precision=work.precision,
        frequencies=sources.frequencies,
    )
    log.record("heldout", step=work.step, seconds=round(work.minutes * 60, 3), tokens=work.tokens, **scores)
    said = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in scores.items() if not float(value).is_integer()]
    log.say(f"held out, step {work.step:,}: {', '.join(said)}")
    return scores


def _save(work: _Work, recipe: Recipe, sources: _Sources, run: Path) -> None:
    state = RunState(
        step=work.step,
        position=work.position,
        minutes=work.minutes,
        tokens=work.tokens,
        settings=to_mapping(recipe),
        config=work.config,
        corpus=sources.corpus.fingerprint,
        tokenizer=sources.tokenizer.fingerprint,
        machine=work.machine,
    )
    save_state(run, work.model, work.optimizer, state, keep=recipe.train.keep)


@dataclass
class _Interval:
    """The steps since the last record, summed."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0

    def add(self, step: Step, seconds: float) -> None:
        for name, count in step.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
            for kind, values in (("loss", step.losses), ("accuracy", step.accuracies)):
                if name in values:
                    key = f"{name}_{kind}"
                    self.sums[key] = self.sums.get(key, 0.0) + values[name] * count
        self.tokens += step.tokens
        self.seconds += seconds
        self.steps += 1

    def means(self) -> dict[str, float]:
        return {key: value / self.counts[key.rpartition("_")[0]] for key, value in self.sums.items()}

    def shown(self) -> dict[str, str]:
        rate = {"tokens/s": f"{self.tokens / self.seconds:,.0f}"} if self.seconds else {}
        return {**{key.replace("_", " "): f"{value:.3f}" for key, value in self.means().items()}, **rate}

    def record(self, step: Step, seconds: float, device: torch.device) -> dict[str, Any]:
        memory = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else memory_mib()
        return {
            "step": step.number,
            **{key: round(value, 5) for key, value in self.means().items()},
            "lr": step.lr,
            "grad_norm": round(step.grad_norm, 5),
            "tokens_per_second": round(self.tokens / self.seconds, 1) if self.seconds else None,
            "seconds": round(seconds, 3),
            "memory_mib": round(memory),
        }


def _found_in(run: Path, resume: bool, log: Log) -> Found | None:
    used = [name for name in ("recipe.toml", "state", "model") if (run / name).exists()]
    if used and not resume:
        raise ConfigError(
            f"{run}: holds a run already ({', '.join(used)}); go on with --resume, or choose another folder"
        )
    if not resume:
        return None
    found = newest_state(run, log)
    if found is None:
        (log.warn if used else log.say)(f"{run}: no saved state to resume from; starting from zero")
    return found


def _check_resumable(
    state: RunState, folder: Path, recipe: Recipe, sources: _Sources, machine: Machine, log: Log
) -> None:
    """StateError where going on would be another run; a warning for whatever keeps it from being bit-equal."""
    where = folder.parent.parent
    if state.tokenizer != sources.tokenizer.fingerprint:
        raise StateError(f"{where}: this run was started with another tokenizer than that of {sources.corpus.folder}")
    if state.corpus != sources.corpus.fingerprint:
        raise StateError(
            f"{where}: the corpus {sources.corpus.folder} is not the one this run was started with; fingerprint "
            f"{sources.corpus.fingerprint[:12]}, expected {state.corpus[:12]}; take the old one, or another run folder"
        )
    old = from_mapping(Recipe, state.settings, where=str(folder))
    announced = []
    for name, before, after in differences(old, recipe):
        if name.removeprefix("train.") in FREE:
            continue
        if name.removeprefix("train.") not in ANNOUNCED:
            raise StateError(
                f"{where}: {name} was {before} in this run, is {after}; put it back, or choose another folder"
            )
        announced.append(f"{name} was {before}, is {after}")
    announced += machine_differences(state.machine, machine)
    if recipe.train.minutes is not None:
        announced.append("train.minutes makes the learning rate follow the clock")
    if announced:
        log.warn(f"resuming with differences, so not bit-equal to an undisturbed run: {'; '.join(announced)}")


def _finished(step: int, minutes: float, recipe: Recipe) -> bool:
    train = recipe.train
    return step >= train.steps or (train.minutes is not None and minutes >= train.minutes)


def _initial(folder: Path, tokenizer: Tokenizer, nsp: bool, seed: int, log: Log) -> BertPretraining:
    """A model that begins with the weights of a model folder; heads the folder lacks begin at random."""
    loaded = load_model(folder)
    if loaded.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"{folder}: another tokenizer than the corpus'; prepare the text again with --tokenizer {folder}"
        )
    encoder = loaded.encoder
    fresh = fresh_pretraining(type(encoder)(encoder.config), nsp=nsp, seed=seed)
    lacks = [name for name, part in (("MLM head", loaded.mlm), ("NSP head", loaded.nsp or not nsp)) if not part]
    if nsp and encoder.add_pooler(seed):
        lacks.append("pooler")
    model = BertPretraining(encoder, nsp=nsp, mlm_head=loaded.mlm, nsp_head=loaded.nsp if nsp else None)
    if loaded.mlm is None:
        own = {name: value for name, value in fresh.mlm.state_dict().items() if name != "table_VD"}
        model.mlm.load_state_dict(own, strict=False)
    if model.nsp is not None and fresh.nsp is not None and loaded.nsp is None:
        model.nsp.load_state_dict(fresh.nsp.state_dict())
    if lacks:
        log.warn(f"{folder}: has no {', '.join(lacks)}; fresh weights are taken")
    log.say(f"weights and shape from {folder}; the recipe's [model] is not used")
    return model


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
