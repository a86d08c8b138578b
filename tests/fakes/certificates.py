"""Certificates as `quire certs` makes them, and those that must not get anybody in."""

import asyncio
import datetime
import ssl
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.certificate import Files
from services.chassis.grpc import create_channel
from services.chassis.tls import peer_name
from services.commands import certs
from services.commands.authority import Authority, Pair

CALL_LIMIT_S = 30.0
TEAM = "team-a"
"""Name in the certificate of a tenant's callers."""


def make_certs(folder: Path, *words: str) -> Path:
    """Run `quire certs` for all services, an operator and `TEAM`; return the folder."""
    assert certs.main([str(folder), "--client", TEAM, *words]) == 0
    return folder


def configuration(folder: Path) -> str:
    """Return the `[tls]` of a configuration file."""
    pair = f'cert = "{folder}/{{service}}.pem"\nkey = "{folder}/{{service}}.key"'
    return f'[tls]\nca = "{folder}/ca.pem"\n{pair}\n'


def files(folder: Path, name: str) -> Files:
    """Return one identity of a folder, with its authority."""
    return Files(ca=folder / "ca.pem", cert=folder / f"{name}.pem", key=folder / f"{name}.key")


def channel_to(address: str, role: str, shown: Files | None, *, ca: Path) -> grpc.aio.Channel:
    """Return a channel to the service in `role` that shows whatever certificate it is given, fit or not."""
    pair = () if shown is None else (_bytes(shown.key), _bytes(shown.cert))
    options = [("grpc.ssl_target_name_override", peer_name(role))]
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), *pair)
    return create_channel(address, credentials=credentials, options=options)


async def outcome(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Ask a server how it is; return how the call ended, and close the channel."""
    async with channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            await check(health_pb2.HealthCheckRequest(), timeout=CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def metrics_of(role: str, port: int, shown: Files | None, *, ca: Path | None) -> int | None:
    """Return the status of /metrics at the probe port of the service in `role`; None: there is no answer.

    Args:
        ca: None asks in plain text.
    """
    context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    if context is not None and shown is not None:
        assert shown.cert is not None
        context.load_cert_chain(shown.cert, shown.key)
    name = None if context is None else peer_name(role)
    try:
        async with asyncio.timeout(CALL_LIMIT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=name
            )
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.read()
            writer.close()
    except OSError:
        return None
    return int(head.split()[1]) if head.startswith(b"HTTP/") else None


def foreign(folder: Path, name: str, other: Path) -> Files:
    """Make a certificate for `name` by another authority in `other`; its holder trusts ours."""
    other.mkdir()
    pair = Pair(other / f"{name}.pem", other / f"{name}.key")
    authority = Authority.make(Pair(other / "ca.pem", other / "ca.key"), days=1)
    authority.certify(pair, [name], days=1, serves=True)
    return Files(ca=folder / "ca.pem", cert=pair.cert, key=pair.key)


def expired(folder: Path, name: str, path: Path) -> Files:
    """Make a certificate for `name` by the authority in `folder` that ended an hour ago."""
    made = Files(ca=folder / "ca.pem", cert=path / "expired.pem", key=path / "expired.key")
    assert made.cert is not None
    assert made.key is not None
    issuer = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    issuer_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now - datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made


def _bytes(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()
