"""What a run leaves behind: its folder, its checkpoints, its logs."""

import html
import itertools
import logging
import math
import re
import resource
import shutil
import threading
import zipfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
from ignite.engine import Engine
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.plugins.custom_scalar import layout_pb2
from toy_runs import content, log_of, run_here, toy_config, validation_loss

import train as script
from checkpoints.content import checkpoint_config, read_checkpoint, write_checkpoint
from checkpoints.run import BEST, REGULAR, Run, create_run, newest_first, newest_run
from configs.load import read_config_json
from configs.schema import Config, EvaluateConfig, TrainConfig
from configs.serialize import apply_overrides
from tokenizer.build import load_tokenizer
from training import saving
from training.log import BOTH, RunLog, is_validated
from training.saving import AtomicSaver, Checkpoints
from training.start import Progress
from utils.errors import UserError


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    shown = "train.log_attention=true model.n_heads=1 evaluate.bleu_every_epochs=3 "
    shown += "evaluate.bleu_sentences=5"
    return toy_config(folder, "optim.accumulate=2 train.max_epochs=4", shown)


@pytest.fixture(scope="module")
def run(config: Config) -> Run:
    return run_here(config).run


def table_of(events: EventAccumulator, tag: str) -> str:
    return events.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode()


def test_the_folder_of_a_run(config: Config, run: Run) -> None:
    assert re.fullmatch(r"toy_\d{8}_\d{6}", run.path.name)
    inside = ".lock checkpoints config.json logs tokenizer".split()
    assert sorted(p.name for p in run.path.iterdir()) == inside
    assert read_config_json(run.config_file) == config
    assert not list(run.path.rglob("*.tmp"))


def test_the_names_and_the_number_of_checkpoints(run: Run) -> None:
    assert [p.name for p in run.files(REGULAR)] == [f"regular_checkpoint_{e}.pt" for e in (3, 4)]
    losses = {step // 10: line["loss"] for step, line in log_of(run, "validation").items()}
    lowest, *_ = best_two = sorted(losses, key=losses.__getitem__)[:2]
    names = {e: f"best_checkpoint_{e}_loss=-{losses[e]:.4f}.pt" for e in losses}
    assert [p.name for p in run.files(BEST)] == [names[e] for e in sorted(best_two)]
    assert run.best().name == names[lowest]
    assert content(run.best())["progress"]["best_loss"] == losses[lowest]


@pytest.mark.parametrize(("by", "name"), [("bleu", "BLEU"), ("chrf", "chrF")])
def test_the_highest_score_of_translations_chooses_where_it_is_asked_to(
    by: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = f"evaluate.bleu_every_epochs=1 evaluate.choose_by={by}"
    config = toy_config(tmp_path, chosen, "train.max_epochs=4 data.batch_size=400")
    caplog.set_level(logging.INFO)
    bleu, chrf = (f"training.validation.{each}_score" for each in ("sacrebleu", "chrf"))
    values = [[9.0, 9.0, 9.0, 5.0], [4.0, 3.0, 2.0, 1.0]][:: 1 if by == "bleu" else -1]
    with mock.patch(bleu, side_effect=values[0]) as scores, mock.patch(chrf, side_effect=values[1]):
        script.work(args=script.parse_args([]), config=config, resume=None)
    assert {call.args[2] for call in scores.call_args_list} == {"en"}  # of the target
    run = Run(Path(capsys.readouterr().out.rstrip()))
    losses = [line["loss"] for line in log_of(run, "validation").values()]
    assert losses == sorted(losses, reverse=True)
    # Of equals the newer are kept, the newest first.
    names = [f"best_checkpoint_{epoch}_{by}=9.0000.pt" for epoch in (3, 2)]
    assert [path.name for path in run.best_first()] == names
    progress = content(run.by_age()[-1])["progress"]
    assert (progress["best_loss"], progress["best_metric"]) == (losses[-1], 9.0)
    assert caplog.messages[-1] == f"finished: best validation {name} 9.0000: {run.best()}"


def test_a_checkpoint_holds_all_that_it_takes_to_use_it(config: Config, run: Run) -> None:
    for path in run.by_age():
        payload = content(path)  # weights_only=True
        assert checkpoint_config(payload) == config
        assert payload["format"]["version"] == 1
        assert payload["tokenizer"]["fingerprint"] == load_tokenizer(run.tokenizer).fingerprint()
        assert payload["progress"]["epoch"] == int(re.search(r"checkpoint_(\d+)", path.name)[1])
        assert {"optimizer", "scheduler", "scaler"} <= payload.keys()


@pytest.mark.parametrize("batch_size", [1, 21])
def test_the_loss_in_a_name_is_that_of_the_weights_inside(run: Run, batch_size: int) -> None:
    for path in run.files(BEST):
        assert f"_loss=-{validation_loss(path, batch_size):.4f}.pt" in path.name


def test_a_sentence_too_long_for_a_map_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.validation.MOST_TOKENS", 1)
    config = toy_config(tmp_path, "train.max_steps=1 train.log_attention=true")
    events = EventAccumulator(str(run_here(config).run.logs))
    events.Reload()
    assert events.Tags()["scalars"]
    assert not events.Tags()["images"]


def test_tensorboard_has_every_promised_tag(run: Run) -> None:
    events = EventAccumulator(str(run.logs), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    train = {f"train/{name}" for name in "grad_norm learning_rate tokens_per_second".split()}
    validation = {f"validation/{name}" for name in ("perplexity", "bleu", "chrf")}
    both = {f"{kind}/{name}" for kind in ("train", "validation") for name in ("loss", "accuracy")}
    assert train | validation | both <= set(tags["scalars"])
    assert {"config/text_summary", "validation/translations/text_summary"} <= set(tags["tensors"])
    [charts] = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(charts.tensor_proto.string_val[0])
    drawn = [list(chart.multiline.tag) for chart in layout.category[0].chart]
    assert drawn == [[f"{kind}/{of}$" for kind in ("train", "validation")] for of in BOTH]
    assert {f"attention/{kind}" for kind in ("encoder", "decoder", "cross")} == set(tags["images"])
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert "| model.d_model | 16 |" in table_of(events, "config")
    # A head, a line, and evaluate.bleu_sentences.
    assert len(table_of(events, "validation/translations").splitlines()) == 2 + 5
    assert [event.step for event in events.Scalars("validation/bleu")] == [30, 40]
    assert len(events.Scalars("train/loss")) == 40


def test_metrics_jsonl_repeats_what_tensorboard_shows(run: Run) -> None:
    train, validation = log_of(run), log_of(run, "validation")
    assert list(train) == list(range(1, 41))
    assert list(validation) == [10, 20, 30, 40]
    figures = {"loss", "accuracy", "perplexity", "bleu", "chrf"}
    assert validation[30].keys() == {"step", "epoch"} | figures
    assert {path.name for path in run.logs.glob("*.hyp")} == {
        f"validation_{step}.hyp" for step in (30, 40)
    }
    assert validation[20]["perplexity"] == pytest.approx(math.exp(validation[20]["loss"]))
    assert all(0 <= line["accuracy"] <= 1 and line["grad_norm"] > 0 for line in train.values())


def test_going_on_from_an_earlier_checkpoint_drops_what_came_after(
    tmp_path: Path, run: Run
) -> None:
    copy = create_run(tmp_path, "copy")
    shutil.copytree(run.logs, copy.logs, dirs_exist_ok=True)
    lines = (run.logs / "metrics.jsonl").read_text("utf-8") + '{"kind": "train", "st'  # killed
    (copy.logs / "metrics.jsonl").write_text(lines, "utf-8")
    (copy.logs / "validation_20.hyp").touch()
    with RunLog(copy, first_step=20):
        pass
    assert [path.name for path in copy.logs.glob("*.hyp")] == ["validation_20.hyp"]
    assert list(log_of(copy)) == list(range(1, 21))
    assert list(log_of(copy, "validation")) == [10, 20]
    events = EventAccumulator(str(copy.logs), size_guidance={"scalars": 0})
    events.Reload()
    for kind in ("train", "validation"):
        steps = [event.step for event in events.Scalars(f"{kind}/loss")]
        assert steps == list(log_of(copy, kind))


def test_a_validation_counts_once_its_line_is_whole(tmp_path: Path, run: Run) -> None:
    assert [step for step in (1, 10, 11, 40, 400) if is_validated(run, step)] == [10, 40]
    copy = create_run(tmp_path, "copy")
    lines = (run.logs / "metrics.jsonl").read_bytes()
    (copy.logs / "metrics.jsonl").write_bytes(lines[: lines.rindex(b"}")])
    assert not is_validated(copy, 40)


def test_a_table_keeps_its_columns_and_other_threads_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = r"a|b `code|` _le_ __init__ max_steps *so* [x](http://y) \* <b> &amp;"
    written += "\ncells"
    said: list[str] = []
    told = lambda args: said.append(str(args.exc_value))  # noqa: E731
    monkeypatch.setattr(threading, "excepthook", told)

    def fail() -> None:
        raise ValueError(type(threading.current_thread()).__name__)

    theirs = type("Writer", (threading.Thread,), {"__module__": "tensorboard.summary.writer"})
    run = create_run(tmp_path, "mine")
    with RunLog(run, first_step=0) as log:
        log.table("pairs", ("source", "found"), [(written, "c")], 1)
        for kind in (threading.Thread, theirs):
            thread = kind(target=fail)
            thread.start()
            thread.join()
    assert said == ["Thread"]
    assert threading.excepthook is told
    events = EventAccumulator(str(run.logs))
    events.Reload()
    table = markdown_to_safe_html(table_of(events, "pairs"))
    [shown] = re.findall("<td>(.*)</td>\n<td>c</td>", table)
    assert html.unescape(shown) == written


def test_a_validation_is_shown_before_the_line_that_says_so(tmp_path: Path) -> None:
    told = mock.Mock()
    log = RunLog(create_run(tmp_path, "mine"), first_step=0)
    with log, mock.patch.multiple(log, file=told, writer=told):
        log.scalars("validation", {"loss": 1.5}, step=3, epoch=1)
    assert [name for name, *_ in told.mock_calls] == ["add_scalar", "flush", "write"]


def test_of_two_errors_the_log_leaves_the_first(tmp_path: Path) -> None:
    def full() -> RunLog:
        log = RunLog(create_run(tmp_path, "mine"), first_step=0)
        log.file.close()
        log.file = open("/dev/full", "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        log.file.write("much")  # without the end of a line
        return log

    with pytest.raises(KeyError), full():
        raise KeyError
    words = r"^cannot write .*: No space left .* free some space"
    with pytest.raises(UserError, match=words), full():
        pass
    with pytest.raises(UserError, match=words), full() as log:
        log.scalars("train", {}, step=1, epoch=1)


def test_the_newest_run_is_the_one_begun_last_that_has_a_checkpoint(tmp_path: Path) -> None:
    dated = "of_20300101_20240601_000000"  # a name that ends in a date
    copy = "a_20250101_000000_copy"  # whose name says when its run was begun
    for name in ("a_20250101_000000", copy, "z_20240101_000000", "b_20260101_000000", dated):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        if not name.startswith("b"):
            (tmp_path / name / "checkpoints" / "regular_checkpoint_1.pt").touch()
    assert newest_run(tmp_path).path.name == "a_20250101_000000"
    with pytest.raises(UserError, match="train one first"):
        newest_run(tmp_path / "none")


def test_a_folder_of_runs_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.symlink_to(tmp_path / "a disk that is not there")
    with pytest.raises(UserError, match=f"^cannot write {runs}: File exists"):
        create_run(runs, "run")
    file = tmp_path / "gone" / "checkpoints" / "x.pt"  # of a run that has gone: none is made anew
    with pytest.raises(UserError, match=f"^cannot write {file}: No such file"):
        write_checkpoint(file, {})


def test_a_folder_of_runs_may_be_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = create_run("~/runs", "run")
    (run.checkpoints / "regular_checkpoint_1.pt").touch()
    assert newest_run("~/runs").path == run.path
    assert run.path.parent == tmp_path / "runs"


def test_a_clock_that_goes_backwards_makes_no_new_run_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, made = datetime(2026, 10, 25, 2, 59, 59), []
    for name, minutes in (("z", 0), ("a", 0), ("b", -60), *[("m", -59)] * 9, ("k", 1)):
        with mock.patch("checkpoints.run.datetime") as clock:
            clock.now.return_value = now + timedelta(minutes=minutes)
            made.append(create_run(tmp_path, name))
        (made[-1].checkpoints / "regular_checkpoint_1.pt").touch()
    assert [run.path for run in newest_first(tmp_path)] == [run.path for run in made[::-1]]
    names = [run.path.name for run in made]
    assert names[:3] == ["z_20261025_025959", "a_20261025_025959_2", "b_20261025_025959_3"]
    assert names[-2:] == ["m_20261025_025959_12", "k_20261025_030059"]
    assert len(caplog.messages) == 10
    assert caplog.messages[0].startswith(f"{made[1].path} is dated later than the clock")


NEWER = {"format": {"version": 99}, "config": {}, "model": {}, "tokenizer": {}}


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (b"", "not a whole checkpoint"),
        (b"hello", "not a whole checkpoint"),
        ({"weights": torch.zeros(2)}, "not a checkpoint of this project"),
        (Path("code"), "not a whole checkpoint"),  # pickled code is never run
        (NEWER, "checkpoint format 99 is newer"),
        ("packed", "not a whole checkpoint .*compressed, which torch does not write"),
        (None, "no such checkpoint"),
    ],
)
def test_a_file_that_is_no_checkpoint_gets_one_line(tmp_path: Path, inside, words: str) -> None:
    path = tmp_path / "regular_checkpoint_1.pt"
    if isinstance(inside, bytes):
        path.write_bytes(inside)
    elif inside == "packed":  # a thousandth of what it unfolds to
        torch.save(NEWER, tmp_path / "plain")
        with (
            zipfile.ZipFile(tmp_path / "plain") as plain,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for name in plain.namelist():
                packed.writestr(name, plain.read(name))
    elif inside is not None:
        torch.save(inside, path)
    with pytest.raises(UserError, match=words) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_full_disk_ends_the_run_and_harms_no_checkpoint(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "train.max_epochs=1 data.batch_size=400")
    run = run_here(config).run
    before = {path: path.read_bytes() for path in run.by_age()}
    longer = apply_overrides(config, ["train.max_epochs=2"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(map(len, before.values())) // 2, hard))
    try:
        with pytest.raises(UserError, match=r"^cannot write .*checkpoint_2.* free some space"):
            run_here(longer, resume=run.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in run.by_age()} == before
    assert not list(run.path.rglob("*.tmp"))
    run_here(longer, resume=run.path)  # with room again it goes on
    assert list(log_of(run)) == list(range(1, 15))


def kept(
    folder: Path, *names: str, trainer: Engine | None = None, **every: int
) -> tuple[Run, Checkpoints]:
    run = Run(folder)
    run.checkpoints.mkdir(parents=True)
    for name in names:
        (run.checkpoints / name).touch()
    model, trainer = torch.nn.Linear(1, 1), trainer or Engine(lambda *_: None)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    evaluate = EvaluateConfig(**every, bleu_every_epochs=0)
    config = Config(train=TrainConfig(keep_best=2), evaluate=evaluate)
    return run, Checkpoints(run, parts, trainer, config, before=lambda: None)


@pytest.mark.parametrize("over", [False, True])
def test_the_best_of_a_last_validation_within_an_epoch_stays_where_the_run_is_over(
    tmp_path: Path, over: bool
) -> None:
    run, checkpoints = kept(tmp_path, *(f"best_checkpoint_{e}_loss=-1.5000.pt" for e in (1, 2)))
    checkpoints.resume(Progress(epoch_length=10, step=14, epoch=1, best_loss=1.5), over=over)
    assert [item.filename[16] for item in checkpoints.best._saved] == ["1", "2"][: 1 + over]
    assert (run.checkpoints / "left_after_update_14").exists() != over


def test_of_equal_losses_a_run_that_goes_on_keeps_the_later_ones(tmp_path: Path) -> None:
    run, checkpoints = kept(tmp_path, *(f"best_checkpoint_{e}_loss=-1.5000.pt" for e in (9, 10)))
    run.saved_at(10, 1).touch()
    progress = Progress(epoch_length=1, step=10, epoch=10, best_loss=1.5)
    checkpoints.resume(progress, over=False)
    assert [item.filename[16:18] for item in checkpoints.best._saved] == ["9_", "10"]
    # The last is of an end by a limit, where no validation was due, and the limit was raised.
    checkpoints.resume(replace(progress, best_loss=1.6), over=False)
    assert [item.filename[16:18] for item in checkpoints.best._saved] == ["9_"]


def test_the_best_of_an_end_that_counts_for_nothing_is_put_away(tmp_path: Path) -> None:
    names = "best_checkpoint_2_loss=-1.5000.pt", "best_checkpoint_3_loss=-1.6000.pt"
    by_step = [name.replace("_checkpoint", "_step_checkpoint") for name in names]
    cases = (("every_epochs", names, 10), ("every_steps", by_step, 1))
    for (field, files, n), every, alone in itertools.product(cases, (1, 2), (False, True)):
        run, checkpoints = kept(tmp_path / f"{field}{every}{alone}", *files, **{field: every})
        progress = Progress(epoch_length=10, step=3 * n, epoch=3 * n // 10, best_loss=1.5)
        if alone:  # what is resumed
            checkpoints.resume(progress, over=False)
            assert len(checkpoints.best._saved) == 2
            continue
        run.saved_at(3 * n, 10).touch()
        checkpoints.resume(progress, over=False)
        left = [item.filename for item in checkpoints.best._saved]
        assert left == [*files[1:], files[0]][every - 1 :]


def test_of_losses_that_a_name_shows_alike_the_first_is_the_better(tmp_path: Path) -> None:
    trainer, evaluator, found = Engine(lambda *_: None), Engine(lambda *_: None), []
    run, checkpoints = kept(tmp_path, trainer=trainer)
    for epoch, loss in enumerate((1.3, 1.50004, 1.50001, 1.4), start=1):
        trainer.state.epoch, evaluator.state.metrics = epoch, {"loss": loss}
        checkpoints.best(evaluator)
        found.append("".join(path.name[16] for path in run.files(BEST)))
    assert found == ["1", "12", "12", "14"]


def test_of_later_checkpoints_the_newest_is_put_away_first(tmp_path: Path) -> None:
    _, checkpoints = kept(tmp_path, *(f"regular_checkpoint_{epoch}.pt" for epoch in (9, 10, 11)))
    with mock.patch.object(saving.os, "replace", side_effect=saving.os.replace) as moved:
        checkpoints.resume(Progress(epoch_length=1, step=9, epoch=9), over=False)
    assert [call.args[0].stem[19:] for call in moved.call_args_list] == ["11", "10"]


def test_a_log_that_cannot_be_written_costs_no_checkpoint(tmp_path: Path) -> None:
    saver = AtomicSaver(tmp_path, mock.Mock(side_effect=UserError("full")))
    with pytest.raises(UserError, match="full"):
        saver({"optimizer": {"state": {}}, "model": {"w": torch.ones(1)}}, "x.pt")
    assert (tmp_path / "x.pt").is_file()
