"""Run a foreign program and end it when the launcher dies: it cannot hold our lifeline itself.

Started as `python -m services.launcher.guard PROGRAM ARGS...` with QUIRE_LIFELINE_FD set.
"""

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

KILL_AFTER_S = 5.0


def main(command: list[str]) -> int:
    """Return the program's exit code, once it has ended for whatever reason."""
    lifeline = os.environ.pop("QUIRE_LIFELINE_FD", "")
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end(signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        child.terminate()
        timer = threading.Timer(KILL_AFTER_S, child.kill)
        timer.daemon = True
        timer.start()

    def hold(fd: int) -> None:
        while os.read(fd, 1):
            pass
        end()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)
    if lifeline.isdigit():
        threading.Thread(target=hold, args=(int(lifeline),), daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
