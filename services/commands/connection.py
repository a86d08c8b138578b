"""Flags that say which gateway to call as whom, and which model.

Knows flags and the client; makes one call at most, to find the only model served.
"""

import argparse
import os

import grpc

from services.chassis.fatal import FatalError
from services.client import Client, ServeError
from services.commands.tls_flags import add_tls_flags, caller_tls

DEFAULT_PORT = 50051


def add_connection_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which gateway")
    group.add_argument(
        "--target",
        metavar="HOST:PORT",
        default=os.environ.get("QUIRE_TARGET"),
        help=f"gateway [QUIRE_TARGET, default 127.0.0.1:{DEFAULT_PORT}]",
    )
    group.add_argument("--port-offset", type=int, default=0, help="that `quire up` was given [default 0]")
    group.add_argument(
        "--api-key", default=os.environ.get("QUIRE_API_KEY"), help="[QUIRE_API_KEY, default none]"
    )
    group.add_argument("--tls", action="store_true", help="encrypt, checking by the system's authorities")
    add_tls_flags(group)


def target_of(args: argparse.Namespace) -> str:
    return args.target or f"127.0.0.1:{DEFAULT_PORT + args.port_offset}"


def open_client(args: argparse.Namespace) -> Client:
    """Return a client as the flags say.

    Raises:
        ConfigError: A TLS file is missing or cannot be used.
    """
    tls = caller_tls(args)
    credentials = grpc.ssl_channel_credentials() if args.tls else None
    if tls is not None:
        credentials = tls.channel_credentials()
    return Client(target_of(args), api_key=args.api_key, credentials=credentials)


def choose_model(args: argparse.Namespace, client: Client) -> str:
    """Return the model that was asked for, or the only one served.

    Raises:
        FatalError: There is no single one.
    """
    if args.model:
        return str(args.model)
    served = [model.name for model in client.models()]
    if len(served) != 1:
        offered = ", ".join(served) or "none is served now"
        raise FatalError(f"say which model with --model: {offered}")
    return served[0]


def call_failed(error: ServeError, target: str) -> FatalError:
    """Return the one line for a call that failed."""
    if error.reason == "UNAVAILABLE":
        return FatalError(
            f"no gateway answers at {target}: start one with `quire up`, or give --target "
            "(and --ca-cert where it serves by TLS)"
        )
    field = f", field {error.detail.field}" if error.detail.field else ""
    retry = f", try again in {error.detail.retry_after_s:.1f} s" if error.detail.retry_after_s else ""
    return FatalError(f"{error.message} ({error.reason}{field}{retry})")
