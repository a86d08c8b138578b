"""Flags that say with which certificate a command calls, and whom it trusts.

Knows flags and `[tls]` of the configuration; opens nothing.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from services.chassis.certificate import Files
from services.chassis.fatal import ConfigError
from services.chassis.tls import OPERATOR, Tls, load_tls


def add_tls_flags(group: Any, *, config: bool = True) -> None:
    """Add them to a parser or a group of one.

    Args:
        config: Whether --config too; where not, the command has one.
    """
    group.add_argument("--ca-cert", type=Path, metavar="FILE", help="encrypt, checking by this authority")
    group.add_argument("--cert", type=Path, metavar="FILE", help="show this certificate")
    group.add_argument("--cert-key", type=Path, metavar="FILE", help="the key of --cert")
    if config:
        about = "take [tls] from it [QUIRE_CONFIG; QUIRE_TLS_CA, _CERT and _KEY do without a file]"
        group.add_argument("--config", type=Path, default=os.environ.get("QUIRE_CONFIG"), help=about)


def given_tls(args: argparse.Namespace) -> Tls | None:
    """Return what the flags say; None: they say nothing.

    Raises:
        ConfigError: A file is missing or cannot be used.
    """
    if (args.cert is None) != (args.cert_key is None):
        raise ConfigError("--cert and --cert-key must be given together")
    if args.ca_cert is None and args.cert is None:
        return None
    return Tls(Files(ca=args.ca_cert, cert=args.cert, key=args.cert_key))


def operator_tls(args: argparse.Namespace) -> Tls | None:
    """Return what services are called with: the flags', else the operator's of `[tls]`; None: plain text.

    Raises:
        ConfigError: A file is missing or cannot be used.
    """
    return given_tls(args) or load_tls(OPERATOR, _config_words(args))


def caller_tls(args: argparse.Namespace) -> Tls | None:
    """Return what the gateway is called with: the flags', else trust in the authority of `[tls]`.

    Raises:
        ConfigError: A file is missing or cannot be used.
    """
    if (given := given_tls(args)) is not None:
        return given
    configured = load_tls(OPERATOR, _config_words(args))
    return None if configured is None else Tls(Files(ca=configured.files.ca))


def _config_words(args: argparse.Namespace) -> tuple[str, ...]:
    return () if args.config is None else ("--config", str(args.config))
