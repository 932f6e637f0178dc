"""`python inference.py`: its outputs, its inputs of every kind, and the one line that a mistake
gets.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch
from conftest import ROOT, run_script
from made_runs import Scripts, best_of, copy_run, untrained_run

import inference
from checkpoints.content import checkpoint_config, read_checkpoint
from configs.schema import Learnable
from configs.serialize import apply_overrides, to_dict
from data.corpora.phrasebook import PhrasebookCorpus
from translation.loading import load_run
from utils.lines import as_line, bounded_lines

LINE = re.compile(r"-\d+\.\d{4} .*")


@pytest.fixture
def infer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(inference.main, capsys, monkeypatch)


@pytest.fixture(scope="module")
def sentences(trained_run: Path) -> list[str]:
    """Distinct French sentences of many lengths."""
    corpus = checkpoint_config(read_checkpoint(best_of(trained_run))).data.corpus
    return sorted(set(PhrasebookCorpus(corpus).load("test").src))[::2][:16]


def lines_of(text: str) -> list[str]:
    assert text.endswith("\n")
    return text[:-1].split("\n")


# -------------------------------------------------------------------------------- as a user runs it


def test_a_sentence_gets_its_greedy_and_beam_blocks_from_the_newest_run(trained_run: Path) -> None:
    done = run_script(
        "inference.py",
        "--runs_dir",
        trained_run.parent,
        "--src_text",
        "Le chat dort.",
        "--n_best",
        "3",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    greedy_title, greedy, blank, beam_title, *ranked = lines_of(done.stdout)
    assert (greedy_title, blank, beam_title) == ("=== greedy search ===", "", "=== beam search ===")
    assert greedy
    assert len(ranked) == 3
    assert all(LINE.fullmatch(line) for line in ranked)
    assert [float(line.split()[0]) for line in ranked] == sorted(
        float(line.split()[0]) for line in ranked
    )[::-1]


def test_standard_input_gives_a_line_for_each_line_and_a_closed_pipe_ends_quietly(
    infer: Scripts, trained_run: Path
) -> None:
    ended = infer("--model_path", trained_run, stdin=b"Le chat dort.\n\nIl y a un livre.")
    assert ended.code == 0, ended.err
    assert [bool(line) for line in lines_of(ended.out)] == [True, False, True]

    command = (
        f"{sys.executable} inference.py --model_path {trained_run} --search greedy --max_len 3"
    )
    script = f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"
    piped = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        input="Le chat dort.\n" * 1100,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (piped.returncode, piped.stderr) == (0, "")
    assert len(lines_of(piped.stdout)) == 1


def test_help_and_a_wrong_command_line_answer_before_torch_is_imported() -> None:
    probe = (
        "import sys, inference\n"
        "for argv in (['--help'], ['--flag'], ['--src_file', 'nowhere'], ['--src_text', '']):\n"
        "    try: inference.main(argv)\n"
        "    except (SystemExit, Exception) as error: print(type(error).__name__)\n"
        "print(sorted({'torch', 'numpy', 'tokenizers', 'tqdm'} & sys.modules.keys()))"
    )
    done = run_script("-c", probe)
    assert done.stdout.splitlines()[-4:] == ["UserError", "UserError", "UserError", "[]"], (
        done.stderr
    )
    assert run_script("inference.py", "--flag").stderr == (
        "error: unrecognized arguments: --flag (see inference.py --help)\n"
    )


# ------------------------------------------------------------------------------------------- output


def test_json_holds_both_searches_with_scores_best_first(infer: Scripts, trained_run: Path) -> None:
    text = "Le chat « noir » dort."
    ended = infer(
        "--model_path",
        trained_run,
        "--src_text",
        text,
        "--json",
        "--beam_size",
        "4",
        "--length_penalty",
        "0",
    )
    [line] = lines_of(ended.out)
    found = json.loads(line)
    assert found.keys() == {"src", "greedy", "beam"}
    assert found["src"] == text
    assert "«" in line  # readable, not \u00ab
    assert len(found["beam"]) == 4  # n_best, 5 in the config, goes down with the beam
    for hypothesis in (found["greedy"], *found["beam"]):
        assert hypothesis.keys() == {"text", "score", "log_prob", "finished"}
        assert hypothesis["score"] == hypothesis["log_prob"] < 0  # no length penalty
    finished = [hypothesis["score"] for hypothesis in found["beam"] if hypothesis["finished"]]
    assert finished == sorted(finished, reverse=True)


def test_greedy_is_a_beam_of_one_and_several_texts_get_titles(
    infer: Scripts, trained_run: Path, sentences: list[str]
) -> None:
    texts = [part for text in sentences[:4] for part in ("--src_text", text)]
    ended = infer("--model_path", trained_run, *texts, "--beam_size", "1")
    blocks = ended.out.split(">>> ")[1:]
    assert [block.splitlines()[0] for block in blocks] == sentences[:4]
    for block in blocks:
        _, _, greedy, _, _, beam, *_ = block.splitlines()
        assert beam.split(" ", 1)[1] == greedy


def test_the_output_of_a_sentence_does_not_depend_on_its_batch(
    infer: Scripts, trained_run: Path, sentences: list[str], tmp_path: Path
) -> None:
    found = []
    for batch_size, order in (("1", 1), ("7", -1), ("64", 1)):
        source = tmp_path / "source.fr"
        source.write_text("\n".join(sentences[::order]) + "\n", encoding="utf-8")
        ended = infer(
            "--model_path", trained_run, "--src_file", source, "--json", "--batch_size", batch_size
        )
        items = [json.loads(line) for line in lines_of(ended.out)][::order]
        assert [item["src"] for item in items] == sentences
        found.append([[hypothesis["text"] for hypothesis in item["beam"]] for item in items])
    assert found[0] == found[1] == found[2]


def test_many_mixed_lines_keep_their_order_whatever_is_translated_beside_them(
    infer: Scripts,
    trained_run: Path,
    sentences: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inference, "CHUNK", 16)
    odd = [
        "",
        " \t",
        "-",
        "\u202eטוב",
        "a\x00b",
        "😀" * 20,
        "Le chat dort. " * 20,
        "\ufeffOui.",
        "<pad>",
        "\u2028",
    ]
    lines = [line for pair in zip(sentences, odd) for line in pair] * 2
    random.Random(0).shuffle(lines)
    source, found = tmp_path / "source.fr", []
    for batch_size, seed in (("1", None), ("7", 1), ("64", 2), ("64", None)):
        places = list(range(len(lines)))
        if seed is not None:
            random.Random(seed).shuffle(places)
        source.write_text("".join(f"{lines[i]}\n" for i in places), encoding="utf-8")
        args = ("--src_file", source, "--batch_size", batch_size, "--max_len", "6", "--json")
        ended = infer("--model_path", trained_run, *args)
        assert ended.code == 0
        beams = [
            tuple(item["text"] for item in json.loads(line)["beam"]) for line in lines_of(ended.out)
        ]
        translations = dict(zip(places, beams, strict=True))
        found.append([translations[i] for i in range(len(lines))])
    assert found[0] == found[1] == found[2] == found[3]
    assert len(set(found[0])) > 5
    assert {texts for line, texts in zip(lines, found[0]) if not line.strip()} == {("",)}


def test_lines_are_read_as_they_are_translated_and_cut_into_pieces_once(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = load_run(trained_run, runs_dir="runs").translator(torch.device("cpu"))
    translator.decode = dataclasses.replace(translator.decode, max_len=3)
    encode, sizes = translator.encode, []

    def counted(texts: list[str]) -> list[list[int]]:
        sizes.append(len(texts))
        return encode(texts)

    monkeypatch.setattr(translator, "encode", counted)
    seen: list[tuple[int, int]] = []
    endless = itertools.cycle(["Oui.", "", "Le chat dort."])
    stream = translator.translate_stream(
        endless, chunk=4, greedy=True, watch=lambda *line: seen.append(line)
    )
    items = [item for found in itertools.islice(stream, 3) for item in found]
    assert [item.src for item in items] == ["Oui.", "", "Le chat dort."] * 4
    assert sizes == [4, 4, 4]
    assert [number for number, _ in seen] == list(range(1, 13))
    assert next(endless) == "Oui."  # no line was read beyond them


def test_an_interrupt_leaves_complete_lines(
    infer: Scripts, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: IO[bytes], name: str) -> Iterator[bytes]:
        yield from bounded_lines(file, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "CHUNK", 4)
    monkeypatch.setattr(inference, "bounded_lines", interrupted)
    ended = infer(
        "--model_path", trained_run, "--search", "greedy", "--max_len", "3", stdin=b"Oui.\n" * 10
    )
    assert (ended.code, ended.err) == (130, "interrupted\n")
    assert len(lines_of(ended.out)) == 8  # of ten, two whole chunks


def test_a_line_too_long_to_attend_to_is_named(infer: Scripts, trained_run: Path) -> None:
    said = infer("--model_path", trained_run, stdin=b"Oui.\n" + b"Le chat dort. " * 7200).error()
    assert re.fullmatch(
        r"standard input, line 2: [\d,]+ tokens, and 8,192 are the most; split it", said
    )


def test_a_file_is_translated_line_by_line_into_another(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    odd = "Le chat\u2028dort\x0bet\x85mange.".encode()  # separators that do not end a line
    source, output = tmp_path / "source.fr", tmp_path / "out.en"
    source.write_bytes(
        b"\xef\xbb\xbfLe chat dort.\r\n\r\n \t\xc2\xa0\n"
        + odd
        + b"\nLe chat dort et mange.\nLe chat dort."
    )
    ended = infer("--model_path", trained_run, "--src_file", source, "--output", output)
    assert ended == (0, "", "")
    first, empty, blank, with_odd, plain, last = lines_of(output.read_bytes().decode())
    assert first == last != ""
    assert empty == blank == ""
    assert with_odd != ""
    assert set(os.listdir(tmp_path)) == {"out.en", "source.fr"}

    assert (
        infer("--model_path", trained_run, "--src_file", source, "--output", output, "--json").code
        == 0
    )
    items = [json.loads(line) for line in lines_of(output.read_text("utf-8"))]
    assert [item["beam"][0]["text"] for item in items] == [first, "", "", with_odd, plain, last]
    assert items[0]["src"] == "Le chat dort."
    assert {item["greedy"] for item in items} == {None}

    source.write_bytes(b"")
    assert infer("--model_path", trained_run, "--src_file", source, "--output", output).code == 0
    assert output.read_bytes() == b""


def test_white_space_is_read_as_in_training(infer: Scripts, trained_run: Path) -> None:
    source = "Le chat  dort !\nLe chat\u00a0dort\u202f!\n  Le chat\tdort ! \n".encode()
    assert len(set(lines_of(infer("--model_path", trained_run, stdin=source).out))) == 1


def test_a_failure_leaves_the_earlier_output_as_it_was(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "source.fr", tmp_path / "out.en"
    output.write_text("precious\n")
    source.write_bytes(
        b"Oui.\n" * 513 + b"caf\xe9\n"
    )  # the first chunk is written before the bad line is read
    args = ("--model_path", trained_run, "--search", "greedy", "--max_len", "3")
    said = infer(*args, "--src_file", source, "--output", output).error()
    assert said == f"{source}, line 514: not UTF-8; convert it (iconv -t UTF-8)"
    assert infer(*args, "--src_file", output, "--output", output).error() == (
        f"--output {output} is the input itself: give another file"
    )
    assert output.read_text() == "precious\n"
    assert set(os.listdir(tmp_path)) == {"source.fr", "out.en"}


def test_a_link_is_followed_and_a_pipe_stays_a_pipe(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    args = ("--model_path", trained_run, "--src_text", "Oui.", "--search", "greedy", "--output")
    target, link, fifo = tmp_path / "target", tmp_path / "link", tmp_path / "fifo"
    target.touch()
    link.symlink_to(target)
    assert infer(*args, link).code == 0
    assert link.is_symlink()
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text("utf-8")), daemon=True)
    reader.start()
    assert infer(*args, fifo).code == 0
    reader.join(10)
    assert read == [target.read_text("utf-8")]
    assert fifo.is_fifo()


def test_a_line_break_that_a_model_spells_does_not_break_the_line() -> None:
    assert as_line("a\r\nb\rc") == "a  b c"


# ---------------------------------------------------------------------------------------- odd input


def test_any_unicode_gets_an_answer(infer: Scripts, trained_run: Path) -> None:
    texts = [
        "😀👩‍👩‍👧",
        "日本語のテキスト",
        "مرحبا بالعالم",
        "a\x00b",
        "ＦＵＬＬ ｗｉｄｔｈ",
        "\u200b",
        "<pad> </s> <unk>",
        "e\u0301" * 50,
        "-",
    ]
    ended = infer("--model_path", trained_run, "--json", stdin=("\n".join(texts) + "\n").encode())
    assert (ended.code, ended.err) == (0, "")
    assert [json.loads(line)["src"] for line in lines_of(ended.out)] == texts


def test_bytes_of_another_encoding_on_the_command_line_get_an_error(
    infer: Scripts, trained_run: Path
) -> None:
    said = infer("--model_path", trained_run, "--src_text", "caf\udce9").error()
    assert "not valid Unicode" in said
    assert "UTF-8" in said


def test_a_long_input_is_translated_with_one_warning(infer: Scripts, trained_run: Path) -> None:
    source = ("Le chat dort. " * 200 + "\nOui.\n" + "Le chien dort. " * 100 + "\n").encode()
    ended = infer("--model_path", trained_run, "--search", "greedy", stdin=source)
    assert ended.code == 0
    assert len(lines_of(ended.out)) == 3
    assert re.fullmatch(
        r"warning: 2 sentences of up to [\d,]+ tokens, longer .*data\.max_len = 96.*\n", ended.err
    )


def test_long_sentences_make_smaller_batches_and_the_same_translations(
    trained_run: Path, sentences: list[str]
) -> None:
    translator = load_run(trained_run, runs_dir="runs").translator(torch.device("cpu"))
    translator.decode = dataclasses.replace(translator.decode, batch_size=4, max_len=6)
    texts = [*sentences[:5], "Le chat dort. " * 150, *sentences[5:7], "Le chien dort. " * 160]
    sizes: list[int] = []
    together = translator.translate(texts, greedy=True, progress=sizes.append)
    assert sizes[:2] == [1, 1]
    assert sum(sizes) == len(texts)
    assert max(sizes) == 4
    alone = [translator.translate([text], greedy=True)[0] for text in texts]
    assert [found.text for [found] in together] == [found.text for [found] in alone]


def test_an_input_past_the_position_table_names_its_line(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=96))
    said = infer("--model_path", run, stdin=b"Oui.\n" + b"Le chat dort. " * 60).error()
    assert re.fullmatch(
        r"standard input, line 2: \d+ tokens, but the model knows 96 positions; split it", said
    )


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--flag"], "unrecognized arguments: --flag"),
        (["--src_text", "a", "--src_file", "b"], "not allowed with"),
        (["--src_text", " \n"], "--src_text ' \\n': there is nothing to translate"),
        (["--src_file", "nowhere.fr"], "nowhere.fr: cannot be read: No such file or directory"),
        (["--src_file", "."], ".: cannot be read: Is a directory"),
        (["--search", "both"], "--search both has two translations for a line"),
        (
            ["--set", "model.d_model=64"],
            "model.d_model was fixed by training; only decode.* can be set",
        ),
        (["--set", "decode.beam"], "write SECTION.FIELD=VALUE"),
        (["--threads", "0"], "argument --threads: '0': an integer >= 1"),
        (["--config", "nowhere.py"], "nowhere.py: no such config file"),
        (["--output", "nowhere/out"], "nowhere/out: No such file or directory"),
        (["--output", "."], "Is a directory"),
        (
            ["--device", "tpu"],
            "--device tpu: not on this machine; allowed: auto, cpu, cuda, cuda:N",
        ),
        (["--model_path", "nowhere"], "nowhere: no such checkpoint or run folder"),
        (["--runs_dir", "configs"], "no run with a checkpoint in configs/"),
    ],
)
def test_a_wrong_command_line_gets_one_line(infer: Scripts, args: list[str], said: str) -> None:
    assert said in infer(*args).error()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--beam_size", "x"], "decode.beam_size = 'x': allowed: an integer >= 1"),
        (["--beam_size", "2", "--n_best", "3"], "decode.n_best = 3: at most decode.beam_size = 2"),
        (["--set", "decode.bean=1"], "unknown key 'decode.bean': decode has: beam_size"),
        (["--beam_size", "1000000000000"], "not enough memory"),
    ],
)
def test_a_wrong_decode_setting_gets_one_line(
    infer: Scripts, trained_run: Path, args: list[str], said: str
) -> None:
    assert said in infer("--model_path", trained_run, "--src_text", "Oui.", *args).error()


def test_a_checkpoint_at_fault_is_named_with_the_reason(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    best = best_of(copy_run(trained_run, tmp_path))
    whole = best.read_bytes()
    payload = read_checkpoint(best)

    def said() -> str:
        return infer("--model_path", best, "--src_text", "Oui.").error()

    best.write_bytes(whole[: len(whole) // 2])
    assert said().startswith(f"{best}: not a whole checkpoint")
    best.write_bytes(b"")
    assert said().startswith(f"{best}: not a whole checkpoint")
    best.write_text("{}")
    assert said().startswith(
        f"{best}: not a whole checkpoint (it is another kind of file, or holds more than tensors"
    )
    torch.save({"weights": torch.zeros(3)}, best)
    assert said() == f"{best}: a torch file, but not a checkpoint of this project"
    torch.save({**payload, "format": {"version": 99}}, best)
    assert "checkpoint format 99 is newer than this program's" in said()
    torch.save({**payload, "model": {**payload["model"], "output.weight": torch.zeros(2, 2)}}, best)
    assert "the weights do not fit the configured model" in said()
    best.write_bytes(whole)
    lone = Path(shutil.copy(best, tmp_path / best.name))
    assert "no tokenizer folder" in infer("--model_path", lone, "--src_text", "Oui.").error()


def test_a_tokenizer_that_does_not_match_is_refused(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    from configs.schema import Subword
    from tokenizer.subword import SubwordTokenizer

    run = copy_run(trained_run, tmp_path)
    SubwordTokenizer.train(["Un autre texte que celui du modèle."], Subword(vocab_size=600)).save(
        run / "tokenizer"
    )
    said = infer("--model_path", run, "--src_text", "Oui.").error()
    assert said.startswith(
        f"the tokenizer in {run / 'tokenizer'} is not the one this checkpoint was trained with"
    )


def test_a_config_must_describe_the_same_model_and_its_decode_settings_count(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    trained = checkpoint_config(read_checkpoint(best_of(trained_run)))
    file = tmp_path / "mine.py"

    def write(*overrides: str) -> None:
        data = to_dict(apply_overrides(trained, overrides))
        file.write_text(
            f"from configs.serialize import from_dict\nconfig = from_dict({data!r})\n",
            encoding="utf-8",
        )

    args = ("--model_path", trained_run, "--src_text", "Oui.", "--config", file)
    write(
        "decode.beam_size=2",
        "decode.n_best=2",
        "train.max_epochs=9",
        "data.corpus.n_train=7",
        "model.dropout=0.3",
    )
    assert infer(*args).out.count("\n-") == 2
    assert infer(*args, "--n_best", "1").out.count("\n-") == 1

    write("model.d_ff=96", "model.position=sinusoidal", "tokenizer.vocab_size=700")
    said = infer(*args).error()
    assert said == (
        f"--config {file} does not fit the checkpoint: model.position is 'rope' in the checkpoint and 'sinusoidal' in "
        "the file; model.d_ff is 64 in the checkpoint and 96 in the file; tokenizer.vocab_size is 600 in the "
        "checkpoint and 700 in the file. Leave --config out: the checkpoint brings its own"
    )
    write("data.src_lang=en", "data.tgt_lang=fr")
    assert "data.src_lang is 'fr' in the checkpoint and 'en' in the file" in infer(*args).error()
