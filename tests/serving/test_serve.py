"""serve.py as programs and browsers meet it: answers, limits, bad input, its end."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock
from urllib.parse import urlencode

import pytest
import uvicorn
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from starlette.exceptions import HTTPException

import serve
from configs.schema import DecodeConfig, Phrasebook, Sampling
from data.corpora.phrasebook import PhrasebookCorpus
from serving.app import Limits, Service, _in_capitals, _joined, build_app
from serving.tasks import Served, Task
from translation.answers import Hypothesis
from translation.loading import load_run
from translation.translator import Translator
from utils.errors import UserError

FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
LIMITS = "--device cpu --max_chars 2000 --max_waiting 16 --max_batch 8".split()
Right = dict[str, list[Hypothesis]]  # a Translator's, by sentence
FEW = Limits(max_batch=32, max_wait=0.005, max_waiting=2, max_chars=100_000, timeout=1.0)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Server(NamedTuple):
    process: subprocess.Popen[str]
    port: int

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request; a body that is no string is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        if body is not None and not isinstance(body, (str, bytes)):
            body, headers = json.dumps(body), {"Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())

    def translate(self, **asked: Any) -> Answer:
        return self("POST", "/translate", asked)


@contextlib.contextmanager
def serving(*args: str | Path, **env: str) -> Iterator[Server]:
    command = [sys.executable, "serve.py", "--port", "0", *map(str, args)]
    how: dict[str, Any] = {"cwd": ROOT, "env": os.environ | env, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **how) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127[\d.]+:(\d+)/", process.stdout.readline())
            assert found, process.communicate()
            yield Server(process, int(found[1]))
        finally:
            process.kill()


@contextlib.contextmanager
def serving_here(*args: str | Path) -> Iterator[Server]:
    """serve.py in a thread: a process of its own takes seconds to start."""
    begun, run = Queue[Any](), uvicorn.Server.run

    def begin(server: uvicorn.Server, sockets: Any) -> None:
        begun.put((server, sockets[0].getsockname()[1]))
        run(server, sockets)

    with ThreadPoolExecutor(1) as thread:
        with mock.patch.object(uvicorn.Server, "run", begin):
            ended = thread.submit(serve.main, ["--port", "0", *map(str, args)])
            server, port = begun.get(timeout=120)
        try:
            yield Server(None, port)  # type: ignore[arg-type]
        finally:  # else the thread is waited for where a test fails
            server.should_exit = True
        ended.result()


@pytest.fixture(scope="module")
def server(trained_run: Path) -> Iterator[Server]:
    with serving_here("--model_path", trained_run, *LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return list(PhrasebookCorpus(Phrasebook(n_train=400)).load("test").src)[:12]


@pytest.fixture(scope="module")
def right(translator: Translator, sentences: list[str]) -> Right:
    return {found.src: found.hypotheses for found in translator.translate(sentences)}


def test_clients_at_once_get_what_a_translator_finds(
    server: Server, sentences: list[str], right: Right
) -> None:
    with ThreadPoolExecutor(12) as clients:
        answers = clients.map(lambda text: server.translate(q=text, alternatives=2), sentences)
    for text, answer in zip(sentences, answers):
        assert answer.status == 200
        best, *others = dict.fromkeys(found.text for found in right[text][:3])
        assert answer.json() == {"translatedText": best, "alternatives": others}
    metrics = server("GET", "/metrics").body.decode()
    assert re.search(r'fr2en_requests_total{path="/translate",status="200"} \d\d', metrics)
    [[sizes], [items]] = (re.findall(rf"size_{of} (\S+)", metrics) for of in ("count", "sum"))
    assert float(sizes) < float(items)  # some were searched together


def test_a_list_a_form_and_lines(server: Server, sentences: list[str], right: Right) -> None:
    best = {text: found[0].text for text, found in right.items()}
    a, b, c = sentences[:3]
    answer = server.translate(q=[a, f"{b}\n\n{c}"], source="fr", target="en", format="text")
    assert answer.json() == {"translatedText": [best[a], f"{best[b]}\n\n{best[c]}"]}
    asked = {"q": a, "source": "auto", "target": "en", "search": "beam", "details": "false"}
    form = urlencode(asked)
    nothing_detected = {"language": "fr", "confidence": 0}
    found = server("POST", "/translate", form, FORM).json()
    assert found == {"translatedText": best[a], "detectedLanguage": nothing_detected}
    plain = "&".join(f"{key}={value}" for key, value in asked.items())  # as curl -d sends it
    assert not plain.isascii()
    several = urlencode([("q", a), ("q", ""), ("search", "beam")])
    found_all = server("POST", "/translate", several, FORM).json()
    assert found_all == {"translatedText": [best[a], ""]}
    assert server("POST", "/translate", "q=", FORM).json() == {"translatedText": ""}
    as_curl = json.dumps({"q": ["", a]})  # whose type is a form's where none is named
    assert server("POST", "/translate", as_curl, FORM).json() == {"translatedText": ["", best[a]]}
    assert server("POST", f"/translate?{urlencode(asked)}", b"").json() == found
    kind = {"Content-Type": "Application/x-www-form-urlencoded ; charset=utf-8"}
    assert server("POST", "/translate", plain.encode(), kind).json() == found
    detailed = server.translate(q=a, details=True).json()["hypotheses"]
    [score] = [found["score"] for found in detailed]
    assert score == pytest.approx(right[a][0].score, abs=1e-6)
    assert server.translate(q=" \n").json() == {"translatedText": "\n"}
    begun = server.translate(q=[a, f"{b}\n\n{c}"], prefix=["They\n", "\n\nWe two"]).json()
    first, rest = begun["translatedText"]
    assert first.startswith("They")
    assert rest.startswith(f"{best[b]}\n\nWe two")
    form = urlencode([("q", a), ("q", b), ("prefix", "They"), ("prefix", "")])
    assert server("POST", "/translate", form, FORM).json()["translatedText"] == [first, best[b]]


@pytest.mark.parametrize(
    ("decode", "n_best", "searched"),
    [
        (DecodeConfig(), 1, 1),
        (DecodeConfig(), 3, 5),  # as many as a beam has, since some have one text
        (DecodeConfig(), 99, 5),
        (DecodeConfig(mbr="chrf"), 3, 5),  # all that are compared
        (DecodeConfig(mbr="chrf", n_best=2), 3, 2),  # and no others
        (DecodeConfig(search=Sampling(), n_best=2), 99, 99),
    ],
)
def test_what_spells_the_same_is_given_once(
    decode: DecodeConfig, n_best: int, searched: int
) -> None:
    beam = {-1.0: "the cat", -2.0: "the\ncat", -3.0: "a cat"}
    ranked = [
        SimpleNamespace(text=text, score=score, finished=score > -3) for score, text in beam.items()
    ]
    translate = mock.Mock(return_value=[SimpleNamespace(hypotheses=ranked)])
    translator: Any = SimpleNamespace(decode=decode, translate=translate)
    served = Served(cast(Any, None), translator)
    task = Task("", "translate", served.searches[0], n_best)
    [answer] = served.do(task, [("le chat", "")])
    first = {"text": "the cat", "score": -1.0, "finished": True}
    assert answer == [first, {"text": "a cat", "score": -3.0, "finished": False}][:n_best]
    assert translate.call_args.kwargs["n_best"] == searched


def test_a_line_is_as_short_as_the_service_and_the_model_ask() -> None:
    asked: list[Any] = []
    translator: Any = SimpleNamespace(
        encode=lambda texts: [text.split() for text in texts],
        tokenizer=SimpleNamespace(encode_tgt=str.split),
        searcher=SimpleNamespace(longest=lambda side: {"source": 3}[side]),
        decode=DecodeConfig(),
        prefix_ids=lambda prefixes, *_: asked.extend(prefixes),
    )
    served = Served(loaded=cast(Any, None), translator=translator)
    served.require_short("un deux trois", prefix="one", tgt="one two three four")
    assert asked == ["one"]
    for most, allowed in ((9, 3), (2, 2)):
        with pytest.raises(UserError, match=f"a line of 4 tokens: at most {allowed}; split it"):
            served.require_short("un deux trois quatre", most=most)
    with pytest.raises(UserError, match="a line of 4 tokens: at most 3; split it"):
        served.require_short("un", most=3, tgt="one two three four")
    hidden: Any = SimpleNamespace(config=SimpleNamespace(model=SimpleNamespace(backend="torch")))
    with pytest.raises(UserError, match="does not show its attention"):
        Served(loaded=hidden, translator=translator).require_attention()


def test_translations_that_capitals_make_equal_are_one() -> None:
    ranked = [{"text": text, "score": -n} for n, text in enumerate(("a", "b", "A", "c"))]
    found = [{"text": text, "score": score} for text, score in (("A", 0), ("B", -1), ("C", -3))]
    assert _in_capitals(ranked) == found


def test_a_text_has_as_many_alternatives_as_any_of_its_lines() -> None:
    one, two, three = (
        {"text": text, "score": -score, "finished": score < 3}
        for score, text in enumerate("abc", start=1)
    )
    assert _joined([[one, two], [], [one]], before="- ") == [
        {"text": "- a\n\na", "score": -2, "finished": True},
        {"text": "- b\n\na", "score": -3, "finished": True},  # the last of a line with fewer
    ]
    assert [each["text"] for each in _joined([[one, two], [three, one]])] == ["a\nc", "b\na"]
    assert [each["finished"] for each in _joined([[one, two], [three, one]])] == [False, True]
    assert _joined([[], []]) == [{"text": "\n", "score": 0, "finished": True}]


def test_each_sentence_of_a_line_is_translated_by_itself(
    server: Server, sentences: list[str], right: Right
) -> None:
    a, b, c = sentences[:3]
    best = {text: right[text][0].text for text in (a, b, c)}
    text, translation = f"{a} {b}\n\n{c}", f"{best[a]} {best[b]}\n\n{best[c]}"
    answer = server.translate(q=[text, c], details=True, alternatives=1).json()
    assert answer["translatedText"] == [translation, best[c]]
    assert answer["sentences"] == [[[s, best[s]] for s in (a, b, c)], [[c, best[c]]]]
    one, other, third = (right[each][1].text for each in (a, b, c))
    assert answer["alternatives"][0] == [f"{one} {other}\n\n{third}"]
    listed = server.translate(q=f"  - {a}\n\t{b}", prefix="  - They").json()["translatedText"]
    assert listed.startswith("  - They")
    assert listed.endswith(f"\n\t{best[b]}")
    begun = server.translate(q=f"{a} {b}", prefix="They").json()["translatedText"]
    assert begun.startswith("They")
    assert begun.endswith(f" {best[b]}")
    both = server.translate(q=f"{a} {b}", prefix="They go. We two", details=True).json()
    [[_, first], [_, second]] = both["sentences"]
    assert (first[:8], second[:6]) == ("They go.", "We two")
    too_many = server.translate(q=f"{a} {b}", prefix="One. Two. Three", details=True).json()
    assert [text.partition("e")[0] for _, text in too_many["sentences"]] == ["On", "Two. Thr"]
    whole = server.translate(q=f"{a} {b}", split_sentences=False, details=True).json()
    assert [src for src, _ in whole["sentences"]] == [f"{a} {b}"]


def test_capitals_are_translated_as_if_they_were_none(server: Server) -> None:
    src = "Le chat noir dort ."
    said = server.translate(q=src, alternatives=1).json()
    shouted = server.translate(q=src.upper(), alternatives=1, split_sentences=False).json()
    assert shouted["translatedText"] == said["translatedText"].upper() != said["translatedText"]
    assert shouted["alternatives"] == [text.upper() for text in said["alternatives"]]
    begun = server.translate(q=src.upper(), prefix="A W").json()["translatedText"]
    assert begun == server.translate(q=src, prefix="A w").json()["translatedText"].upper()
    assert server.translate(q=src, prefix="WE").json()["translatedText"].startswith("WE")


def test_words_are_linked_in_capitals_as_if_these_were_none(
    server: Server, translator: Translator
) -> None:
    src, tgt = "Le chat noir dort .", "A cat ."  # alone too few letters to be in capitals
    plain, mixed = (list(map(list, translator.align(src, t).links)) for t in (tgt, tgt.upper()))
    assert plain != mixed
    # A text in small letters says that the other is as it is meant.
    for one, other, pairs in (
        (src, tgt, plain),
        (src.upper(), tgt.upper(), plain),
        (src, tgt.upper(), mixed),
    ):
        found = server("POST", "/align", {"src": one, "tgt": other}).json()
        assert found == {"src": one.split(), "tgt": other.split(), "pairs": pairs}


def test_what_it_offers(server: Server, trained_run: Path) -> None:
    assert server("GET", "/languages").json() == [
        {"code": "en", "name": "English", "targets": []},
        {"code": "fr", "name": "French", "targets": ["en"]},
    ]
    assert server("GET", "/health").json() == {"status": "ok"}
    [detected] = server("POST", "/detect", "q=Le+chat", FORM).json()
    assert detected == {"language": "fr", "confidence": 0}
    [model] = server("GET", "/models").json()["models"]
    assert model["name"] == trained_run.name
    assert model["searches"] == ["beam", "greedy"]
    assert (model["mbr"], model["attention"]) == (None, True)
    checkpoint = load_run(trained_run)
    assert (model["sha256"], model["update"]) == (checkpoint.checksum, checkpoint.step)


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({}, 400, "q: give a text or a list of texts"),
        ({"q": ["a", 1]}, 400, "q: give a text"),
        ({"q": "a", "format": "html"}, 400, "format 'html': only text is known here"),
        ({"q": "a", "target": "de"}, 400, "from 'auto' to 'de': no model here; there is: fr to en"),
        ({"q": "a", "model": "../x"}, 400, "model '../x' is not here; there are: demo_"),
        ({"q": "a", "model": ["x"]}, 400, "model ['x'] is not here"),
        ({"q": "a", "search": "breadth"}, 400, "search 'breadth': one of beam, greedy"),
        ({"q": "a", "alternatives": "many"}, 400, "alternatives = 'many': an integer from 0 to 16"),
        ({"q": "a", "alternatives": 1e400}, 400, "alternatives = inf"),
        ({"q": "a", "alternatives": 1.5}, 400, "alternatives = 1.5: an integer"),
        ({"q": "a", "alternatives": True}, 400, "alternatives = True: an integer"),
        ({"q": "a", "alternatives": "9" * 5000}, 400, "an integer from 0 to 16"),
        ({"q": "a", "details": []}, 400, "details = []: true or false"),
        ({"q": "a", "details": "many"}, 400, "details = 'many': true or false"),
        ({"q": "\ud800"}, 400, "not valid Unicode"),
        ({"q": ["a", "b"], "prefix": "x"}, 400, "prefix has 1 texts, and q 2"),
        (
            {"q": "a\nb", "prefix": "x\ny\nz"},
            400,
            "the beginning (prefix) has 3 lines, and the text 2",
        ),
        ({"q": "a", "prefix": False}, 400, "prefix: give a text or a list of texts"),
        (
            {"q": "a\n\na", "prefix": "\n\n" + "the " * 200},
            400,
            f"prefix 3, '{'the ' * 10}': 200 tokens, but the whole translation may have 14: ",
        ),
        ({"q": "a", "prefix": "la " * 1000}, 413, "3,001 characters: at most 2,000 in a request"),
        ({"q": "la " * 1000}, 413, "3,000 characters: at most 2,000 in a request"),
        ({"q": "la\n" * 17}, 413, "17 sentences: at most 16 in a request"),
        ({"q": "x", "pad": "x" * 5_000_000}, 413, "at most 28,096 bytes"),
        ([], 400, "not a JSON object"),
        ("{", 400, "neither JSON nor a URL-encoded form"),
        ("[" * 20_000, 400, "neither JSON nor a URL-encoded form"),
        (b"\xe9", 400, "the request is not UTF-8"),
        (b"\xff\xfe", 400, "neither JSON nor a URL-encoded form"),
    ],
)
def test_bad_requests_are_named(server: Server, asked: Any, status: int, said: str) -> None:
    answer = server("POST", "/translate", asked)
    assert answer.status == status
    assert said in answer.json()["error"]
    assert "/" not in answer.json()["error"].replace("../x", "")  # no path of the machine


ONE_PAIR = "src and tgt: give a sentence and its translation"


@pytest.mark.parametrize(
    ("path", "pair", "status", "said"),
    [
        ("/align", {"src": "a", "tgt": " "}, 400, ONE_PAIR),
        ("/align", {"src": ["a", "b"], "tgt": "c"}, 400, ONE_PAIR),
        ("/align", {"src": "a", "tgt": "la " * 1000}, 413, "3,001 characters: at most 2,000"),
        ("/align", {"src": "a", "tgt": "x" * 1999}, 400, "tokens: at most 1,024; split it"),
        ("/explore", None, 400, "text: give a sentence"),
        (f"/explore?text={'mot+' * 700}", None, 413, "2,800 characters: at most 2,000"),
        (f"/explore?text={'mot+' * 200}", None, 400, "tokens: at most 128; split it"),
    ],
)
def test_bad_questions_about_a_sentence_are_named(
    server: Server, path: str, pair: Any, status: int, said: str
) -> None:
    answer = server("POST" if pair else "GET", path, pair)
    assert answer.status == status
    assert said in answer.json()["error"]


def test_a_model_is_chosen_by_its_languages_and_answers_for_its_own() -> None:
    there: Any = {
        name: SimpleNamespace(src_lang=name[:2], tgt_lang=name[3:])
        for name in ("fr-en", "en-fr", "fr-de")
    }
    service = Service(there, FEW)
    asked = ({}, {"source": "en"}, {"source": "auto", "target": "de"}, {"model": "fr-de"})
    assert [*map(service._model_for, asked)] == ["fr-en", "en-fr", "fr-de", "fr-de"]
    said = "from 'en' to 'any': not by fr-de; there is: fr to de"
    with pytest.raises(HTTPException, match=f"^400: {said}$"):
        service._model_for({"model": "fr-de", "source": "en"})


def test_a_null_is_a_field_that_is_left_out(server: Server) -> None:
    nothing = dict.fromkeys(("source", "target", "format", "search", "model", "alternatives"))
    answers = [server("POST", "/translate", {"q": "le chat", **more}) for more in ({}, nothing)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


def test_it_shows_a_sentence_in_the_explorer(server: Server) -> None:
    page = server("GET", "/explore?text=Le+chat+%3Cb%3E")
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert b"script-src 'sha256-" in page.body
    assert b"Le chat \\u003cb\\u003e" in page.body
    assert server("GET", "/explore?text=LE+CHAT+%3CB%3E").body == page.body  # as it is translated


def test_no_file_is_reachable_and_no_other_name_either(server: Server) -> None:
    for path in ("/../serve.py", "/%2e%2e/serve.py", "/page.py", "/serving/app.py", "//etc/passwd"):
        assert server("GET", path).status == 404
    assert server("GET", "/translate").status == 405
    assert server("GET", "/models", headers={"Host": "elsewhere.example"}).status == 400
    page = server("GET", "/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    assert server("GET", "/page.js").headers["content-type"].startswith("text/javascript")


# ------------------------------------------------------------------- a search that takes its time


class Panic(BaseException):
    """As what libraries in Rust raise."""


class Slow:
    """A model that answers when it may."""

    src_lang, tgt_lang, searches = "fr", "en", ("beam", "greedy")

    def __init__(self) -> None:
        self.may_end, self.begun, self.seen = threading.Event(), threading.Event(), []

    def sentences(self, line: str) -> list[str]:
        return [line]

    def beginnings(self, prefix: str, n: int) -> list[str]:
        return [prefix] * n

    def require_short(self, text: str, *, prefix: str, number: int) -> None: ...

    def do(self, task: Task, items: list[tuple[str, str]]) -> list[Any]:
        texts = [text for text, _ in items]
        self.seen += texts
        self.begun.set()
        assert self.may_end.wait(20)
        if "broken" in texts:
            raise Panic("a secret of /root")
        return [[{"text": text.upper(), "score": 0.0, "finished": True}] for text in texts]


@contextlib.contextmanager
def served(limits: Limits, **how: Any) -> Iterator[tuple[Server, Slow]]:
    slow = Slow()
    app = build_app({"slow": slow}, limits, **how)  # type: ignore[dict-item]
    uv = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=uv.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Server(None, listening.getsockname()[1]), slow  # type: ignore[arg-type]
        finally:
            slow.may_end.set()
            uv.should_exit = True
            thread.join(20)


def test_full_late_gone_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.app.MOST_DISCARDED", 8)  # less than a body may have
    made = served(FEW, origins=["https://a.example"])
    half = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    with made as (server, slow), ThreadPoolExecutor() as pool:
        unsent = socket.create_connection(("127.0.0.1", server.port), 20)
        unsent.sendall(half)
        late = pool.submit(server.translate, q="first")
        assert slow.begun.wait(10)
        with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as gone:
            body = json.dumps({"q": "gone\ngone"}).encode()
            head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            gone.sendall(head.encode() + body)
            full = server.translate(q="x\ny")
            while full.status == 200 or "waiting" not in full.json()["error"]:
                full = server.translate(q="x\ny")
            assert (full.status, full.headers["retry-after"]) == (503, "1")
        answer = late.result()
        assert answer.status == 504
        assert answer.json() == {"error": "not done in 1 seconds: send less at a time"}
        with unsent:
            assert unsent.recv(12) == b"HTTP/1.1 408"
        while (health := server("GET", "/health")).status == 200:
            time.sleep(0.05)
        assert health.json() == {"error": "one search takes over 2 seconds"}
        slow.may_end.set()
        in_parts = server.translate(q="last", pad="x" * 1_000_000)
        assert in_parts.json() == {"translatedText": "LAST"}
        assert "gone" not in slow.seen  # its client went away while it waited
        broken = server.translate(q="broken")
        assert (broken.status, broken.json()) == (500, {"error": "internal error"})
        health = server("GET", "/health", headers={"Origin": "https://a.example"})
        assert health.json() == {"status": "ok"}
        assert health.headers["access-control-allow-origin"] == "https://a.example"


# ---------------------------------------------------------------------------------- start and end


def lean(folder: Path) -> dict[str, str]:
    """What hides all packages from Python but those that docs/usage.md installs in an image."""
    usage = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
    named = re.search(r"pip install -c requirements\.txt ([^`]*)```", usage)
    assert named
    wanted, kept = [name for name in named[1].split() if name != "\\"], set[str]()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name not in kept and not kept.add(name):
            with contextlib.suppress(metadata.PackageNotFoundError):  # as on other systems alone
                needs = metadata.requires(name) or []
                wanted += [Requirement(of).name for of in needs if "extra ==" not in of]
    modules = metadata.packages_distributions().items()
    hidden = {module for module, of in modules if not kept & set(map(canonicalize_name, of))}
    hidden -= {path.stem for path in ROOT.iterdir()}  # which `pip install -e .` makes a package
    assert {"datasets", "ignite", "matplotlib", "nltk", "sacrebleu", "transformers"} <= hidden
    hide = f"import sys\nsys.modules.update(dict.fromkeys({sorted(hidden)}))\n"
    (folder / "sitecustomize.py").write_text(hide)
    return {"PYTHONPATH": str(folder)}


def test_it_ends_when_what_is_under_way_is_answered(trained_run: Path, tmp_path: Path) -> None:
    (link := tmp_path / "current").symlink_to(trained_run)
    # 127.0.0.1 by another name
    args = ("--model_path", trained_run, link, "--host", "127.1")
    args += ("--allowed_host", "proxied.example")
    with serving(*args, **lean(tmp_path)) as server, ThreadPoolExecutor() as pool:
        assert server("GET", "/explore?text=Le+chat+dort.").status == 200
        for host, status in (("elsewhere.example", 400), ("proxied.example", 200)):
            assert server("GET", "/models", headers={"Host": host}).status == status
            assert server("GET", "/health", headers={"Host": host}).status == 200  # a probe
            assert server("GET", "/metrics", headers={"Host": host}).status == 200
        seconds = server("GET", "/metrics").body
        assert b'fr2en_request_seconds_count{path="/models"} 2.0' in seconds
        assert b"process_resident_memory_bytes" in seconds
        names = [model["name"] for model in server("GET", "/models").json()["models"]]
        assert names == [trained_run.name, "current"]
        text = "\n".join(["Le chat dort."] * 300)
        answer = pool.submit(server.translate, q=text)
        while b"fr2en_waiting 0.0" in server("GET", "/metrics").body:
            assert not answer.done()
        server.process.send_signal(signal.SIGTERM)
        assert len(answer.result().json()["translatedText"].split("\n")) == 300
        assert server.process.wait(20) == -signal.SIGTERM


def test_a_second_ctrl_c_waits_for_nothing_and_a_terminal_is_not_needed(
    trained_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(server: uvicorn.Server, **_: Any) -> None:
        assert server.config.timeout_graceful_shutdown == 120  # a body has 60, and its answer
        for _ in range(2):
            assert not codes
            server.handle_exit(signal.SIGINT, None)
        assert timer.mock_calls == [mock.call(180, codes.append, (1,)), mock.call().start()]

    codes: list[int] = []
    timer = mock.Mock()
    monkeypatch.setattr("threading.Timer", timer)
    monkeypatch.setattr(uvicorn.Server, "run", pressed)
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("sys.stdout", None)  # closed, as some who start it in the background do
    serve.main(["--model_path", str(trained_run), "--port", "0"])
    assert codes == [130]
    assert timer.mock_calls[-1] == mock.call().cancel()
    assert capsys.readouterr().err == "interrupted\n"


def test_what_it_cannot_serve_is_one_line(
    trained_run: Path, tmp_path: Path, in_process: Any
) -> None:
    start, url = in_process(serve.main), r"https://example\.org"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for args, words in (
            (f"--port {port}", rf"--host 127\.0\.0\.1 --port {port}: Address already in use; give"),
            ("--host no.such.host", r"--host no\.such\.host .*; give another --host"),
            (f"--runs_dir {tmp_path}", "no run with a checkpoint"),
            ("--port 99999", "--port 99999: give a number from 0 to 65535$"),
            (
                "--allowed_host example.org:80",
                r"--allowed_host example\.org:80: only a name, such as example\.org$",
            ),
            ("--cors https://example.org/", rf"--cors {url}/: only scheme and host in small ASCII"),
            (
                "--cors https://example.org:443",
                f"--cors {url}:443: without its port, which browsers leave out$",
            ),
        ):
            run = () if "--runs_dir" in args else ("--model_path", trained_run)
            assert re.match(words, start("--port", "0", *run, *args.split()).error())


def test_a_model_is_served_by_the_name_that_was_given() -> None:
    run, cached = Path("/runs/toy_20260101_000000"), Path("/cache/opus-0123456789abcdef")
    assert serve.name_of(run, run) == serve.name_of(run / "checkpoints/a.pt", run) == run.name
    assert serve.name_of(Path("/home/owner/opus"), cached) == "opus"
    assert serve.name_of(Path("/runs/\udce9té"), cached) == r"\udce9té"  # JSON has no such text


def test_an_address_of_one_link_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    address, bound = ("fe80::1", 0, 0, 4), list[Any]()
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", address)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_server", lambda address, **_: bound.append(address))
    serve.listen("fe80::1%eth0", 0)
    assert bound == [address]
