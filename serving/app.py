"""One ASGI app: the interface for programs, after LibreTranslate's, and the page's files."""

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from serving.batcher import Batcher, Full
from serving.measures import Hosts, Measures, Watched
from serving.tasks import MOST_SHOWN, Served, Task
from translation.sentences import lower_capitals, margin, separator
from utils.errors import UserError

logger = logging.getLogger(__name__)

PAGE = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"}
LANGUAGES = {"fr": "French", "en": "English", "de": "German", "nl": "Dutch", "es": "Spanish"}
FORM = "application/x-www-form-urlencoded"
GONE = 499  # the client has gone; only for the counts
MOST_ALTERNATIVES = 16
# Bytes to read of a body that is too large: a client answered while it sends may miss the answer.
MOST_DISCARDED = 1 << 24


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of requests and batches."""

    max_batch: int  # sentences searched at once
    max_wait: float  # seconds that the first of a batch waits for others
    max_waiting: int  # sentences; more are refused with 503
    max_chars: int  # of a request's texts together
    timeout: float  # seconds


def build_app(
    models: Mapping[str, Served],
    limits: Limits,
    *,
    hosts: Sequence[str] = ("*",),
    origins: Sequence[str] = (),
) -> Starlette:
    """An app that translates with `models`, by name; the first is the default.

    Args:
        hosts: the allowed Host headers, against other sites' names for this machine ("DNS
            rebinding").
        origins: the sites whose scripts may read the answers (CORS).
    """
    service = Service(models, limits)
    routes = [Route(path, service.file) for path in PAGE]
    routes += [
        Route("/translate", service.translate, methods=["POST"]),
        Route("/detect", service.detect, methods=["POST"]),
        Route("/align", service.align, methods=["POST"]),
        Route("/explore", service.explore),
        Route("/languages", service.languages),
        Route("/models", service.names),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
    ]
    middleware = [
        Middleware(Watched, measures=service.measures, paths=[route.path for route in routes]),
        Middleware(Hosts, allowed_hosts=list(hosts), www_redirect=False),
    ]
    if origins:  # outermost: errors are read by those sites too
        cors: dict[str, Any] = {"allow_methods": ["GET", "POST"], "allow_headers": ["Content-Type"]}
        cors["expose_headers"] = ["Retry-After"]
        middleware.insert(0, Middleware(CORSMiddleware, allow_origins=list(origins), **cors))

    handlers: dict[Any, Any] = {HTTPException: refused, Full: service.full, UserError: unfit}
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers=handlers,
        lifespan=lambda app: service.batcher.running(),
    )


class Service:
    """The answers: a method for each kind of request."""

    def __init__(self, models: Mapping[str, Served], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.measures = Measures()
        self.batcher: Batcher = Batcher(
            lambda task, items: self.models[task.model].do(task, items),
            max_batch=limits.max_batch,
            max_wait=limits.max_wait,
            max_waiting=limits.max_waiting,
            watch=self.measures.batch,
        )
        self.measures.waiting.set_function(lambda: len(self.batcher))

    # ------------------------------------------------------------------------------ for programs

    async def translate(self, request: Request) -> Response:
        """q, a text or a list of texts -> translatedText, alternatives; `details`: with scores.

        `prefix`, as many texts, gives the beginnings of the translations, line by line. Each
        sentence of a line is translated by itself, unless `split_sentences` is false; those of a
        prefix are dealt out to them. One in capitals is translated as if it were not, and its
        translation put in capitals.
        """
        asked = await self._asked(request)
        name, several = self._model_for(asked), isinstance(asked.get("q"), list)
        texts = as_texts(asked, "q")
        if asked.get("format", "text") != "text":
            raise HTTPException(400, f"format {asked['format']!r}: only text is known here")
        n_more = as_count(asked, "alternatives", MOST_ALTERNATIVES)
        detailed = as_flag(asked, "details")
        # A blank line gives a blank line.
        lines = [text.split("\n") for text in texts]
        begun = [""] * len(texts)
        if asked.get("prefix", "") != "":
            begun = as_texts(asked, "prefix")
        model, pairs = self.models[name], paired(lines, begun)
        self._bound([*texts, *begun], 0)  # before they are cut
        parts = [[line] if line.strip() else [] for line, _ in pairs]
        margins = [""] * len(parts)
        if as_flag(asked, "split_sentences", default=True):
            margins = [margin(line) for line, _ in pairs]
            parts = [
                [s for line in part for s in model.sentences(line.removeprefix(before))]
                for before, part in zip(margins, parts)
            ]
        self._bound([*texts, *begun], sum(map(len, parts)))
        items: list[tuple[str, str]] = []
        for number, ((_, prefix), before, part) in enumerate(zip(pairs, margins, parts)):
            begun = model.beginnings(prefix.removeprefix(before), len(part))
            for sentence, begins in zip(part, begun):
                small = lower_capitals(sentence)
                begins = begins if small == sentence else lower_capitals(begins, 1)
                model.require_short(small, prefix=begins, number=number)
                items.append((small, begins))
        search = asked.get("search", model.searches[0])
        if search not in model.searches:
            raise HTTPException(400, f"search {search!r}: one of {', '.join(model.searches)}")
        task = Task(name, "translate", search, 1 + n_more)
        found, sentences = await self._in_time(request, task, items), list(itertools.chain(*parts))
        found = [
            each if small == sentence else _in_capitals(each)
            for sentence, (small, _), each in zip(sentences, items, found)
        ]
        each, between = iter(found), separator(model.tgt_lang)
        of_lines = iter(
            [
                _joined([next(each) for _ in part], between, before) if part else []
                for before, part in zip(margins, parts)
            ]
        )
        ranked = [_joined([next(of_lines) for _ in text])[: 1 + n_more] for text in lines]
        answer: dict[str, Any] = {"translatedText": [each[0]["text"] for each in ranked]}
        if n_more:
            answer["alternatives"] = [[h["text"] for h in each[1:]] for each in ranked]
        if detailed:
            answer["hypotheses"] = ranked
            answer["reads_as_source"] = list(map(model.reads, texts))
            best = iter([[src, tgt[0]["text"]] for src, tgt in zip(sentences, found)])
            sizes = iter(map(len, parts))
            counts = [sum(next(sizes) for _ in text) for text in lines]
            answer["sentences"] = [list(itertools.islice(best, n)) for n in counts]
        if not several:
            answer = {key: value[0] for key, value in answer.items()}
        if asked.get("source") == "auto":
            detected = undetected(model.src_lang)
            answer["detectedLanguage"] = [detected] * len(texts) if several else detected
        return JSONResponse(answer)

    async def detect(self, request: Request) -> Response:
        """q, a text -> the languages of the models; nothing is detected."""
        as_texts(await self._asked(request), "q")
        sources = dict.fromkeys(model.src_lang for model in self.models.values())
        return JSONResponse([undetected(code) for code in sources])

    async def align(self, request: Request) -> Response:
        """src and tgt, a sentence and its translation -> the words of each, and linked pairs."""
        asked = await self._asked(request)
        name, pair = self._model_for(asked), [*as_texts(asked, "src"), *as_texts(asked, "tgt")]
        if len(pair) != 2 or not all(text.strip() for text in pair):
            raise HTTPException(400, "src and tgt: give a sentence and its translation")
        self._bound(pair, 1)
        self.models[name].require_attention()
        small = [lower_capitals(pair[0]), pair[1]]
        if small != pair:
            small[1] = lower_capitals(pair[1], 1)
        self.models[name].require_short(small[0], tgt=small[1])
        [found] = await self._in_time(request, Task(name, "align"), [small])
        return JSONResponse({**found, "src": pair[0].split(), "tgt": pair[1].split()})

    async def explore(self, request: Request) -> Response:
        """The explorer's page of a sentence: ?text=...&model=..."""
        asked = request.query_params
        name, text = self._model_for(asked), asked.get("text", "")
        if not text.strip():
            raise HTTPException(400, "text: give a sentence")
        self._bound([text], 1)
        self.models[name].require_attention()
        text = lower_capitals(text)
        self.models[name].require_short(text, most=MOST_SHOWN)
        task = Task(name, "explore", text=text)
        [found] = await self._in_time(request, task, [text])
        # The page sets the rest of the policy, by the checksums of its script and its style.
        headers = {"Content-Security-Policy": "frame-ancestors 'none'"}
        return Response(found, media_type="text/html", headers=headers)

    async def languages(self, request: Request) -> Response:
        """The languages of the models, and the target languages of each."""
        pairs = {(model.src_lang, model.tgt_lang) for model in self.models.values()}
        codes = sorted({code for pair in pairs for code in pair})
        into = {code: sorted(tgt for src, tgt in pairs if src == code) for code in codes}
        named = [{"code": c, "name": LANGUAGES.get(c, c), "targets": t} for c, t in into.items()]
        return JSONResponse(named)

    async def names(self, request: Request) -> Response:
        """The choices that the page offers."""
        shown = [
            {
                "name": name,
                "source": model.src_lang,
                "target": model.tgt_lang,
                "searches": model.searches,
                "mbr": model.translator.decode.mbr,
                "attention": model.shows_attention,
                "sha256": model.loaded.checksum,
                "update": model.loaded.step,
            }
            for name, model in self.models.items()
        ]
        return JSONResponse({"models": shown, "max_chars": self.limits.max_chars})

    async def health(self, request: Request) -> Response:
        """Not well is a search that takes twice what a request may: it may never end."""
        begun, most = self.batcher.begun, 2 * self.limits.timeout
        if begun is not None and time.monotonic() - begun > most:
            return JSONResponse({"error": f"one search takes over {most:g} seconds"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Counts and times in Prometheus' text format."""
        return Response(self.measures.text(), media_type="text/plain; version=0.0.4")

    async def file(self, request: Request) -> Response:
        """A file of the page; no other file is served."""
        path = request.url.path
        name = "page.html" if path == "/" else path.removeprefix("/")
        text = (Path(__file__).parent / name).read_bytes()
        return Response(text, media_type=PAGE[path])

    async def full(self, request: Request, error: Exception) -> Response:
        what = f"{len(self.batcher):,} sentences are waiting already: try again in a second"
        return JSONResponse({"error": what}, 503, {"Retry-After": "1"})

    # ------------------------------------------------------------------------------------ limits

    async def _asked(self, request: Request) -> Mapping[str, Any]:
        """The body, as JSON or a form, or the query of a request without one.

        Raises HTTPException.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        most = 12 * self.limits.max_chars + 4096  # JSON takes at most twelve bytes a character
        body, n_bytes = b"", 0
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for part in request.stream():
                    n_bytes += len(part)
                    body = body + part if n_bytes <= most else b""
                    if n_bytes > max(most, MOST_DISCARDED):
                        break
        except TimeoutError:
            raise HTTPException(408, f"not sent within {self.limits.timeout:g} seconds") from None
        except ClientDisconnect:
            raise HTTPException(GONE, "the client has gone") from None
        if n_bytes > most:
            raise HTTPException(413, f"at most {most:,} bytes in a request")
        try:
            as_json = body.lstrip().startswith(b"{")  # which curl calls a form too
            as_form = kind == FORM and not as_json
            if as_form or (request.url.query and not body):
                text = body.decode() or request.url.query
                form = parse_qs(text, True, errors="strict")
                several = {key: form.pop(key) for key in ("q", "prefix") if key in form}
                asked = {key: of if len(of) > 1 else of[0] for key, of in several.items()}
                return asked | {key: values[-1] for key, values in form.items() if values[-1]}
            asked = json.loads(body)
        except UnicodeDecodeError:
            raise HTTPException(400, "the request is not UTF-8") from None
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is neither JSON nor a URL-encoded form") from None
        if not isinstance(asked, dict):
            raise HTTPException(400, "the body is not a JSON object")
        return {key: value for key, value in asked.items() if value is not None}

    def _model_for(self, asked: Mapping[str, Any]) -> str:
        """The named model, or the first for the named languages."""
        name, source = asked.get("model"), asked.get("source", "auto")
        if name is not None and name not in list(self.models):  # it may be unhashable
            allowed = ", ".join(self.models)
            raise HTTPException(400, f"model {name!r} is not here; there are: {allowed}")
        able = self.models if name is None else {name: self.models[name]}
        for here, model in able.items():
            fits = source in ("auto", model.src_lang)
            if fits and asked.get("target", model.tgt_lang) == model.tgt_lang:
                return here
        pairs = dict.fromkeys(f"{m.src_lang} to {m.tgt_lang}" for m in able.values())
        said = f"from {source!r} to {asked.get('target', 'any')!r}"
        where = "no model here" if name is None else f"not by {name}"
        raise HTTPException(400, f"{said}: {where}; there is: {', '.join(pairs)}")

    def _bound(self, texts: Sequence[str], n_sentences: int) -> None:
        """Raises HTTPException for more text than one request may have."""
        if (n := sum(map(len, texts))) > (most := self.limits.max_chars):
            raise HTTPException(413, f"{n:,} characters: at most {most:,} in a request")
        if n_sentences > (most := self.limits.max_waiting):
            raise HTTPException(413, f"{n_sentences:,} sentences: at most {most:,} in a request")

    async def _in_time(self, request: Request, task: Task, items: Sequence[Any]) -> list[Any]:
        """A result for each item; cancelled if the client goes away or time runs out."""
        work = asyncio.ensure_future(self.batcher.submit(task, items))
        gone = asyncio.ensure_future(_going(request))
        timeout = self.limits.timeout
        try:
            await asyncio.wait({work, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                try:
                    return work.result()
                except UserError as error:  # what a client can cause was refused before
                    logger.error("%s", error)
                    raise HTTPException(500, " ".join(str(error).split())) from error
            if gone.done():
                raise HTTPException(GONE, "the client has gone")
            raise HTTPException(504, f"not done in {timeout:g} seconds: send less at a time")
        finally:
            work.cancel()
            gone.cancel()


def undetected(code: str) -> dict[str, Any]:
    """A language without detection, in LibreTranslate's form."""
    return {"language": code, "confidence": 0}


def as_texts(asked: Mapping[str, Any], key: str) -> list[str]:
    """A text of a request, or its list of them. Raises HTTPException."""
    value = asked.get(key)
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, f"{key}: give a text or a list of texts")
    return texts


def as_count(asked: Mapping[str, Any], key: str, most: int) -> int:
    """A number of a request, 0 where there is none. Raises HTTPException."""
    given = asked.get(key)
    text = "0" if given in (None, "") else str(given)
    if not (text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise HTTPException(400, f"{key} = {given!r}: an integer from 0 to {most}")
    return int(text)


def paired(texts: list[list[str]], prefixes: list[str]) -> list[tuple[str, str]]:
    """The lines of all texts, each with its prefix, "" if it has none. Raises HTTPException."""
    if len(texts) != len(prefixes):
        raise HTTPException(400, f"prefix has {len(prefixes)} texts, and q {len(texts)}")
    pairs: list[tuple[str, str]] = []
    for lines, prefix in zip(texts, prefixes):
        begun = prefix.rstrip().split("\n")
        if len(begun) > len(lines):
            said = f"the beginning (prefix) has {len(begun)} lines, and the text {len(lines)}"
            raise HTTPException(400, said)
        pairs += itertools.zip_longest(lines, begun, fillvalue="")
    return pairs


YES = ("true", "1", "on")  # a form's checkbox sends "on"


def as_flag(asked: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    """A flag of a request, as JSON or as a word in a form. Raises HTTPException."""
    given = asked.get(key)
    word = str(default if given in (None, "") else given).lower()
    if word not in (*YES, "false", "0", "off"):
        raise HTTPException(400, f"{key} = {given!r}: true or false")
    return word in YES


def _in_capitals(ranked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The n best in capitals, the better of two that then have the same text."""
    best: dict[str, dict[str, Any]] = {}
    for each in ranked:
        text = each["text"].upper()
        best.setdefault(text, {**each, "text": text})
    return list(best.values())


def _joined(
    lines: Sequence[Sequence[Mapping[str, Any]]], between: str = "\n", before: str = ""
) -> list[dict[str, Any]]:
    """The n best of a text from those of its lines: all best lines joined, all second, ...

    A line that has fewer gives its last; before: what the text begins with.
    """
    found, there = [], [line for line in lines if line]
    for rank in range(max(map(len, there), default=1)):
        chosen = [line[min(rank, len(line) - 1)] if line else None for line in lines]
        texts = [each["text"] if each else "" for each in chosen]
        if between != "\n":
            texts = [text.strip() for text in texts if text.strip()]
        score = sum(each["score"] for each in chosen if each)
        finished = all(each["finished"] for each in chosen if each)
        found.append({"text": before + between.join(texts), "score": score, "finished": finished})
    return found


async def _going(request: Request) -> None:
    """Wait for the client to go away; call it after the body, if any, was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if "text/html" in request.headers.get("accept", ""):  # a person follows the explorer's link
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def unfit(request: Request, error: Exception) -> Response:
    return await refused(request, HTTPException(400, " ".join(str(error).split())))
