"""Batches: within budget, little padding, every row once, whatever resumes or shares the work."""

import dataclasses
import gc
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from configs.schema import DataConfig
from data import batching
from data.batching import (
    Batch,
    GroupSampler,
    collate,
    form_batches,
    largest_batches,
    make_eval_loader,
    make_train_loader,
    padded_tokens,
)
from data.cache import Side, TokenizedSplit

PAD, BOS, EOS = 9, 8, 0  # not the usual order: 0 is a real id (Marian's EOS), padding is the last


def split_of(pairs: list[tuple[list[int], list[int]]]) -> TokenizedSplit:
    src, tgt = Side(), Side()
    for source, target in pairs:
        src.add(source)
        tgt.add(target)
    return TokenizedSplit(*src.arrays(), *tgt.arrays(), kept=np.arange(len(pairs)), n_skipped={})


def random_split(n: int, seed: int = 0) -> TokenizedSplit:
    rng = np.random.default_rng(seed)
    sequence = lambda: [*rng.integers(0, 8, rng.integers(1, 12)).tolist(), EOS]  # noqa: E731
    return split_of([(sequence(), sequence()) for _ in range(n)])


def caption_lengths(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token counts like those of image captions: about 15 a side, the two sides correlated."""
    rng = np.random.default_rng(seed)
    base = rng.gamma(9.0, 1.5, n)
    src = np.clip(np.rint(base * rng.normal(1.1, 0.12, n)), 3, 100)
    tgt = np.clip(np.rint(base * rng.normal(1.0, 0.10, n)), 3, 100)
    return src.astype(np.int64), tgt.astype(np.int64)


def assert_same(a: Batch, b: Batch) -> None:
    torch.testing.assert_close(dataclasses.asdict(a), dataclasses.asdict(b), rtol=0, atol=0)


def train_loader(
    split: TokenizedSplit,
    *,
    accumulate: int = 2,
    seed: int = 0,
    rank: int = 0,
    n: int = 1,
    resampler=None,
    **data,
) -> torch.utils.data.DataLoader:
    config = DataConfig(**{"max_len": 16, "batch_size": 64, **data})
    run = {"accumulate": accumulate, "seed": seed, "rank": rank, "world_size": n}
    run["resampler"] = resampler
    return make_train_loader(split, config, pad_id=PAD, bos_id=BOS, **run)


# ------------------------------------------------------------------------------------------ forming


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120),
    batch_by=st.sampled_from(["tokens", "sentences"]),
    batch_size=st.integers(1, 200),
    seed=st.integers(0, 3),
)
def test_each_row_is_in_one_batch_and_no_batch_is_over_budget(
    lengths, batch_by, batch_size, seed
) -> None:
    src, tgt = np.array(lengths).T
    batches = form_batches(src, tgt, batch_by=batch_by, batch_size=batch_size, seed=seed)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(src)))
    for rows in batches:
        width = max(src[rows].max(), tgt[rows].max())
        if batch_by == "tokens":
            assert len(rows) * width <= batch_size or len(rows) == 1
        else:
            assert len(rows) <= batch_size


def test_the_budget_is_used_up() -> None:
    src, tgt = caption_lengths(5000)
    batches = form_batches(src, tgt, batch_by="tokens", batch_size=2048, seed=0)
    fewest = np.maximum(src, tgt).sum() / 2048
    assert fewest <= len(batches) <= 1.15 * fewest
    batches = form_batches(src, tgt, batch_by="sentences", batch_size=64, seed=0)
    assert len(batches) == -(-5000 // 64)


@pytest.mark.parametrize(("batch_by", "batch_size"), [("tokens", 4096), ("sentences", 64)])
def test_under_five_percent_is_padding_on_captions(batch_by, batch_size) -> None:
    src, tgt = caption_lengths(29_000)
    batches = form_batches(src, tgt, batch_by=batch_by, batch_size=batch_size, seed=0)
    share = 1 - (src.sum() + tgt.sum()) / padded_tokens(batches, src, tgt)
    by_chance = np.array_split(np.random.default_rng(0).permutation(len(src)), len(batches))
    unsorted = 1 - (src.sum() + tgt.sum()) / padded_tokens(by_chance, src, tgt)
    assert share < 0.05 < 0.3 < unsorted


def test_of_very_many_rows_the_widest_bands_alone_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src, tgt = caption_lengths(29_000)
    budget = {"batch_by": "tokens", "batch_size": 4096, "seed": 0}
    monkeypatch.setattr(batching, "BANDS", (2, 16))
    every = form_batches(src, tgt, **budget)
    monkeypatch.setattr(batching, "BANDS", (16,))
    widest = form_batches(src, tgt, **budget)
    monkeypatch.setattr(batching, "BANDS", (2, 16))
    monkeypatch.setattr(batching, "MANY", 29_000)
    found = form_batches(src, tgt, **budget)
    for expected, equal in ((widest, True), (every, False)):
        assert (list(map(list, found)) == list(map(list, expected))) is equal


def test_batches_depend_on_the_seed_alone_and_no_rows_make_none() -> None:
    def form(seed: int, n: int = 400, by: str = "tokens") -> list[list[int]]:
        batches = form_batches(*caption_lengths(n), batch_by=by, batch_size=256, seed=seed)
        return [rows.tolist() for rows in batches]

    assert form(1) == form(1)
    assert form(1) != form(2)
    assert form(1, n=0) == form(1, n=0, by="sentences") == []


# --------------------------------------------------------------------------------- order and resume


def sampler_of(n_batches: int, **options) -> GroupSampler:
    batches = [np.arange(3 * i, 3 * i + 3) for i in range(n_batches)]
    return GroupSampler(batches, **{"accumulate": 2, "seed": 5, **options})


def groups_of(sampler: GroupSampler) -> list[list[list[int]]]:
    return [group.batches for group in sampler]


def test_an_epoch_has_every_batch_once_in_groups_and_epochs_and_seeds_differ_in_order() -> None:
    sampler = sampler_of(7)
    epochs = []
    for epoch in (0, 1):
        sampler.set_position(epoch)
        groups = groups_of(sampler)
        assert {group.epoch for group in sampler} == {epoch}
        assert [len(group) for group in groups] == [2, 2, 2, 1]
        assert len(groups) == len(sampler)
        assert sorted(row for group in groups for rows in group for row in rows) == list(range(21))
        epochs.append(groups)
    assert epochs[0] != epochs[1]
    sampler.set_position(0)
    assert groups_of(sampler) == epochs[0]
    assert groups_of(sampler_of(7, seed=6)) != epochs[0]


# ------------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize("resampled", [False, True])
def test_an_epoch_taken_up_by_1_4_2_and_1_processes_has_the_batches_of_one_that_was_not(
    resampled: bool,
) -> None:
    split, taken = random_split(150), []
    drawn = mock.Mock(draw=lambda rows, epoch: rows_of(split, rows)) if resampled else None

    def loaders(n: int, start: int) -> list[torch.utils.data.DataLoader]:
        made = [train_loader(split, rank=rank, n=n, resampler=drawn) for rank in range(n)]
        for loader in made:
            loader.sampler.set_position(1, start)
            assert len(loader) == len(one)  # wherever it begins
        return made

    one = train_loader(split, resampler=drawn)
    one.sampler.set_position(1, 0)
    whole = list(one)
    for n, groups in ((1, 3), (4, 2), (2, 4), (1, len(whole))):
        shares = zip(*loaders(n, len(taken)), strict=True)
        taken += [list(share) for share in itertools.islice(shares, groups)]
    assert len(taken) == len(whole) > 10
    for group, shares in zip(whole, taken):
        if resampled:  # each process cuts its rows into batches of its own
            rows = [i for share in shares for part in share for i in part.indices.tolist()]
            assert sorted(rows) == sorted(i for part in group for i in part.indices.tolist())
            continue
        assert {batch.n_group for batch in group} == {sum(batch.n_tokens for batch in group)}
        for batch, *parts in zip(group, *shares, strict=True):
            rows = batch.indices.tolist()
            for rank, part in enumerate(parts):
                assert part.indices.tolist() == (rows[rank :: len(parts)] or [-1])
                assert part.n_group == batch.n_group


def doubled(split: TokenizedSplit) -> mock.Mock:
    """A resampler that draws twice as many tokens."""
    pairs = [(2 * split.src(i).tolist(), 2 * split.tgt(i).tolist()) for i in range(len(split))]
    return mock.Mock(draw=lambda rows, epoch: rows_of(split_of(pairs), rows))


def rows_of(split: TokenizedSplit, rows: Sequence[int]) -> TokenizedSplit:
    return split_of([(split.src(row).tolist(), split.tgt(row).tolist()) for row in rows])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_batch_that_was_drawn_anew_is_cut_to_the_share_of_each_process(n: int) -> None:
    split = random_split(150)
    for part in itertools.chain(*train_loader(split, n=n, resampler=doubled(split))):
        widest = max(part.src.shape[1], part.tgt_out.shape[1])
        assert len(part.indices) in range(1, max(1, 64 // n // widest) + 1)


def test_the_largest_batches_are_as_long_as_they_are_drawn() -> None:
    split = random_split(40)
    settings = {"batch_by": "sentences", "batch_size": 8}
    [plain, *_] = largest_batches(train_loader(split, **settings))
    [longer, *_] = largest_batches(train_loader(split, **settings, resampler=doubled(split)))
    assert longer.src.shape == (8, 2 * plain.src.shape[1])


def test_a_rank_without_a_row_gets_one_that_counts_for_nothing() -> None:
    split = random_split(3)
    assert [] in groups_of(sampler_of(1, rank=4, world_size=5))[0]
    batch = collate(split, [], pad_id=PAD, bos_id=BOS)
    assert batch.src[0].tolist() == split.src(0).tolist()  # no row of all-masked keys
    assert (batch.tgt_out == PAD).all()
    assert batch.tgt_in[0, 0] == BOS
    assert (batch.n_tokens, batch.indices.tolist()) == (0, [-1])


# ------------------------------------------------------------------------------------------ collate


def test_padding_is_on_the_right_and_zero_is_an_ordinary_id() -> None:
    split = split_of([([3, 0, 5, EOS], [6, EOS]), ([4, EOS], [0, 7, 7, EOS])])
    batch = collate(split, [1, 0], pad_id=PAD, bos_id=BOS)
    assert batch.src.tolist() == [[4, EOS, PAD, PAD], [3, 0, 5, EOS]]
    assert batch.tgt_in.tolist() == [[BOS, 0, 7, 7], [BOS, 6, PAD, PAD]]
    assert batch.tgt_out.tolist() == [[0, 7, 7, EOS], [6, EOS, PAD, PAD]]
    assert batch.indices.tolist() == [1, 0]
    assert batch.flat.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.targets.tolist() == [0, 7, 7, EOS, 6, EOS]
    assert batch.n_tokens == 6
    for x in (batch.src, batch.tgt_in, batch.tgt_out, batch.indices, batch.flat):
        assert x.dtype == torch.int64


def test_decoding_may_start_from_the_pad_id_and_a_batch_moves_whole() -> None:
    batch = collate(split_of([([3, EOS], [6, 7, EOS])]), [0], pad_id=PAD, bos_id=PAD)
    assert batch.tgt_in.tolist() == [[PAD, 6, 7]]
    assert batch.n_tokens == 3
    moved = batch.to("meta")
    for x in (moved.src, moved.tgt_in, moved.tgt_out, moved.indices, moved.flat):
        assert x.device.type == "meta"
    assert moved.n_tokens == 3
    assert_same(batch.to("cpu"), batch)


# ------------------------------------------------------------------------------------------ loaders


def test_workers_and_resume_change_no_batch() -> None:
    split = random_split(60)
    plain, parallel = (train_loader(split, seed=3, num_workers=workers) for workers in (0, 2))
    plain.sampler.set_position(2)
    whole = list(plain)
    assert len(whole) == len(plain) > 4
    for start in (0, 3):
        parallel.sampler.set_position(2, start)
        groups = list(parallel)
        assert len(groups) == len(whole) - start
        for ours, theirs in zip(groups, whole[start:]):
            for a, b in zip(ours, theirs, strict=True):
                assert_same(a, b)
            assert not any(batch.src.is_shared() for batch in ours)  # it would keep files open
    rows = torch.cat([batch.indices for group in whole for batch in group])
    assert sorted(rows.tolist()) == list(range(60))


def answers_of_a_worker(dataset: torch.utils.data.Dataset, indices: list[int]) -> list[Any]:
    """What `dataset` has at `indices` in a process that begins as training's workers do."""
    loader = train_loader(random_split(4), num_workers=1)
    begun = {name: getattr(loader, name) for name in ("multiprocessing_context", "worker_init_fn")}
    probe = torch.utils.data.DataLoader(
        dataset, sampler=indices, batch_size=None, num_workers=1, **begun
    )
    return list(probe)


def test_workers_never_collect_what_lay_in_the_parents_memory() -> None:
    """Tensors of a GPU among it, which only the parent may free: the worker would abort."""
    collected: list[int] = []

    class Node:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            collected.append(0)

    class Collector(torch.utils.data.Dataset):
        def __getitem__(self, index: int) -> int:
            gc.collect()
            return len(collected)

    gc.disable()
    try:
        Node()
        assert answers_of_a_worker(Collector(), [0]) == [0]
    finally:
        gc.enable()
    gc.collect()
    assert collected == [0]


def test_workers_leave_signals_to_the_training_process() -> None:
    before = signal.getsignal(signal.SIGINT)

    class Survivor(torch.utils.data.Dataset):
        def __getitem__(self, index: int) -> bool:
            if index == 0:
                for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
                    os.kill(os.getpid(), number)
            # A second one would end the worker.
            return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    assert answers_of_a_worker(Survivor(), [0, 1]) == [True, True]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("n", [1, 3, 8])
def test_evaluation_sees_each_row_once_over_all_ranks(n: int) -> None:
    seen: list[int] = []
    for rank in range(n):
        place = {"rank": rank, "world_size": n}
        loader = make_eval_loader(random_split(23), batch_size=4, pad_id=PAD, bos_id=BOS, **place)
        batches = list(loader)
        assert len(batches) == len(loader) == len(range(rank, 6, n))  # of 8 ranks two have none
        assert all(len(batch.indices) <= 4 for batch in batches)
        seen += [i for batch in batches for i in batch.indices.tolist()]
        widths = [batch.src.shape[1] for batch in batches]
        assert widths == sorted(widths, reverse=True)
    assert sorted(seen) == list(range(23))


def test_very_long_pairs_make_smaller_batches_of_an_evaluation() -> None:
    lengths = (2000, 1), (400, 1), (300, 300), (9, 9), (9, 1500), (9, 9)
    split = split_of([([EOS] * src, [EOS] * tgt) for src, tgt in lengths])
    loader = make_eval_loader(split, batch_size=4, pad_id=PAD, bos_id=BOS)
    assert [batch.indices.tolist() for batch in loader] == [[0], [1], [2], [4], [5, 3]]
    loader = make_eval_loader(split, batch_size=6, pad_id=PAD, bos_id=BOS)
    assert [batch.indices.tolist() for batch in loader] == [[0], [1], [2], [4], [5, 3]]


def test_the_largest_batches_are_the_largest_on_either_side() -> None:
    lengths = (12, 1), (12, 1), (1, 9), (1, 9), (7, 1), (1, 7)  # pairs, logits, padded tokens
    split = split_of([([EOS] * src, [EOS] * tgt) for src, tgt in lengths])
    loader = train_loader(split, batch_by="sentences", batch_size=2)
    assert sorted(batch.tgt_out.shape[1] for batch in largest_batches(loader)) == [1, 7, 9]


def test_each_half_of_a_batch_is_as_wide_as_it_needs() -> None:
    split = split_of([([EOS] * n, [EOS] * n) for n in (9, 7, 3, 2)])
    halves = collate(split, range(4), pad_id=PAD, bos_id=BOS).halves(PAD)
    widths = [(h.src.shape[1], h.tgt_in.shape[1], h.tgt_out.shape[1]) for h in halves]
    assert widths == [(9, 9, 9), (3, 3, 3)]
