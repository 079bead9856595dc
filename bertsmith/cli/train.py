"""`bertsmith pretrain` and `bertsmith finetune`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import bertsmith
from bertsmith.base.config import nearest
from bertsmith.cli import options
from bertsmith.errors import ConfigError

Out = Annotated[
    Path, typer.Option(metavar="RUN", help="Run folder: settings, log, what is done, model.", show_default=False)
]


def pretrain(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name (tiny, ...) or a TOML file.", show_default=False)
    ],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Corpus folder made by prepare.", show_default=False)],
    out: Out,
    heldout: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Corpus folder to score the model on.", show_default="the recipe's, if any"),
    ] = None,
    set: options.Changes = [],  # noqa: B006 - typer makes a new one for each call
    resume: options.Resume = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, sizes and learning rates; train nothing.")
    ] = False,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Model folder whose weights to begin with.", show_default="random weights"),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Pre-train an encoder on a prepared corpus.

    Ctrl-C (or SIGTERM) saves the state and stops; the same command with --resume goes on from there, also after a
    crash. Settings are the recipe's; --set train.steps=1000 changes one.
    """
    from bertsmith.base.log import Log
    from bertsmith.train.pretrain import dry_run as plan
    from bertsmith.train.pretrain import pretrain as train
    from bertsmith.train.settings import read_recipe

    settings = read_recipe(find_recipe(recipe), set)
    if dry_run:
        print(plan(settings, data=data, init=init))
        return
    model = train(settings, data=data, run=out, heldout=heldout, resume=resume, init=init, log=Log(out, quiet=quiet))
    options.show({"model": str(model)}, json)


def find_recipe(name: str) -> Path:
    """The file of a recipe: `name` as a path, or one of those that come with bertsmith."""
    if Path(name).suffix == ".toml" or Path(name).is_file():
        return Path(name)
    package = Path(bertsmith.__file__).parent
    # In a wheel the recipes lie inside the package, in a checkout beside it.
    known = {
        path.stem: path
        for folder in (package.parent / "recipes", package / "recipes")
        for path in folder.glob("*.toml")
    }
    if name not in known:
        near = nearest(name, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"no recipe is called {name!r}{hint} Known: {', '.join(sorted(known))}; or give a .toml file")
    return known[name]


def finetune(
    train: Annotated[
        Path, typer.Option(metavar="FILE", help="Labelled table: .csv, .tsv, .jsonl.", show_default=False)
    ],
    model: options.Model,
    out: Out,
    dev: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Table to choose by.", show_default="a tenth of --train")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Table to score at the end.", show_default="none")
    ] = None,
    text: options.TextColumn = None,
    pair: options.PairColumn = None,
    label: options.LabelColumn = None,
    no_header: options.NoHeader = False,
    format: options.TableFormat = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Train N times, seeds 0 to N-1, and report mean and spread.", min=1, show_default="1"
        ),
    ] = None,
    init: Annotated[
        Literal["pretrained", "random"] | None,
        typer.Option(
            help="Begin with the model's weights, or with random ones for comparison.", show_default="pretrained"
        ),
    ] = None,
    set: options.Changes = [],  # noqa: B006 - typer makes a new one for each call
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fine-tune a model to label texts or pairs of texts.

    The paper's settings are the defaults; --set learning_rate=3e-5 changes one. The best seed becomes RUN/model.
    """
    from bertsmith.base.config import with_settings
    from bertsmith.base.log import Log
    from bertsmith.tasks.metrics.seeds import show_finetuned
    from bertsmith.tasks.readers.table import columns
    from bertsmith.train.finetune import FinetuneSettings
    from bertsmith.train.finetune import finetune as tune

    short = [f"seeds={list(range(seeds))}"] if seeds is not None else []
    short += [f"init={init}"] if init is not None else []
    settings = with_settings(FinetuneSettings(), [*set, *short])
    scores = tune(
        settings,
        model=model,
        train=train,
        dev=dev,
        test=test,
        columns=columns(text=text, pair=pair, label=label, header=False if no_header else None, format=format),
        out=out,
        log=Log(out, quiet=quiet),
        resume=resume,
    )
    if json:
        options.print_json(scores)
    else:
        print(show_finetuned(scores))
        print(f"model: {out / 'model'}")
