"""Exit 0 if the process beside answers 200 at /readyz of its probe port (QUIRE_PROBE_PORT), else 1.

Runs as `python -IS`, every few seconds in every container, so it imports next to nothing. A port that has TLS
is asked again by HTTPS, as a kubelet does: without a certificate, and without checking that of the port.
"""

import os
import socket
import sys

LIMIT_S = 2.0
REQUEST = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def is_ready(port: int) -> bool:
    """Ask once; no answer in time is a no."""
    answer = _ask(port)
    if answer is not None and not answer.startswith(b"HTTP/"):
        answer = _ask(port, has_tls=True)
    return answer is not None and answer.startswith(b"HTTP/1.1 200 ")


def _ask(port: int, *, has_tls: bool = False) -> bytes | None:
    """Return how the answer begins, nothing where the port hangs up, None where there is none in time."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        if has_tls:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        with connection:
            connection.sendall(REQUEST)
            return connection.recv(64)
    except ConnectionResetError:
        return b""
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(0 if is_ready(int(os.environ["QUIRE_PROBE_PORT"])) else 1)
