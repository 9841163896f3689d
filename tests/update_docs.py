"""Write docs/commands.md from the commands' own help, and docs/api.md from the docstrings.

python tests/update_docs.py
"""

from __future__ import annotations

from pathlib import Path

import click
from api_reference import api_page
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.workloads import kinds, verbs

HOW_TO_READ = """\
`edgeopt COMMAND --help` (or `-h`) is one screen: the options that most users need, then all options by name, group by
group. `edgeopt bench --help load` shows one group in full, with units and defaults; the groups' names are in the first
column of the screen, and shells complete them. `edgeopt bench --help jitter` shows the group of an option,
`edgeopt bench --help all` everything, as below. A command whose whole help fits a screen shows it at once.
"""
DOCS = Path(__file__).parents[1] / "docs" / "commands.md"
API = DOCS.with_name("api.md")


def shown_help(*command: str) -> str:
    """Return what `edgeopt COMMAND --help all` prints on a wide terminal."""
    result = CliRunner(env={"COLUMNS": "110"}).invoke(
        cli, [*command, "--help", "all"], prog_name="edgeopt", terminal_width=110
    )
    if result.exit_code:  # an import that fails must not empty a page
        raise RuntimeError(
            f"edgeopt {' '.join(command)} --help all ended with {result.exit_code}"
        ) from result.exception
    return result.output.strip()


def commands_page() -> str:
    """Return the page with the help of every command."""
    names = cli.list_commands(click.Context(cli))
    parts = [f"## edgeopt {name}\n\n```text\n{shown_help(name)}\n```\n" for name in names]
    return "\n".join(["# Commands\n", HOW_TO_READ, f"```text\n{shown_help()}\n```\n", kinds_and_verbs(), *parts])


def kinds_and_verbs() -> str:
    """Return which verb takes which kind of workload, and what is said where it does not."""
    names = verbs()
    rows = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for kind in reversed(kinds()):
        only = [verb for verb in names if kind.has(verb)]
        no = f"no (only `{only[0]}`)" if len(only) == 1 else ""
        cells = ("yes" if kind.has(verb) else no or kind.refusals[verb][0] for verb in names)
        rows.append(f"| {kind.noun} | {' | '.join(cells)} |")
    pairs = "An encoder with a decoder counts as a language model here; it takes no --load, --draft or --rivals."
    text = "What a verb is pointed at is recognised; an option that belongs to another kind is refused in one line."
    return "\n".join(["## Verbs and kinds of workload\n", f"{text}\n", *rows, "", f"{pairs}\n"])


if __name__ == "__main__":
    DOCS.write_text(commands_page(), "utf-8")
    API.write_text(api_page(), "utf-8")
