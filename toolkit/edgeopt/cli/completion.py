"""Print what makes a shell complete commands and options."""

from __future__ import annotations

import click

from edgeopt.cli._help import HelpCommand


@click.command(cls=HelpCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print what makes SHELL complete commands, options and their groups, targets, recipes and models.

    \b
    bash  eval "$(edgeopt completion bash)" in ~/.bashrc
    zsh   eval "$(edgeopt completion zsh)" in ~/.zshrc, after compinit
    fish  edgeopt completion fish > ~/.config/fish/completions/edgeopt.fish
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    # `source` would look for the shell's version in the PATH first
    script = complete(ctx.find_root().command, {}, "edgeopt", "_EDGEOPT_COMPLETE")
    click.echo(script.source_template % script.source_vars())


COMMAND = completion
