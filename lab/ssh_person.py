"""Persons who type into SSH sessions: ssh_person.py ADDRESS PORT SESSIONS SECONDS SEED KEY.

A person types commands character by character, 60 to 300 ms apart, and reads what came before the next command. The
program logs nothing: the truth is in the packets of both directions.
"""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import sys
import threading
import time

COMMANDS = ("ls -l /etc", "echo a person types", "cat /etc/passwd", "date", "sleep 0.2; uname -a", "pwd", "ls /usr/bin")
READING_S = 1.0
READY_S = 60.0


class Session:
    """One session, in a terminal of its own."""

    def __init__(self, command: list[str], seconds: float, seed: int) -> None:
        self._seconds, self._random = seconds, random.Random(seed)
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.execvp(command[0], command)

    def work(self) -> None:
        """Type until the time is over, then leave."""
        try:
            if not self._read(READY_S, until=b"ready"):
                raise OSError("no shell")
            end = time.monotonic() + self._seconds
            while time.monotonic() < end:
                self._read(self._random.expovariate(1 / READING_S))
                for character in self._random.choice(COMMANDS) + "\n":
                    os.write(self._terminal, character.encode())
                    self._read(min(0.3, max(0.06, self._random.lognormvariate(-1.9, 0.5))))
        finally:
            os.kill(self._pid, signal.SIGTERM)
            os.close(self._terminal)
            os.waitpid(self._pid, 0)

    def _read(self, seconds: float, until: bytes = b"") -> bool:
        """Read what the terminal shows for this long, or until it shows this."""
        end, shown = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                shown += os.read(self._terminal, 1 << 16)
                if until and until in shown:
                    return True
        return False


def main(address: str, port: str, sessions: int, seconds: float, seed: int, key: str) -> None:
    """Run all sessions."""
    quiet = [option for name in ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null") for option in ("-o", name)]
    command = ["ssh", "-tt", "-q", "-F", "none", "-i", key, "-p", port, *quiet, f"root@{address}"]
    working = [Session(command, seconds, seed * 1000 + i) for i in range(sessions)]
    threads = [threading.Thread(target=session.work) for session in working]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
