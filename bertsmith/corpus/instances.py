"""Instances ready for the model: [CLS] A [SEP] B [SEP] or [CLS] A [SEP], masked, in a seeded order, from any position.

An instance and its masks are a pure function of (seed, epoch, shard, index), so nothing is written beforehand and
nothing but a `Position` is saved to go on. An epoch takes the shards in a seeded order, a few at a time (a block), and
permutes the instances of a block together; starting in the middle builds the tables of that block only.

What differs from create_pretraining_data.py (2018): no static copies (`dupe_factor` brings them back), and no padding.

Dimension key: L tokens of the instance, K targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import numpy as np

from bertsmith.base.seeds import stream
from bertsmith.corpus.masking import BERT_RULE, check_masking, mask_tokens, most_targets
from bertsmith.corpus.pairs import (
    InstanceTable,
    check_settings,
    instance_table,
    instance_table_single,
    one_document_error,
    report_of,
)
from bertsmith.corpus.shards import Corpus
from bertsmith.errors import ConfigError, CorpusError
from bertsmith.text.vocabulary import Vocabulary

OBJECTIVES = ("mlm+nsp", "mlm")
HELDOUT_SEED = 0  # not the run's: models trained with different seeds are measured on the same masks


@dataclass(frozen=True)
class Position:
    """Where a run stands in the corpus: `index` counts the instances of a block that were already taken."""

    epoch: int = 0
    block: int = 0
    index: int = 0


@dataclass(frozen=True, eq=False)
class Instance:
    """One training example, corrupted, with what was there: int64 arrays; `positions` count tokens of the instance."""

    ids: np.ndarray  # [L]
    segments: np.ndarray  # [L], 0 up to the first [SEP], 1 after it
    positions: np.ndarray  # [K], in order
    targets: np.ndarray  # [K]
    is_next: bool | None  # None: the objective has no pairs


@dataclass(frozen=True, eq=False)
class Instances:
    """The instances of a prepared corpus under one objective and seed.

    Raises CorpusError for an empty corpus, one of another vocabulary, and, with pairs, one of a single document.
    """

    corpus: Corpus
    vocabulary: Vocabulary
    _: KW_ONLY
    length: int  # tokens at most, special ones included
    seed: int
    objective: str = "mlm+nsp"  # or "mlm": no B, no next-sentence label
    mask_rate: float = 0.15
    mask_rule: tuple[float, float, float] = BERT_RULE
    whole_word: bool = False
    coin: str = "piece"  # or "word": the rule is drawn once for a whole word
    short_rate: float = 0.1
    random_next_rate: float = 0.5
    dupe_factor: int | None = None  # so many static copies, one an epoch, as in 2018; None: fresh ones each epoch
    open_shards: int = 4  # shards of a block

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"objective {self.objective!r}: expected one of {', '.join(OBJECTIVES)}")
        check_settings(length=self.length, short_rate=self.short_rate, random_next_rate=self.random_next_rate)
        check_masking(rate=self.mask_rate, most=None, rule=self.mask_rule, coin=self.coin)
        if self.coin == "word" and not self.whole_word:
            raise ConfigError("coin 'word' needs whole-word masking: set whole_word = true, or coin = 'piece'")
        if self.dupe_factor is not None and self.dupe_factor < 1:
            raise ConfigError(f"dupe_factor {self.dupe_factor}: expected 1 or more, or none for fresh masks each epoch")
        if self.open_shards < 1:
            raise ConfigError(f"open_shards {self.open_shards}: expected 1 or more")
        if not self.corpus.tokens:
            raise CorpusError(f"{self.corpus.folder}: the corpus holds no tokens; prepare it from text that has some")
        if self.pairs and self.corpus.documents < 2:
            raise one_document_error()
        pieces = self.corpus.manifest["vocabulary_size"]
        if pieces != len(self.vocabulary):
            raise CorpusError(
                f"{self.corpus.folder}: prepared with a vocabulary of {pieces:,} pieces, this one has "
                f"{len(self.vocabulary):,}; use the tokenizer in {self.corpus.tokenizer_folder}, or prepare again"
            )

    @property
    def pairs(self) -> bool:
        """Whether an instance has a B and a next-sentence label."""
        return self.objective == "mlm+nsp"

    @property
    def blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-len(self.corpus.shards) // self.open_shards)

    def stream(self, position: Position, size: int) -> Iterator[tuple[list[Instance], Position]]:
        """Batches of exactly `size` instances without end, each with the position after it.

        The tail of an epoch flows into the next one. What follows a position depends on nothing but the position.
        """
        if size < 1:
            raise ConfigError(f"batches of {size} instances: expected 1 or more")
        if not (position.epoch >= 0 and 0 <= position.block < self.blocks and position.index >= 0):
            raise CorpusError(
                f"{position} is not in this corpus: it has {self.blocks} blocks of {self.open_shards} shards"
            )
        batch: list[Instance] = []
        start = position.index
        for epoch, block in self._blocks_from(position):
            opened = _Block(self, epoch, block)
            if start > len(opened):
                raise CorpusError(f"{position} is not in this corpus: block {block} has {len(opened):,} instances")
            for index in range(start, len(opened)):
                batch.append(opened[index])
                if len(batch) == size:
                    yield batch, self._normalized(epoch, block, index + 1, len(opened))
                    batch = []
            start = 0

    def heldout(self, count: int) -> list[Instance]:
        """The first `count` instances (all, if there are fewer) in the order of the corpus: the same for every seed.

        For evaluation: epoch 0 of seed 0, so the pairs and masks are fixed by the corpus and the settings.
        """
        instances: list[Instance] = []
        for shard in range(len(self.corpus.shards)):
            if len(instances) < count:
                opened = _Shard(self, HELDOUT_SEED, 0, shard)
                instances += [opened[row] for row in range(min(count - len(instances), len(opened.table)))]
        return instances

    def report(self, most_shards: int = 8) -> dict[str, object]:
        """`report_of` epoch 0 of up to `most_shards` shards, evenly spread, with `shards` and `shards_read`.

        `instances_per_epoch` is scaled up by tokens where not all were read; then `estimated` is True.
        """
        total = len(self.corpus.shards)
        read = sorted({total * part // min(most_shards, total) for part in range(min(most_shards, total))})
        tables = [self.table(0, shard) for shard in read]
        report = report_of(tables)
        tokens = sum(len(self.corpus.shards[shard].tokens) for shard in read)
        found = sum(len(table) for table in tables)
        report["instances_per_epoch"] = round(found * self.corpus.tokens / tokens) if tokens else found
        report["estimated"] = len(read) < total
        report["shards"], report["shards_read"] = total, len(read)
        return report

    def table(self, epoch: int, shard: int, *, seed: int | None = None) -> InstanceTable:
        """The instance table of a shard under these settings; `seed` other than the run's for evaluation."""
        seed = self.seed if seed is None else seed
        epoch = self.static_epoch(epoch)
        if self.pairs:
            return instance_table(
                self.corpus,
                shard,
                seed=seed,
                epoch=epoch,
                length=self.length,
                short_rate=self.short_rate,
                random_next_rate=self.random_next_rate,
            )
        return instance_table_single(
            self.corpus, shard, seed=seed, epoch=epoch, length=self.length, short_rate=self.short_rate
        )

    def static_epoch(self, epoch: int) -> int:
        """The epoch whose pairs and masks are shown in `epoch`: the same one, unless there are static copies."""
        return epoch if self.dupe_factor is None else epoch % self.dupe_factor

    def _blocks_from(self, position: Position) -> Iterator[tuple[int, int]]:
        epoch, block = position.epoch, position.block
        while True:
            for number in range(block, self.blocks):
                yield epoch, number
            epoch, block = epoch + 1, 0

    def _normalized(self, epoch: int, block: int, index: int, length: int) -> Position:
        if index < length:
            return Position(epoch, block, index)
        return Position(epoch, block + 1) if block + 1 < self.blocks else Position(epoch + 1)

    # What every instance needs; made once.
    @cached_property
    def most_targets(self) -> int:
        """Targets of an instance at most."""
        return most_targets(self.length, self.mask_rate)

    @cached_property
    def replacements(self) -> np.ndarray:
        """Ids that a random token may become."""
        return np.asarray(self.vocabulary.replacement_ids, dtype=np.int64)

    @cached_property
    def ordinary(self) -> np.ndarray:
        """False at the ids of special pieces, which are never targets; by id."""
        ordinary = np.ones(len(self.vocabulary), dtype=bool)
        ordinary[sorted(self.vocabulary.special_ids)] = False
        return ordinary


class _Block:
    """The open shards of an epoch and the order in which their instances come."""

    def __init__(self, instances: Instances, epoch: int, block: int):
        shards = stream(instances.seed, "order", epoch).permutation(len(instances.corpus.shards)).tolist()
        members = shards[block * instances.open_shards : (block + 1) * instances.open_shards]
        self._shards = [_Shard(instances, instances.seed, epoch, shard) for shard in members]
        ends = np.cumsum([len(opened.table) for opened in self._shards])
        order = stream(instances.seed, "order", epoch, block).permutation(int(ends[-1]))
        self._member = np.searchsorted(ends, order, side="right")
        self._row = order - np.concatenate(([0], ends))[self._member]

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: int) -> Instance:
        return self._shards[self._member[index]][int(self._row[index])]


class _Shard:
    """The instances of one shard in one epoch, made when asked for."""

    def __init__(self, instances: Instances, seed: int, epoch: int, shard: int):
        self._instances = instances
        self.table = instances.table(epoch, shard, seed=seed)
        self._masks = _NumberedStreams(stream(seed, "mask", instances.static_epoch(epoch), shard))
        self._tokens = np.asarray(instances.corpus.shards[shard].tokens)  # slices of a memmap itself cost more
        self._cls, self._sep = instances.vocabulary.cls_id, instances.vocabulary.sep_id

    def __getitem__(self, row: int) -> Instance:
        settings, table, shards = self._instances, self.table, self._instances.corpus.shards
        a_start, a_end = int(table.a_start[row]), int(table.a_end[row])
        b_start, b_end = int(table.b_start[row]), int(table.b_end[row])
        after_a = a_end - a_start + 2
        length = after_a + (b_end - b_start + 1 if table.pairs else 0)
        ids_L = np.empty(length, dtype=np.int64)
        ids_L[0], ids_L[after_a - 1], ids_L[-1] = self._cls, self._sep, self._sep
        ids_L[1 : after_a - 1] = self._tokens[a_start:a_end]
        segments_L = np.zeros(length, dtype=np.int64)
        starts_L = None
        if settings.whole_word:
            starts_L = np.ones(length, dtype=bool)
            starts_L[1 : after_a - 1] = shards[table.shard].word_starts(a_start, a_end)
        if table.pairs:
            b_number = int(table.b_shard[row])
            ids_L[after_a:-1] = (self._tokens if b_number == table.shard else shards[b_number].tokens)[b_start:b_end]
            segments_L[after_a:] = 1
            if starts_L is not None:
                starts_L[after_a:-1] = shards[b_number].word_starts(b_start, b_end)
        corrupted_L, positions_K, targets_K = mask_tokens(
            ids_L,
            settings.ordinary[ids_L],
            self._masks.at(row),
            mask_id=settings.vocabulary.mask_id,
            replacements=settings.replacements,
            rate=settings.mask_rate,
            most=settings.most_targets,
            rule=settings.mask_rule,
            word_starts=starts_L,
            coin=settings.coin,
        )
        return Instance(
            corrupted_L, segments_L, positions_K, targets_K, bool(table.is_next[row]) if table.pairs else None
        )


class _NumberedStreams:
    """A random stream for each number, all of one Philox key: setting the counter costs a tenth of making a generator.

    The number is the counter's highest word, so streams would meet only after 2**194 draws. The generator of one number
    is good until the next one is asked for.
    """

    def __init__(self, generator: np.random.Generator):
        self._generator = generator
        self._fresh = generator.bit_generator.state  # nothing drawn yet: no words buffered

    def at(self, number: int) -> np.random.Generator:
        self._fresh["state"]["counter"][3] = number
        self._generator.bit_generator.state = self._fresh
        return self._generator
