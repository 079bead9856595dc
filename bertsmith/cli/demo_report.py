"""What the demo found, as a table for the terminal and as report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.cli import page
from bertsmith.tasks.metrics.seeds import mean, spread

ROWS = {
    "majority": "always the most frequent class",
    "tf-idf": "TF-IDF + logistic regression",
    "random": "BERT, random weights",
    "pretrained": "BERT, pre-trained",
}


@dataclass(frozen=True)
class Filled:
    """A held-out sentence with one word masked, and what the model says."""

    before: str
    word: str
    after: str
    guesses: list[tuple[str, float]]

    @property
    def masked(self) -> str:
        return f"{self.before}[MASK]{self.after}"


@dataclass(frozen=True)
class Result:
    sizes: Mapping[str, int]
    recipe: str
    history: Sequence[Mapping[str, Any]]  # the lines of run.jsonl
    filled: Sequence[Filled]
    scores: Mapping[str, Any] | None

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """By step number; what a killed run did twice counts once."""
        return list({line["step"]: line for line in self.history if line["kind"] == "step"}.values())

    @property
    def heldout(self) -> list[Mapping[str, Any]]:
        return list({line["step"]: line for line in self.history if line["kind"] == "heldout"}.values())


def pretraining_rows(result: Result) -> list[tuple[str, str, str]]:
    """(what, at the start, at the end)."""
    steps, held = result.steps, result.heldout
    first, last, end = steps[0], steps[-1], held[-1]
    rows = [("training loss, MLM", f"{first['mlm_loss']:.2f}", f"{last['mlm_loss']:.2f}")]
    if "nsp_loss" in first:
        rows.append(("training loss, NSP", f"{first['nsp_loss']:.2f}", f"{last['nsp_loss']:.2f}"))
    rows.append(("held-out loss, MLM", f"{held[0]['mlm_loss']:.2f}", f"{end['mlm_loss']:.2f}"))
    rows.append(("held-out accuracy, MLM", f"{held[0]['mlm_accuracy']:.1%}", f"{end['mlm_accuracy']:.1%}"))
    if "frequent_accuracy" in end:
        rows.append(("  always the most frequent piece", "", f"{end['frequent_accuracy']:.1%}"))
    if "nsp_accuracy" in end:
        rows.append(("held-out accuracy, NSP", f"{held[0]['nsp_accuracy']:.1%}", f"{end['nsp_accuracy']:.1%}"))
    return rows


def score_rows(scores: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(who, mean accuracy on test, spread over the samples)."""
    rows = []
    for key, name in ROWS.items():
        values = scores["rows"][key]
        deviation = spread(values)
        rows.append((name, f"{mean(values):.3f}", "" if deviation is None else f"± {deviation:.3f}"))
    return rows


def as_mapping(result: Result) -> dict[str, Any]:
    """The tables, for a program."""
    last = result.steps[-1]
    return {
        "recipe": result.recipe,
        "text": dict(result.sizes),
        "steps": last["step"],
        "seconds": last["seconds"],
        "pretraining": pretraining_rows(result),
        "task": {name: result.scores[name] for name in ("labels", "train", "dev", "test")} if result.scores else None,
        "scores": score_rows(result.scores) if result.scores else None,
    }


def as_text(result: Result) -> str:
    steps = result.steps
    tokens = sum(line.get("tokens_per_second", 0) for line in steps) / max(len(steps), 1)
    lines = [f"\nPre-training, recipe {result.recipe}: {steps[-1]['step']:,} steps, {tokens:,.0f} tokens a second", ""]
    lines += [
        f"{'':34}{'start':>10}{'end':>10}",
        *(f"{what:34}{begin:>10}{end:>10}" for what, begin, end in pretraining_rows(result)),
    ]
    if result.scores:
        scores = result.scores
        lines += [
            "",
            f"Task: one of {len(scores['labels'])} labels, {scores['train']} labelled texts, "
            f"{scores['test']} to test, 3 samples",
            "",
        ]
        lines += [f"{who:34}{mean:>10}{spread:>10}" for who, mean, spread in score_rows(scores)]
    return "\n".join(lines)


def as_html(result: Result) -> str:
    steps, held = result.steps, result.heldout
    sizes = ", ".join(f"{value:,} {name}" for name, value in result.sizes.items())
    blocks = [
        page.note(
            f"Recipe {result.recipe}. Text: {sizes}. "
            "Held-out documents were never trained on, and their masks are the same at every measurement."
        ),
        page.heading("Pre-training"),
        page.table(["", "start", "end"], pretraining_rows(result)),
        page.line_chart(
            "Masked LM loss by step",
            {
                "training": [(line["step"], line["mlm_loss"]) for line in steps],
                "held out": [(line["step"], line["mlm_loss"]) for line in held],
            },
            x="step", y="loss (nats a token)",
        ),
        page.line_chart(
            "Held-out accuracy by step",
            {
                "masked tokens": [(line["step"], line["mlm_accuracy"]) for line in held],
                "next sentence": [(line["step"], line["nsp_accuracy"]) for line in held if "nsp_accuracy" in line],
            },
            x="step", y="share right",
        ),
    ]  # fmt: skip
    if result.filled:
        blocks += [
            page.heading("Masks filled in held-out sentences"),
            page.note("Marked in the sentence: the word that was hidden."),
        ]
        blocks += [page.filled(one.before, one.after, one.guesses, one.word) for one in result.filled]
    if result.scores:
        scores = result.scores
        blocks += [
            page.heading("Fine-tuning"),
            page.note(
                f"Accuracy on {scores['test']:,} test texts after training on {scores['train']} labelled ones; "
                "mean and standard deviation over three samples of the labelled texts. "
                "Random weights have the best of three learning rates by development score on the first sample. "
                f"All take {scores['epochs']} epochs with Muon, and texts are cut at {scores['tokens']} tokens, "
                "but TF-IDF reads them whole."
            ),
            page.table(["", "accuracy", "spread"], score_rows(scores)),
            page.heading("Confusion matrix, pre-trained"),
            page.confusion(scores["labels"], scores["confusion"]),
        ]
    return page.page("bertsmith: from raw text to answers", blocks)
