"""Ask a live page's server, as a browser does."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Mapping
from typing import Any


def asked(url: str, headers: Mapping[str, str] = {}, *, post: bool = False) -> Any:
    method = "POST" if post else "GET"
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=600) as answer:
        text = answer.read().decode()
    return (
        json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text
    )


def url_of(process: subprocess.Popen[str]) -> str:
    """Return the address that a command prints first."""
    assert process.stderr is not None
    (url,) = re.findall(r"live page: (\S+)", process.stderr.readline())
    return str(url)
