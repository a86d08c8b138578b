"""Exit 0 if the process beside answers 200 at /readyz of its probe port (QUIRE_PROBE_PORT), else 1.

Runs as `python -IS`, every few seconds in every container, so it imports next to nothing.
"""

import os
import socket
import sys

LIMIT_S = 2.0
REQUEST = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def is_ready(port: int) -> bool:
    """Ask once; no answer in time is a no."""
    try:
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
            connection.sendall(REQUEST)
            return connection.recv(64).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if is_ready(int(os.environ["QUIRE_PROBE_PORT"])) else 1)
