"""One HTML file that shows traces: no network, no server, and any text shown as text."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

PARTS = Path(__file__).parent / "parts"
SCRIPTS = ("base", "matrix", "tokens", "heads", "search", "positions", "main")  # in this order
# JSON in HTML: no text in the data can end its element.
ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&"})


def page(traces: Sequence[Mapping[str, Any]]) -> str:
    """Traces of one sentence by different models -> HTML. The page forbids itself all requests."""
    style = _part("page.css")
    script = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    data = json.dumps(traces, allow_nan=False, separators=(",", ":")).translate(ESCAPES)
    return Template(_part("page.html")).substitute(
        style=style,
        script=script,
        data=data,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
    )


def _part(name: str) -> str:
    return (PARTS / name).read_text("utf-8")


def _hash(content: str) -> str:
    """The name of allowed content in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
