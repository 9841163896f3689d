"""Sign a bundle, so that devices accept it."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show


@click.command(cls=HelpCommand)
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Private key (Ed25519, PEM).")
@click.option(
    "--release",
    type=click.IntRange(min=0),
    help="Number of the release; devices refuse a number that is not higher than those before.",
    show_default="seconds since 1970",
)
@click.option(
    "--new-key", type=click.Path(path_type=Path), help="Write a new private key here, and FILE.pub beside it."
)
@format_option
def sign(*, bundle: Path | None, key: Path | None, release: int | None, new_key: Path | None, form: str) -> None:
    """Sign BUNDLE, so that devices that trust the key accept it; or make a pair of keys.

    The signature lies beside the bundle, in bundle.signature.json; edgeopt push sends it with the bundle.
    """
    from edgeopt.errors import EdgeoptError
    from edgeopt.runtime.rollout.signature import make_keys, sign_bundle
    from edgeopt.verbs.rollout.summary import summarize_keys, summarize_signature

    if new_key is not None:
        if bundle or key:
            raise EdgeoptError("--new-key makes a pair of keys and signs nothing", remedy="sign in a second command")
        show(summarize_keys(new_key, make_keys(new_key)), form)
        return
    if bundle is None or key is None:
        raise EdgeoptError("sign needs a bundle and a key", remedy="write edgeopt sign BUNDLE --key FILE")
    show(summarize_signature(bundle, sign_bundle(bundle, key, release)), form)


COMMAND = sign
