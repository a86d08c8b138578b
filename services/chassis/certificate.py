"""Read PEM files of one identity as they are on disk now, checked so far that whoever uses them succeeds.

Knows files, dates and names; an error names the file. Does not check who signed a certificate: peers do that,
by their own authority's certificate.
"""

import datetime
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from services.chassis.fatal import ConfigError

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
# Tags of DER (ITU-T X.690, 8.1.2), as far as a certificate's dates need them.
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where an identity lies; certificate and key are given together."""

    ca: Path | None = None
    """Certificates of the authority that peers' certificates must be from."""
    cert: Path | None = None
    """Own certificate, then those between it and its authority."""
    key: Path | None = None
    """Its private key."""

    def stamp(self) -> Stamp:
        """Return what changes when any of the files does; empty where one cannot be looked at."""
        paths = [path for path in (self.ca, self.cert, self.key) if path is not None]
        try:
            found = [os.stat(path) for path in paths]
        except OSError:
            return ()
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def read(self, *, name: str | None = None) -> "Identity":
        """Read and check all of them.

        Args:
            name: That the certificate must have, if any: peers look for it.

        Raises:
            ConfigError: A file cannot be read, is no PEM, has expired, or does not belong to the others.
        """
        stamp = self.stamp()
        ca = None if self.ca is None else _read(self.ca)
        expiry = {}
        if self.ca is not None and ca is not None:
            # A bundle may hold some that have expired.
            expiry[self.ca] = max(_ends(self.ca, _certificates(self.ca, ca)))
            _check_end(self.ca, expiry[self.ca])
        if self.cert is None or self.key is None:
            return Identity(ca=ca, stamp=stamp, expiry=expiry)
        cert, key = _read(self.cert), _read(self.key)
        chain = _certificates(self.cert, cert)
        expiry[self.cert] = min(_ends(self.cert, chain))
        _check_end(self.cert, expiry[self.cert])
        _check_pair(self.cert, self.key)
        if name is not None and name.encode() not in chain[0]:
            raise ConfigError(f"certificate {self.cert} does not name {name}: peers would refuse it")
        return Identity(ca=ca, cert=cert, key=key, stamp=stamp, expiry=expiry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the files held when they were read."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    stamp: Stamp = ()
    expiry: dict[Path, float] = field(default_factory=dict)
    """File -> from when on it is of no use, in seconds since 1970."""

    @property
    def pair(self) -> tuple[bytes, bytes] | None:
        """Key and chain, as gRPC takes them."""
        return None if self.key is None or self.cert is None else (self.key, self.cert)


def validity(der: bytes) -> tuple[float, float]:
    """Return from when to when a certificate is valid, in seconds since 1970.

    Source: RFC 5280, 4.1: Certificate > TBSCertificate > [version] serial signature issuer validity.

    Raises:
        ValueError: It is no certificate.
    """
    try:
        outer = next(_elements(der))[1]
        fields = list(_elements(next(_elements(outer))[1]))
        if fields[0][0] == _VERSION:
            del fields[0]
        begin, end = _elements(fields[3][1])
        return _time(*begin), _time(*end)
    except (IndexError, StopIteration, RuntimeError) as exc:
        raise ValueError("no certificate") from exc


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element that `data` is a row of."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            size, at = int.from_bytes(data[at : at + (size & 0x7F)]), at + (size & 0x7F)
        yield tag, data[at : at + size]
        at += size


def _time(tag: int, text: bytes) -> float:
    year = "%y" if tag == _UTC_TIME else "%Y"
    read = datetime.datetime.strptime(text.decode(), f"{year}%m%d%H%M%SZ")
    return read.replace(tzinfo=datetime.UTC).timestamp()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"TLS file {path} cannot be read: {exc.strerror}") from exc


def _certificates(path: Path, pem: bytes) -> list[bytes]:
    """Return each certificate of a file in DER."""
    try:
        parts = pem.decode().split(_BEGIN)[1:]
        found = [ssl.PEM_cert_to_DER_cert(_BEGIN + part.partition(_END)[0] + _END) for part in parts]
    except ValueError as exc:
        raise ConfigError(f"TLS file {path} is no PEM: {exc}") from exc
    if not found:
        raise ConfigError(f"TLS file {path} has no certificate (PEM, {_BEGIN})")
    return found


def _ends(path: Path, chain: list[bytes]) -> list[float]:
    """Return when each certificate of a file ends."""
    try:
        return [validity(der)[1] for der in chain]
    except ValueError as exc:
        raise ConfigError(f"TLS file {path} has a damaged certificate") from exc


def _check_end(path: Path, end: float) -> None:
    if end <= datetime.datetime.now(datetime.UTC).timestamp():
        raise ConfigError(f"certificate {path} expired on {_shown(end)}: give a newer one")


def _check_pair(cert: Path, key: Path) -> None:
    try:
        # The password: OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as exc:
        if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"TLS key {key} is not the key of certificate {cert}") from exc
        raise ConfigError(f"TLS key {key} cannot be used (PEM without a password): {exc}") from exc


def _shown(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
