"""`python inference.py`: what it reads, what it writes, and that no sentence minds its batch."""

import gzip
import itertools
import json
import os
import pty
import random
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest
from conftest import ROOT
from made_runs import Scripts, best_of, scripted

import inference
from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import REGULAR, Run
from configs.schema import Config
from data.corpora.build import build_corpus
from data.corpora.text import plain_text
from translation.answers import NOTHING, Translated
from translation.loading import load_run
from translation.settings import config_change
from translation.translator import Translator
from utils.errors import UserError
from utils.lines import as_line, count_lines, read_lines, writer

infer = scripted(inference.main)


@pytest.fixture(scope="module")
def sentences(trained_run: Path) -> list[str]:
    """Distinct French sentences of many lengths."""
    data = checkpoint_config(read_checkpoint(best_of(trained_run))).data
    return sorted(set(build_corpus(data).load("test").src))[::2][:16]


def lines_of(text: str) -> list[str]:
    assert text.endswith("\n")
    return text[:-1].split("\n")


def objects_of(text: str) -> list[dict]:
    return [json.loads(line) for line in lines_of(text)]


# ------------------------------------------------------------------------------------------- output


def test_a_sentence_gets_its_greedy_and_beam_blocks_from_the_newest_run(
    infer: Scripts, trained_run: Path
) -> None:
    text = ("--src_text", "Le chat dort.", "--n_best", "3")
    ended = infer("--runs_dir", trained_run.parent, *text)
    assert (ended.code, ended.err) == (0, f"run: {trained_run}, the newest\n")
    words = r"=== greedy search ===\n.+\n\n=== beam search ===\n(-\d+\.\d{4} .*\n){3}"
    assert re.fullmatch(words, ended.out)
    scores = [float(line.split()[0]) for line in lines_of(ended.out)[-3:]]
    assert scores == sorted(scores, reverse=True)


def test_json_holds_both_searches_with_scores_best_first(infer: Scripts, trained_run: Path) -> None:
    text = "Le chat « noir » dort."
    search = ("--json", "--beam_size", "4", "--length_penalty", "0")
    ended = infer("--model_path", trained_run, "--src_text", text, *search)
    assert "«" in ended.out  # readable, not \u00ab
    [found] = objects_of(ended.out)
    assert found.keys() == {"src", "greedy", "beam"}
    assert found["src"] == text
    assert len(found["beam"]) == 4  # n_best, 5 in the config, goes down with the beam
    for hypothesis in (found["greedy"], *found["beam"]):
        assert hypothesis.keys() == {"text", "score", "log_prob", "finished"}
        assert hypothesis["score"] == hypothesis["log_prob"] < 0  # no length penalty
    order = [(not each["finished"], -each["score"]) for each in found["beam"]]
    assert order == sorted(order)


def test_greedy_is_a_beam_of_one_and_several_texts_get_titles(
    infer: Scripts, trained_run: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "CHUNK", 3)
    texts = [part for text in sentences[:4] for part in ("--src_text", text)]
    ended = infer("--model_path", trained_run, *texts, "--beam_size", "1")
    blocks = [block.splitlines() for block in ended.out.split(">>> ")[1:]]
    assert [block[0] for block in blocks] == sentences[:4]
    assert ended.out.count("\n\n>>> ") == 3
    for _, _, greedy, _, _, beam, *_ in blocks:
        assert beam.split(" ", 1)[1] == greedy


def test_every_search_is_a_flag_and_a_title(infer: Scripts, trained_run: Path) -> None:
    text = ("--model_path", trained_run, "--src_text", "Le chat dort.")
    for args, title in (
        ("--search beam --mbr bleu", "beam search, minimum Bayes risk (bleu)"),
        ("--search diverse --groups 5 --strength 2", "diverse beam search"),
        ("--search sample --n_best 7 --top_k 20 --top_p 0.9", "samples"),
    ):
        ended = infer(*text, *args.split())
        assert lines_of(ended.out)[0] == f"=== {title} ==="
    assert ended.out.count("\n") == 8


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(trained_run: Path) -> None:
    command = f"{sys.executable} inference.py --model_path {trained_run} --search greedy"
    piped = subprocess.run(
        ["bash", "-c", f"{command} --max_len 3 | head -n 1; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        input="Le chat dort.\n" * 1100,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (piped.returncode, piped.stderr, piped.stdout.count("\n")) == (0, "", 1)


@pytest.mark.slow
def test_what_is_said_to_a_closed_standard_error_is_no_translation(trained_run: Path) -> None:
    command = f"{sys.executable} inference.py --model_path {trained_run} --max_len 3 2>&-"
    how: Any = {"cwd": ROOT, "capture_output": True, "text": True}
    said = subprocess.run(["bash", "-c", command], input="Oui. Non.\n" * 2, **how)  # it warns
    assert (said.returncode, said.stdout.count("\n")) == (0, 2), said


@pytest.mark.slow
def test_at_a_terminal_it_is_a_prompt_with_history(trained_run: Path) -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "inference.py", "--model_path", str(trained_run), "--n_best", "2"]
    env = {**os.environ, "TERM": "dumb"}
    how: Any = {"stdin": its, "stdout": its, "stderr": subprocess.DEVNULL, "env": env}

    def until_prompted() -> str:
        said = b""
        while not said.endswith(b"fr> "):
            assert select.select([ours], [], [], 60)[0], said
            said += os.read(ours, 4096)
        return said.decode()

    with subprocess.Popen(command, cwd=ROOT, **how) as process:
        try:
            until_prompted()
            os.write(ours, b"Le chat dort.\n")
            once = until_prompted()
            assert len(re.findall(r"^-\d+\.\d{4} ", once, re.MULTILINE)) == 2
            os.write(ours, b"\x1b[A\n")  # up, enter
            assert until_prompted() == once
            os.write(ours, b"\x04")
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_link_is_followed_to_a_new_folder_and_a_pipe_stays_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link, fifo = tmp_path / "a/new/target", tmp_path / "link.gz", tmp_path / "fifo"
    link.symlink_to(target)
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text("utf-8")), daemon=True)
    reader.start()
    for path in (link, fifo, Path("/dev/stdout")):
        with writer(path) as write:
            write(["Yes."])
    reader.join(10)
    assert link.is_symlink()
    assert fifo.is_fifo()
    text = gzip.decompress(target.read_bytes()).decode()
    assert [*read, text, capsys.readouterr().out] == ["Yes.\n"] * 3
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UserError, match="standard output is closed: give --output FILE"):
        writer(None).__enter__()


# -------------------------------------------------------------------------------------------- lines


def test_lines_are_cut_and_counted_as_they_lie_in_a_file(tmp_path: Path) -> None:
    path, mark = tmp_path / "lines", b"\xef\xbb\xbf"
    path.write_bytes(mark + b"one\r\r\n" + mark + b"two\n\nlast")
    with path.open("rb") as file:
        assert list(read_lines(file, "lines")) == ["one\r", "\ufefftwo", "", "last"]
    assert count_lines(path) == 4
    path.write_bytes(b"one\n")
    assert count_lines(path) == 1


def test_a_file_is_translated_line_by_line_into_another(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    odd = "Le chat\u2028dort\x0bet\x85mange.".encode()  # separators that do not end a line
    source, output = tmp_path / "source.fr", tmp_path / "out.en"
    args = ("--model_path", trained_run, "--src_file", source, "--output", output)
    lines = (b"\xef\xbb\xbfLe chat dort.\r", b"\r", b" \t\xc2\xa0", odd, b"Oui.", b"Le chat dort.")
    source.write_bytes(b"\n".join(lines))
    assert infer(*args) == (0, "", "")
    first, empty, blank, with_odd, plain, last = lines_of(output.read_bytes().decode())
    assert first == last != ""
    assert empty == blank == ""
    assert with_odd != ""
    assert set(os.listdir(tmp_path)) == {"out.en", "source.fr"}
    assert infer(*args, "--output", tmp_path / "out.en.gz").code == 0
    assert gzip.decompress((tmp_path / "out.en.gz").read_bytes()) == output.read_bytes()

    assert infer(*args, "--json").code == 0
    items = objects_of(output.read_text("utf-8"))
    assert [item["beam"][0]["text"] for item in items] == [first, "", "", with_odd, plain, last]
    assert items[0]["src"] == "Le chat dort."
    assert {item["greedy"] for item in items} == {None}

    source.write_bytes(b"")
    assert infer(*args).code == 0
    assert output.read_bytes() == b""


def test_any_unicode_gets_an_answer_and_white_space_is_read_as_in_training(
    infer: Scripts, trained_run: Path
) -> None:
    plain, unseen = "Le chat dort !", "\u200b\ufeff\0"
    same = [plain, "Le chat\u00a0dort\u202f!", f"  Le c\u00adhat\u200b\tdort !{unseen} "]
    ended = infer("--model_path", trained_run, stdin="\n".join([*same, unseen]).encode())
    (first, *_), blank = (lines := lines_of(ended.out)), ""
    assert (lines, bool(first)) == ([first, first, first, blank], True)
    pair = infer("--model_path", trained_run, "--src_text", plain, "--tgt_text", "It\u00ad is\0.")
    given = infer("--model_path", trained_run, "--src_text", plain, "--tgt_text", "It is.")
    assert pair.out == given.out
    assert plain_text("ไทย\u200bไทย") == "ไทย\u200bไทย"  # where it ends a word
    texts = ["😀👩‍👩‍👧", "日本語", "a\x00b", "ＦＵＬＬ ｗｉｄｔｈ"]
    texts += ["مرحبا بالعالم", "\u200b", "<pad> </s> <unk>", "e\u0301" * 50, "-"]
    ended = infer("--model_path", trained_run, "--json", stdin=("\n".join(texts) + "\n").encode())
    told = "warning: lines that do not read like fr: 3 (standard input, line 2, 4, 5)\n"
    assert (ended.code, ended.err) == (0, told)
    assert [item["src"] for item in objects_of(ended.out)] == texts
    # A line break that a model spells does not break the line.
    assert as_line("a\r\nb\rc") == "a  b c"


def test_a_failure_leaves_the_earlier_output_and_what_was_translated(
    infer: Scripts, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "CHUNK", 2)
    source, output = tmp_path / "source.fr", tmp_path / "out.en"
    output.write_text("precious\n")
    # The first chunk is written before the bad line is read.
    source.write_bytes(b"Oui.\n" * 3 + b"caf\xe9\n")
    args = ("--src_file", source, "--output", output, "--search", "greedy", "--max_len", "3")
    said = infer("--model_path", trained_run, *args).error()
    kept = tmp_path / "out.en.partial"
    where = f"{source}, line 4: not UTF-8; convert it (iconv -f ITS_ENCODING -t UTF-8)"
    assert said == f"{where}; the first 2 lines are in {kept}"
    assert output.read_text() == "precious\n"
    assert set(os.listdir(tmp_path)) == {"source.fr", "out.en", kept.name}
    assert len(lines_of(kept.read_text("utf-8"))) == 2
    for n in (1, 2):  # what an earlier try kept stays too
        kept.write_text(f"try {n}\n")
        infer("--model_path", trained_run, *args).error()
        assert (tmp_path / f"{kept.name}.{n}").read_text() == f"try {n}\n"
    source.write_bytes(b"PK\x03\x04 [Content_Types].xml\n")
    said = infer("--model_path", trained_run, *args).error()
    assert said == f"{source}: a document or an archive: save it as plain text in UTF-8"


def test_an_interrupt_leaves_complete_lines(
    infer: Scripts, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: IO[bytes], name: str, _: object) -> Iterator[str]:
        yield from read_lines(file, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "CHUNK", 4)
    monkeypatch.setattr(inference, "read_lines", interrupted)
    args = ("--model_path", trained_run, "--search", "greedy", "--max_len", "3")
    ended = infer(*args, stdin=b"Oui.\n" * 10)
    assert (ended.code, ended.err) == (130, "interrupted\n")
    assert len(lines_of(ended.out)) == 8  # of ten, two whole chunks


def test_lines_are_read_as_they_are_translated_and_cut_into_pieces_once(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = replace(translator, decode=replace(translator.decode, max_len=3))
    encode = mock.Mock(side_effect=translator.encode)
    monkeypatch.setattr(Translator, "encode", encode)
    watch, endless = mock.Mock(), itertools.cycle(["Oui.", "", "Le chat dort."])
    stream = translator.translate_stream(endless, chunk=4, greedy=True, watch=watch)
    items = [item for found in itertools.islice(stream, 3) for item in found]
    assert [item.src for item in items] == ["Oui.", "", "Le chat dort."] * 4
    assert [len(call.args[0]) for call in encode.call_args_list] == [4, 4, 4]
    assert [call.args[0] for call in watch.call_args_list] == list(range(1, 13))
    assert next(endless) == "Oui."  # no line was read beyond them


def test_with_batches_of_one_a_line_is_answered_before_the_next_is_read() -> None:
    for given, chunk in (
        ("", inference.CHUNK),
        ("--batch_size 1", 1),
        ("--set decode.batch_size=01", 1),
        ("--batch_size 1 --workers 2", 1024),
        ("--batch_size 256", 4096),  # so many that few of a batch are padded
    ):
        args = inference.parse_args(["--src_file", str(ROOT / "LICENSE"), *given.split()])
        decode = config_change(None, None, args.overrides)(Config()).decode
        assert inference.at_once(args, inference.opened(args)[-1], decode) == chunk


# ------------------------------------------------------------------------------ given translations


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_given_translation_has_the_score_that_the_search_found_for_it(
    infer: Scripts,
    trained_run: Path,
    sentences: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ensemble: bool,
) -> None:
    models = [trained_run, *Run(trained_run).files(REGULAR)[:ensemble]]
    translator, texts = Translator.load(*models, device="cpu"), sentences[:6]
    n_best = translator.decode.n_best
    beams = translator.searcher.search_ids(
        translator.encode(texts), translator.decode, greedy=False
    )
    hypotheses = list(itertools.chain(*beams))
    # A model hardly trained spells no text as the tokenizer does: numbers stand for its pieces.
    pieces = {f"{n}": translator._target(found) for n, found in enumerate(hypotheses)}
    monkeypatch.setattr(Translator, "_target", lambda self, text: pieces[text])
    source, given = tmp_path / "source.fr", tmp_path / "given.en.gz"
    source.write_text("".join(f"{text}\n" * n_best for text in texts), "utf-8")
    given.write_bytes(gzip.compress("\n".join(pieces).encode()))
    args = ("--model_path", *models, "--tgt_file", given, "--batch_size")
    items = objects_of(infer(*args, "7", "--src_file", source, "--json").out)
    monkeypatch.setattr(inference, "CHUNK", 8)
    lines = lines_of(infer(*args, "1", stdin=source.read_bytes()).out)
    assert [item["src"] for item in items[::n_best]] == texts
    for text, item, line, found in zip(pieces, items, lines, hypotheses, strict=True):
        [scored] = item["beam"]
        assert (scored["text"], item["greedy"]) == (text, None)
        assert scored["score"] == pytest.approx(found.score, abs=1e-4)
        assert scored["log_prob"] == pytest.approx(found.log_prob, abs=1e-4)
        assert re.fullmatch(r"-\d+\.\d{4}", line)
        assert float(line) == pytest.approx(found.score, abs=2e-4)


def test_every_pair_has_a_line_and_one_without_a_word_has_zero(
    infer: Scripts, trained_run: Path, translator: Translator
) -> None:
    pairs = {("Oui.", "Yes."): None, ("", " "): 0.0, ("", "Yes."): None, ("Oui.", ""): None}
    texts = [part for src, tgt in pairs for part in ("--tgt_text", tgt)]
    source = "".join(f"{src}\n" for src, _ in pairs).encode()
    args = ("--model_path", trained_run, *texts, "--length_penalty", "0", "--align")
    lines = [line.split("\t") for line in lines_of(infer(*args, stdin=source).out)]
    for (score, links), (pair, known) in zip(lines, pairs.items(), strict=True):
        expected = translator.score(*pair).log_prob if known is None else known
        assert float(score) == pytest.approx(expected, abs=1e-4)
        assert links == translator.align(*pair).pharaoh()
    # Without a file either, a score is a line.
    ended = infer("--model_path", trained_run, "--src_text", "Oui.", "--tgt_text", "Yes.")
    assert re.fullmatch(r"-\d+\.\d{4}\n", ended.out)


# ------------------------------------------------------------------------------------------ batches


def test_mixed_lines_keep_their_order_whatever_is_translated_beside_them(
    infer: Scripts, trained_run: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "CHUNK", 16)
    odd = ["", " \t", "-", "\u202eטוב", "a\x00b", "😀" * 20, "Le chat dort. " * 20]
    odd += ["\ufeffOui.", "<pad>", "\u2028"]
    lines = [line for pair in zip(sentences, odd) for line in pair] * 2
    found = []
    for batch_size, seed in (("1", 0), ("7", 1), ("64", 2)):
        places = random.Random(seed).sample(range(len(lines)), len(lines))
        source = "".join(f"{lines[i]}\n" for i in places).encode()
        args = ("--batch_size", batch_size, "--max_len", "9", "--json")
        items = objects_of(infer("--model_path", trained_run, *args, stdin=source).out)
        beams = [tuple(hypothesis["text"] for hypothesis in item["beam"]) for item in items]
        translations = dict(zip(places, beams, strict=True))
        found.append([translations[i] for i in range(len(lines))])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 5
    assert {texts for line, texts in zip(lines, found[0]) if not line.strip()} == {("",)}


def test_samples_do_not_depend_on_the_batch_and_stand_in_the_order_of_their_score(
    infer: Scripts, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"Le chat dort.\n\nIl y a un livre sur la table.\nOui.\nLe chat dort.\n"
    args = ("--model_path", trained_run, "--search", "sample", "--json", "--n_best", "4")

    def drawn(*more: str) -> list[list[tuple[float, str]]]:
        items = objects_of(infer(*args, *more, stdin=lines).out)
        return [[(found["score"], found["text"]) for found in item["beam"]] for item in items]

    one, by_risk = drawn("--batch_size", "1"), drawn("--mbr", "chrf")
    texts = [[text for _, text in found] for found in one]
    monkeypatch.setattr(inference, "CHUNK", 2)  # of the lines: their numbers go on
    assert texts == [[text for _, text in found] for found in drawn("--batch_size", "8")]
    assert texts[0] != texts[4]  # the same sentence elsewhere is drawn anew
    for found, ranked in zip(one, by_risk):
        assert sorted(text for _, text in found) == sorted(text for _, text in ranked)
        for scores in ([score for score, _ in found], [score for score, _ in ranked]):
            assert scores == sorted(scores, reverse=True)


def test_no_ngram_is_said_twice(
    infer: Scripts, trained_run: Path, translator: Translator, sentences: list[str]
) -> None:
    def pairs(**changes: Any) -> list[list[tuple[str, str]]]:
        plain = replace(translator, decode=replace(translator.decode, **changes))
        found = [*plain.translate(sentences), *plain.translate(sentences, search="greedy")]
        return [[*zip(each.tokens, each.tokens[1:])] for each in found]

    assert any(len(set(each)) < len(each) for each in pairs())
    assert all(len(set(each)) == len(each) for each in pairs(no_repeat_ngram_size=2))
    one = ("--model_path", trained_run, "--src_text", "Oui.", "--search", "greedy")
    flag = ("--set", "decode.no_repeat_ngram_size=2")
    said = infer(*one, *flag, "--engine", "ctranslate2").error()
    assert "decode.no_repeat_ngram_size: it is of torch's search alone" in said


def test_bad_lines_are_left_empty_if_they_are_to_be_skipped(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    file, one = tmp_path / "in.fr", ["--model_path", trained_run, "--search", "greedy"]
    longer = b"mot " * 300_000  # than a line may be
    file.write_bytes(b"Oui.\ncaf\xe9\n" + longer + b"\nNon.\n" + b"mot. " * 4000)
    said = infer(*one, "--src_file", file).error()
    assert said.startswith(f"{file}, line 2: not UTF-8")
    whole = infer(*one, stdin=b"Oui.\n\n\nNon.\n")
    few = ("--set", "decode.max_len=9")
    ended = infer(*one, *few, "--src_file", file, "--skip_bad", "--split_sentences")
    assert f"lines left empty, too long or not UTF-8: 2 ({file}, line 2, 3)\n" in ended.err
    lines = lines_of(ended.out)
    assert (len(lines), bool(lines[4])) == (5, True)  # each sentence is short enough
    ended = infer(*one, "--src_file", file, "--skip_bad")
    assert f"lines left empty, too long or not UTF-8: 3 ({file}, line 2, 3, 5)\n" in ended.err
    assert ended.out == f"{whole.out}\n"
    given, one = tmp_path / "given.en", one[:2]  # a translation may be bad as well
    given.write_bytes(b"Yes.\nx\ny\n\xff\nz\n")
    scored = infer(*one, "--src_file", file, "--tgt_file", given, "--skip_bad")
    assert "lines left empty, too long or not UTF-8: 4 (pair 2, 3, 4, 5)\n" in scored.err
    assert scored.out == infer(*one, "--src_text", "Oui.", "--tgt_text", "Yes.").out + "\n" * 4
    given.write_text("Yes.\nx\ny\n" + "word. " * 4000 + "\nz\n")
    scored = infer(*one, "--src_file", file, "--tgt_file", given, "--skip_bad", "--json")
    marks = [item.get("skipped", False) for item in objects_of(scored.out)]
    assert marks == [False, True, True, True, True]
    assert {item["beam"][0]["score"] for item in objects_of(scored.out)[1:]} == {0.0}
    given.write_text("Yes.\nx\ny\n" + "\xad" * 9000 + "No.\nz\n")
    scored = infer(*one, "--src_file", file, "--tgt_file", given, "--skip_bad")
    assert [bool(line) for line in lines_of(scored.out)] == [True, False, False, True, False]
    said = infer(*one, "--src_text", "Oui.", "--skip_bad").error()
    assert said == "--skip_bad is of no use with --src_text: leave it out"


def test_long_inputs_are_translated_with_one_warning_and_what_is_cut_off_with_another(
    infer: Scripts, trained_run: Path
) -> None:
    source = ("Le chat dort " * 200 + "\nOui.\n" + "The dog is here " * 100 + "\n").encode()
    ended = infer("--model_path", trained_run, "--search", "greedy", stdin=source)
    assert ended.code == 0
    assert len(lines_of(ended.out)) == 3
    words = r"warning: inputs longer .*data\.max_len = 96.*: 2, of up to [\d,]+ tokens, "
    words += r"the first in standard input, line 1\n"
    other = r"warning: lines that do not read like fr: 1 \(standard input, line 3\)\n"
    cut = r"warning: translations cut off by the limits of length: 2 \(standard input, line 1, "
    cut += r"2\); raise decode\.max_len or "
    assert re.fullmatch(rf"{other}{cut}decode\.max_len_ratio\n{words}", ended.err)
    doubts = inference.Doubts(load_run(trained_run), 9, "")
    for greedy in (replace(NOTHING, finished=False), NOTHING, None):  # beside a beam's that ended
        doubts.compare([Translated("Oui.", greedy, [NOTHING])], whole=False)
    assert doubts.cut_off == [1]


def test_long_sentences_make_smaller_batches_and_the_same_translations(
    translator: Translator, sentences: list[str]
) -> None:
    decode = replace(translator.decode, batch_size=4, max_len=6)
    texts = [*sentences[:5], "Le chat dort. " * 150, *sentences[5:7], "Le chien dort. " * 160]
    sizes: list[int] = []
    ids, search = translator.encode(texts), translator.searcher.search_ids
    together = search(ids, decode, greedy=False, progress=sizes.append)
    assert sizes[:2] == [1, 1]
    assert sum(sizes) == len(texts)
    assert max(sizes) == 4
    alone = [search([row], decode, greedy=False)[0] for row in ids]
    for found, expected in zip(together, alone, strict=True):
        assert [each.ids for each in found] == [each.ids for each in expected]
        sums = [each.log_prob for each in expected]
        assert [each.log_prob for each in found] == pytest.approx(sums, abs=1e-4)
