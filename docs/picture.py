"""Record ``python -m racer run`` as docs/run.svg, the picture in the README.

    .venv/bin/python docs/picture.py [OPTION ...]    options of ``racer run``; without any, its own prompt

``script`` (Debian: bsdutils) gives the command the terminal that it colours its text for.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from racer.commands.run import PROMPT

COLUMNS = 100
TARGET = Path(__file__).with_name("run.svg")


def record(options: list[str]) -> str:
    """What ``racer run`` writes to a terminal, colours included; its notices, on stderr, left out."""
    command = shlex.join([sys.executable, "-m", "racer", "run", *options])
    shown = subprocess.run(
        ["script", "--quiet", "--return", "--command", f"{command} 2>/dev/null", "/dev/null"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return shown.replace("\r\n", "\n").strip()


def picture(text: str) -> str:
    """A terminal window with ``text`` as SVG, in colours of its own and fonts of the reader's machine."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="racer-serve", theme=MONOKAI, unique_id="run")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    options = sys.argv[1:] or ["--prompt", PROMPT]
    line = "$ " + shlex.join(["python", "-m", "racer", "run", *options])
    TARGET.write_text(picture(f"{line}\n\n{record(options)}"), encoding="utf-8")
    print(TARGET)
