"""`Model`: a model folder in memory, with what it can answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.api.torch_face import PaddedBert
from bertsmith.base.log import Log
from bertsmith.checkpoints.folder import save_model
from bertsmith.errors import CheckpointError, FileError
from bertsmith.models.bert import Bert
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead
from bertsmith.tasks.label import LabelModel
from bertsmith.tasks.predict import Item, LabelPrediction, encode_texts, fill_masks, predict_labels
from bertsmith.tasks.task import Task
from bertsmith.text.tokenizer import Tokenizer


class Model:
    """An encoder, its tokenizer and the heads its folder held; made by `bertsmith.load`.

    `max_length` is where `predict` cuts texts, in tokens: as in fine-tuning if the folder says it, else the model's
    most. `module` is the same encoder and label head as a torch module with padded tensors; what is trained there
    answers here. Answering puts the modules into evaluation mode and leaves them there.
    """

    def __init__(
        self,
        *,
        folder: Path,
        encoder: Bert,
        tokenizer: Tokenizer,
        mlm: MlmHead | None = None,
        nsp: NspHead | None = None,
        head: LabelHead | None = None,
        labels: Sequence[str] | None = None,
        task: Task | None = None,
    ):
        self.folder = folder
        self.max_length = task.max_length if task is not None else encoder.config.max_length
        self._task = task
        self.tokenizer = tokenizer
        self.labels = None if labels is None else list(labels)
        self.module = PaddedBert(encoder, head)
        self._mlm, self._nsp = mlm, nsp

    def __repr__(self) -> str:
        heads = {"mlm": self._mlm, "nsp": self._nsp, "label": self.module.head}
        held = ", ".join(name for name, head in heads.items() if head is not None)
        return f"<bertsmith.Model {self.folder}: {type(self.module.encoder).__name__}, heads: {held or 'none'}>"

    def encode(self, items: Sequence[Item]) -> list[np.ndarray]:
        """The last hidden states: for each text or pair a float32 array [tokens, width], special tokens included.

        A text with more tokens than the model has positions is cut there, with one warning on stderr that counts them.
        Raises InputError for a single text in place of a list. No texts give no arrays.
        """
        return encode_texts(self.module.encoder, self.tokenizer, items, log=Log())

    def fill(self, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
        """For each [MASK] in `text`, the `top` likeliest pieces with their probabilities (0 to 1), best first.

        Raises CheckpointError if the folder has no masked-LM head, InputError if `text` has no [MASK] or is too long.
        """
        if self._mlm is None:
            raise CheckpointError(
                f"{self.folder}: has no masked-LM head, so nothing fills a [MASK]; load the pre-trained model instead"
            )
        return fill_masks(self.module.encoder, self._mlm, self.tokenizer, text, top=top)

    def predict(self, items: Sequence[Item]) -> list[LabelPrediction]:
        """For each text or pair its label (`.label`) and `.probabilities`, one for each of `model.labels`; input order.

        Texts of more than `model.max_length` tokens are cut there, with one warning on stderr that counts them. Raises
        CheckpointError if there is no label head, InputError for a single text in place of a list.
        """
        if self.module.head is None or self.labels is None:
            raise CheckpointError(
                f"{self.folder}: has no label head, so it predicts nothing; fine-tune it first (bertsmith finetune), "
                'or attach a fresh head: load(folder, head="label", labels=[...])'
            )
        model = LabelModel(self.module.encoder, self.module.head)
        return predict_labels(model, self.tokenizer, items, self.labels, max_length=self.max_length, log=Log())

    def save(self, folder: str | Path, **provenance: Any) -> None:
        """Writes a model folder, whole or not at all; `provenance` (plain values) goes into its bertsmith.json.

        A model folder that stands there is replaced; FileError if `folder` holds anything else.
        """
        folder = Path(folder)
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
            raise FileError(f"{folder}: holds other things than a model; choose a new folder")
        save_model(
            folder,
            encoder=self.module.encoder,
            mlm=self._mlm,
            nsp=self._nsp,
            label=self.module.head,
            labels=self.labels,
            tokenizer=self.tokenizer,
            provenance={**self._saved_task(), "saved_from": str(self.folder), **provenance},
        )

    def _saved_task(self) -> dict[str, Any]:
        """The task the folder was fine-tuned for, as long as its labels are still these."""
        task = self._task
        if task is None or self.module.head is None or self.labels != list(task.labels):
            return {}
        return {"task": task.to_mapping()}

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device
