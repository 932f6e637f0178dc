"""What searches changes no translation: CTranslate2, processes, and what each of them refuses."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import ROOT
from made_runs import Scripts, best_of, scripted, untrained_run
from tiny_models import LIMITS, POSITIONS, sources, tiny_model

import inference
import test as test_script
from checkpoints import ctranslate2
from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.ctranslate2 import MAX_POSITIONS
from configs.schema import DecodeConfig, Fire, Learnable, Sampling
from data.corpora.build import build_corpus
from models.decoding.beam import beam_search
from translation import engines
from translation.loading import LoadedRun, load_run
from translation.search import BatchSearch
from translation.workers import Processes, _work
from utils.errors import UserError
from utils.files import sha256

CPU = torch.device("cpu")
ONE = {"compute_type": "float32", "inter_threads": 1, "intra_threads": 1}


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights whose translations end, and never hold padding or the start id."""
    run = untrained_run(trained_run, tmp_path_factory.mktemp("engines"), tie_embeddings="none")
    loaded = load_run(run)
    state, tokenizer = loaded.model.state_dict(), loaded.tokenizer
    for name, weight in state.items():
        weight.mul_(6 if "cross_attention" in name and weight.dim() == 2 else 1)
    # The first number of every hidden state is 1, so that its weights are a bias of the logits.
    state["decoder.norm.weight"][0], state["decoder.norm.bias"][0] = 0, 1
    state["output.weight"][:, 0] = 0
    state["output.weight"][tokenizer.eos_id, 0] = 0.5
    state["output.weight"][[tokenizer.pad_id, tokenizer.bos_id], 0] = -40
    torch.save({**read_checkpoint(best_of(run)), "model": state}, best_of(run))
    return run


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedRun:
    return load_run(run)


def texts_of(run: Path) -> list[str]:
    data = checkpoint_config(read_checkpoint(best_of(run))).data
    return sorted(set(build_corpus(data).load("train").src))[::8][:40]


@pytest.fixture(scope="module")
def file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "source.fr"
    path.write_text("".join(f"{text}\n" for text in texts_of(run)), "utf-8")
    return path


infer = scripted(inference.main)


# -------------------------------------------------------------------------------------- CTranslate2


def searchers(loaded: LoadedRun, *engines: engines.CTranslate2) -> list[BatchSearch]:
    """Ours, and one of each engine."""
    return [BatchSearch(loaded.model, loaded.tokenizer, CPU, each) for each in (None, *engines)]


@pytest.mark.parametrize("more_steps", [engines.MORE_STEPS, -3], ids=["as_it_is", "too_few"])
def test_ctranslate2_finds_what_our_search_finds(
    more_steps: int, run: Path, loaded: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MORE_STEPS", more_steps)
    engine = loaded.ctranslate2(CPU, greedy=False, **ONE)
    searched = mock.Mock(side_effect=engine._translate)
    monkeypatch.setattr(engine, "_translate", searched)
    ours, theirs = searchers(loaded, engine)
    ids = ours.tokenizer.encode_src_batch(texts_of(run))
    n_unfinished = 0
    for beam_size, n_best, alpha, ratio, max_len in (
        (1, 1, 0.6, 2.0, 24),
        (4, 1, 0.0, 2.0, 24),
        (4, 1, 0.6, 2.0, 24),
        (4, 4, 1.0, 2.0, 24),
        (4, 4, 0.0, 0.1, 24),  # many are cut off, at limits of their own
        (8, 1, 0.0, 2.0, 4),  # some while another one has ended
    ):
        decode = DecodeConfig(beam_size=beam_size, n_best=n_best, length_penalty=alpha)
        decode = replace(decode, max_len=max_len, max_len_ratio=ratio, batch_size=16)
        expected = ours.search_ids(ids, decode, greedy=beam_size == 1)
        with monkeypatch.context() as patched:
            if beam_size > 1:
                fallen_back = mock.Mock()
                patched.setattr("translation.search.beam_search", fallen_back)
            found = theirs.search_ids(ids, decode, greedy=beam_size == 1)
        for a, b in zip(expected, found, strict=True):
            assert [(h.ids, h.finished) for h in a] == [(h.ids, h.finished) for h in b]
            for x, y in zip(a, b):
                assert (x.log_prob, x.score) == pytest.approx((y.log_prob, y.score), abs=1e-4)
            n_unfinished += not a[0].finished
    assert n_unfinished > 10
    assert searched.call_count > 5 * 3  # three batches: some sentences are searched anew
    samples = replace(loaded.config.decode, search=Sampling(seed=1), n_best=1)  # not an engine's
    drawn = [each.search_ids(ids[:4], samples, greedy=False) for each in (ours, theirs)]
    assert drawn[0] == drawn[1]
    # more than it counts to, on either side
    long = replace(decode, max_len=MAX_POSITIONS + 1, max_len_ratio=1e-9)
    with mock.patch.object(engine, "search") as asked:
        theirs.search_ids(ids[:1], long, greedy=True)
        theirs.search_ids([[7] * MAX_POSITIONS + ids[0][-1:]], decode, greedy=True)
        theirs.search_ids([ids[0][-1:]], decode, greedy=True)  # EOS alone
    assert not asked.called
    begun: dict[str, Any] = {"greedy": False, "prefixes": [[7], [], [9, 8], [7]]}
    expected = ours.search_ids(ids[:4], decode, **begun)
    with mock.patch.object(engine, "search", wraps=engine.search) as asked:
        found = theirs.search_ids(ids[:4], decode, **begun)
    assert asked.call_args.args[0] == ids[1:2]  # what begins as told is searched by torch
    assert [[h.ids for h in each] for each in found] == [[h.ids for h in e] for e in expected]


def test_a_table_of_positions_is_used_to_its_end_and_no_further(run: Path, tmp_path: Path) -> None:
    n = load_run(run).config.data.max_len
    loaded = load_run(untrained_run(run, tmp_path, position=Learnable(max_positions=n)))
    decode = replace(loaded.config.decode, max_len=n, max_len_ratio=99.0, n_best=1)
    both = searchers(loaded, loaded.ctranslate2(CPU, greedy=False, **ONE))
    eos_id = loaded.tokenizer.eos_id
    for greedy in (True, False):
        ours, theirs = (each.search_ids([[7, eos_id]], decode, greedy=greedy) for each in both)
        assert len(ours[0][0].ids) == n  # cut off
        assert [h.ids for h in theirs[0]] == [h.ids for h in ours[0]]
        with pytest.raises(UserError, match=f"a source of {n + 1} tokens is too long"):
            both[1].search_ids([[7] * n + [eos_id]], decode, greedy=greedy)


def test_a_last_step_in_which_all_have_ended_hides_what_lives_on() -> None:
    """One that ended is believed when no live one, which scores below 0, can overtake it."""
    penalties = [1.0, 1.0, 2.0, 3.0, 4.0]
    for log_probs, ends in (((-1.0, -2.0), False), ((0.0, -2.0), True)):
        hypotheses = [["a", "</s>"], ["b", "</s>"]]
        result = mock.Mock(hypotheses=hypotheses, scores=log_probs)
        of_it = engines.CTranslate2._ends(mock.Mock(_eos="</s>"), result, 1, penalties, 4)
        assert of_it == ([(hypotheses[0], log_probs[0])], ends)


def test_where_padding_is_probable_our_own_search_ranks(trained_run: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"z\xff")  # not UTF-8
    odd.mkdir()
    loaded = load_run(untrained_run(trained_run, odd))
    engine = loaded.ctranslate2(CPU, greedy=False, **ONE)
    ours, theirs = searchers(loaded, engine)
    ids = ours.tokenizer.encode_src_batch(texts_of(trained_run))[:8]
    limits = mock.Mock(alpha=0.6)
    assert [] in engine.search(ids, limits, [24] * 8, beam_size=4, n_best=1)
    how = {"decode": loaded.config.decode, "greedy": False}
    assert ours.search_ids(ids, **how) == theirs.search_ids(ids, **how)


def test_what_an_engine_finds_without_numbers_is_refused(trained_run: Path, tmp_path: Path) -> None:
    loaded = load_run(untrained_run(trained_run, tmp_path))
    loaded.model.state_dict()["decoder.norm.weight"][0] = torch.nan
    for greedy in (True, False):
        for searcher in searchers(loaded, loaded.ctranslate2(CPU, greedy=greedy, **ONE)):
            with pytest.raises(UserError, match="in float32 is not a number: train it again"):
                searcher.search_ids([[7, 2]], loaded.config.decode, greedy=greedy)


def test_an_export_is_made_once_and_anew_for_another_checkpoint(
    loaded: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mock.Mock(side_effect=ctranslate2.convert)
    monkeypatch.setattr(engines.ctranslate2, "convert", made)
    run = replace(loaded, run=type(loaded.run)(tmp_path))
    home, stem = tmp_path / "ctranslate2", loaded.checkpoint.stem
    there, gone = "regular_checkpoint_7", "best_step_checkpoint_7_loss=-1.2"
    of_others = [home / f"{name}-{0:016x}" for name in ("averaged", f"x_{stem}", there)]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / f"checkpoints/{there}.pt").touch()
    # Of a killed process, and of a checkpoint that is there no longer.
    leftovers = home / f".{stem}-{0:016x}.1234.tmp", home / f"{gone}-{0:016x}"
    for folder in (*leftovers, *of_others):
        folder.mkdir(parents=True)

    def export() -> None:
        run.ctranslate2(CPU, greedy=True, **ONE)

    at_once = [threading.Thread(target=export) for _ in range(2)]
    for each in at_once:
        each.start()
    for each in at_once:
        each.join()
    assert made.call_count == 1
    [first] = {*home.glob(f"*{stem}*")} - {*of_others}
    changed = tmp_path / loaded.checkpoint.name
    changed.write_bytes(loaded.checkpoint.read_bytes() + b"x")
    run = replace(run, checkpoint=changed, checksum=sha256(changed))
    export()
    assert made.call_count == 2
    [second] = {*home.glob(f"*{stem}*")} - {*of_others}
    assert second != first
    assert all(folder.is_dir() for folder in of_others)
    assert not any(folder.exists() for folder in leftovers)


def test_auto_says_what_it_takes_and_why_not(
    infer: Scripts, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fire").mkdir()
    fire = untrained_run(run, tmp_path / "fire", position=Fire())
    text = ("--src_text", "Le chat dort.", "--max_len", "9")
    for args, said in (
        ((run,), f"engine: ctranslate2 {version('ctranslate2')} in float32"),
        ((run, "--search", "diverse"), "engine: torch, since decode.search = 'diverse': CTran"),
        ((run, "--search", "sample"), "engine: torch, since decode.search = 'sample': CTran"),
        ((run, "--beam_size", "301"), "engine: torch, since decode.beam_size = 301: CTranslate2 t"),
        ((run, run), "engine: torch, since CTranslate2 takes one model, not an ensemble"),
        ((fire,), "engine: torch, since model.position.kind = 'fire' cannot be exported"),
    ):
        ours = infer("--model_path", *args, *text)
        found = infer("--model_path", *args, *text, "--engine", "auto")
        assert (found.code, found.out) == (0, ours.out), found
        assert found.err.startswith(said)
        assert found.err.split("\n", maxsplit=1)[1] == ours.err
    lacking = mock.Mock(side_effect=RuntimeError("Library libcublas.so.12 is not found"))
    with mock.patch("ctranslate2.Translator", return_value=mock.Mock(translate_batch=lacking)):
        found = infer("--model_path", run, *text, "--engine", "auto")
    assert found.code == 0
    assert re.match("engine: torch, since CTranslate2 .*libcublas.so.12 is not found", found.err)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    found = infer("--model_path", run, *text, "--engine", "auto")
    assert found.err.startswith("engine: torch, since the package ctranslate2 is not installed")


def test_a_lower_precision_has_results_of_its_own_and_the_exact_loss(
    run: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPUTES_BF16", "yes")
    score = in_process(test_script.main)
    few = ("--model_path", run, "--limit", "4", "--set", "evaluate.bootstrap_samples=2")
    exact = ("--engine", "ctranslate2")
    for args in ((), exact, (*exact, "--compute_type", "int8"), ("--precision", "bf16")):
        assert score(*few, *args).code == 0
    records = {path.name: path.read_text() for path in (run / "results").glob("*_scores.json")}
    name = "test_first4_beam{}_scores.json".format
    assert records.keys() == {name(""), name("_ctranslate2_int8"), name("_bfloat16")}
    precisions = {json.loads(text)["precision"] for text in records.values()}
    assert precisions == {"float32", "ctranslate2_int8", "bfloat16"}
    assert len({json.loads(text)["loss"] for text in records.values()}) == 1


def test_every_scheme_searches_with_its_weights_cast() -> None:
    src, limits = sources(3, 5, 8), replace(LIMITS, max_len=5)
    for name, position in POSITIONS.items():
        model = tiny_model(position)
        cast = beam_search(deepcopy(model).bfloat16(), src, limits, beam_size=3, n_best=1)
        for row, [found] in zip(src, cast):  # which of two near equals wins is the processor's
            ids = torch.tensor([LIMITS.bos_id, *found.ids, LIMITS.eos_id])
            log_probs = model(row[None], ids[None, :-1]).log_softmax(-1)[0]
            n = len(found.ids) + found.finished
            exact = log_probs[:n].gather(1, ids[1 : n + 1, None]).sum().item()
            assert found.log_prob == pytest.approx(exact, rel=0.05, abs=0.1), name


# ---------------------------------------------------------------------------------------- processes


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_workers_write_the_same_bytes_in_order(
    engine: str, infer: Scripts, run: Path, file: Path, tmp_path: Path
) -> None:
    written = []
    for n in (1, 2):
        output = tmp_path / f"{n}.json"
        args = ("--model_path", run, "--src_file", file, "--output", output, "--json")
        args += ("--batch_size", "4", "--mbr", "chrf", "--engine", engine, "--workers", str(n))
        assert infer(*args).code == 0
        written.append(output.read_bytes())
    assert written[0] == written[1]
    assert written[0].count(b"\n") == 40


def test_two_processes_share_the_batches_until_one_dies(
    loaded: LoadedRun, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Processes(2, 1)
    alone = searchers(loaded)[0]
    shared = replace(alone, workers=workers)
    how: dict[str, Any] = {"decode": replace(loaded.config.decode, batch_size=2), "greedy": False}
    ids = loaded.tokenizer.encode_src_batch(texts_of(run))
    expected = alone.search_ids(ids, **how)
    [(connection, process)] = workers._others.items()
    assert connection.poll(60)  # it has begun
    here, search_ids = [], BatchSearch.search_ids

    def counted(self: BatchSearch, *args: Any, **options: Any) -> Any:
        here.append(self)
        if self.workers is None:  # the other has one done: on a busy machine too it takes its share
            connection.poll(10)
        return search_ids(self, *args, **options)

    monkeypatch.setattr(BatchSearch, "search_ids", counted)
    assert shared.search_ids(ids, **how) == expected
    assert 1 < len(here) < 1 + 20 - 2  # itself and some of the 20 batches
    place = f"{loaded.model.output.weight.data_ptr():x}-"
    maps = Path("/proc/self/maps").read_text()
    assert [line for line in maps.splitlines() if line.startswith(place) and "torch_" in line]
    process.kill()
    with pytest.raises(UserError, match=r"one of the processes of --workers was killed by sig.* 9"):
        shared.search_ids(ids, **how)
    how["prefixes"] = [[7], []] * 2
    assert shared.search_ids(ids[:4], **how) == alone.search_ids(ids[:4], **how)


class Long:
    """A searcher whose answers are larger than what a pipe holds."""

    def search_ids(self, sources: list[int], decode: DecodeConfig, *, greedy: bool) -> Any:
        if greedy:
            raise ValueError("not so")
        return sources


def test_neither_side_waits_in_a_send_for_the_other_and_every_error_is_told() -> None:
    here, there = multiprocessing.Pipe()
    jobs = [[i] * 1_000_000 for i in range(2)]
    how = {"decode": DecodeConfig(), "greedy": False}

    def ask() -> None:
        for what in (Long(), *({"sources": job, **how} for job in jobs)):
            here.send(what)

    threads = {"n": 1, "threads": torch.get_num_threads()}
    working = threading.Thread(target=_work, args=(there,), kwargs=threads, daemon=True)
    asking = threading.Thread(target=ask, daemon=True)
    working.start()
    asking.start()
    asking.join(60)
    assert not asking.is_alive()  # although nothing has been received
    assert [here.recv() for _ in range(3)] == [None, *jobs]
    here.send({"sources": [], **how, "greedy": True})
    error = here.recv()
    assert (type(error), str(error)) == (ValueError, "not so")
    here.close()
    working.join()


@pytest.mark.parametrize("cause", [OSError("too many open files"), RuntimeError("no space left")])
def test_a_model_that_cannot_be_shared_is_no_dead_process(cause: Exception) -> None:
    connection = mock.Mock(send=mock.Mock(side_effect=cause))
    with pytest.raises(UserError, match=rf"--workers 1 .*{cause}.* \(ulimit -n\).*--shm-size"):
        Processes(1, 1)._send(connection, "model")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl_c", "killed"])
def test_no_process_outlives_the_command(number: signal.Signals, run: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.fr"
    source.write_text("Oui.\n" * 50_000)
    command = [sys.executable, "inference.py", "--model_path", run, "--workers", "2"]
    command += ["--src_file", source, "--search", "greedy", "--max_len", "4"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams) as running:
        assert running.stdout is not None
        running.stdout.readline()
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert len(children) >= 1
        if number == signal.SIGINT:
            os.killpg(running.pid, number)  # as a terminal does
        else:
            running.kill()
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) in {(130, "interrupted\n"), (-signal.SIGKILL, "")}
    until = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < until
        time.sleep(0.05)
