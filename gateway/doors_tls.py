"""What each of the gateway's doors shows, and whom it asks for a certificate.

Knows which identity goes with which door; opens none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from gateway.config import GatewayConfig
from services.chassis.certificate import Files
from services.chassis.fatal import ConfigError
from services.chassis.tls import Tls, load_tls


@dataclass(frozen=True, slots=True)
class DoorsTls:
    """Both are None without TLS, and the same where callers are shown no other certificate."""

    public: Tls | None = None
    """Towards callers."""
    inside: Tls | None = None
    """Towards services and operators."""

    def main_door(self) -> grpc.ServerCredentials | None:
        """Callers with keys: gRPC can ask all callers of a port for a certificate, or none."""
        return None if self.public is None else self.public.server(asks=False)

    def certificate_door(self) -> grpc.ServerCredentials | None:
        return None if self.public is None else self.public.server(asks=True)

    def admin_door(self) -> grpc.ServerCredentials | None:
        """Operators, by certificate where there is an authority, and always by key."""
        return self.main_door() if self.inside is None else self.inside.server(asks=True)

    @property
    def all(self) -> set[Tls]:
        return {one for one in (self.public, self.inside) if one is not None}


def load_doors_tls(
    config: GatewayConfig, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> DoorsTls:
    """Read what the configuration names.

    Raises:
        ConfigError: A file cannot be used, or a door needs what is not given.
    """
    inside = load_tls("gateway", argv, environ)
    ca = None if inside is None else inside.files.ca
    if config.certificate_port is not None and ca is None:
        raise ConfigError("gateway: certificate_port needs ca of [tls]: whose certificates to accept")
    public = inside
    if config.tls_cert is not None:
        public = Tls(Files(ca=ca, cert=config.tls_cert, key=config.tls_key))
    return DoorsTls(public, inside)
