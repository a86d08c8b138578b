"""Make an authority and certificates from it, as files that are whole or not there.

Knows X.509 and file modes; which certificates a suite needs is not known here. Needs the package
`cryptography` (extra `certs`).
"""

import contextlib
import datetime
import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.chassis.fatal import FatalError

_SKEW = datetime.timedelta(minutes=5)
"""By which a peer's clock may be behind."""
_PRIVATE, _PUBLIC = 0o600, 0o644


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate's file and its key's."""

    cert: Path
    key: Path

    @property
    def is_there(self) -> bool:
        return self.cert.exists() and self.key.exists()

    def names(self) -> tuple[str, ...]:
        """Return the alternative names of the certificate that is there."""
        found = self.read().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return tuple(str(one.value) for one in found)

    def read(self) -> x509.Certificate:
        """Return the certificate that is there.

        Raises:
            FatalError: It is none.
        """
        try:
            return x509.load_pem_x509_certificate(self.cert.read_bytes())
        except (OSError, ValueError) as exc:
            raise FatalError(f"{self.cert} is no certificate (PEM): {exc}") from exc


class Authority:
    """Whoever holds its key can make certificates that all services trust."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, pair: Pair, *, days: int) -> "Authority":
        """Make a new one; there must be none yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Quire local authority")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without one could make nothing and would be kept.
        _write(pair.key, _pem(key), _PRIVATE, replace=False)
        _write(pair.cert, certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC, replace=False)
        return cls(certificate, key)

    @classmethod
    def read(cls, pair: Pair) -> "Authority":
        """Take one that is there.

        Raises:
            FatalError: A file is missing or damaged.
        """
        certificate = pair.read()
        try:
            key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as exc:
            raise FatalError(f"{pair.key} is not the key of {pair.cert}: {exc}") from exc
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise FatalError(f"{pair.key} is not the key of {pair.cert}: put the right one there")
        return cls(certificate, key)

    def certify(self, pair: Pair, names: Sequence[str], *, days: int, serves: bool) -> None:
        """Make a key and a certificate for `names`, in place of those that are there.

        Args:
            names: DNS names and addresses; the first is its common name too.
            serves: Whether its holder is called, and does not only call.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(pair.key, _pem(key), _PRIVATE, replace=True)
        _write(pair.cert, certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC, replace=True)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
    """Write a file whole or not at all.

    Raises:
        FatalError: It cannot be written, or is there and must not be replaced.
    """
    try:
        # mkstemp makes it 0600, so that a key is never to be read by others.
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
            if replace:
                os.replace(draft, path)
            else:
                os.link(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
    except OSError as exc:
        raise FatalError(f"{path} cannot be written: {exc.strerror}") from exc
