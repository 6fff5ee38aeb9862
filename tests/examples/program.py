"""A program of the examples under test, and the checks that failed."""

from __future__ import annotations

import subprocess


class Program:
    def __init__(self, path: str) -> None:
        self.path = path
        self.failures = 0

    def __call__(
        self, *arguments: object, text: str = "", status: int = 0
    ) -> tuple[str, str]:
        """Returns what the program writes to standard output and error."""
        command = [self.path, *map(str, arguments)]
        run = subprocess.run(command, input=text.encode(), capture_output=True)
        out, err = run.stdout.decode(), run.stderr.decode()
        self.check(
            run.returncode == status,
            f"{arguments} ended with {run.returncode}, not {status}: {err}",
        )
        return out, err

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.failures += 1
            print("FAIL", problem)

    def check_error(
        self, message: str, *arguments: object, text: str = "", status: int = 1
    ) -> None:
        err = self(*arguments, text=text, status=status)[1]
        self.check(
            message in err, f"{arguments}: expected {message!r} but got {err!r}"
        )
        self.check("frame #" not in err, f"{arguments}: a backtrace in {err!r}")

    def check_usage(self, message: str, *arguments: object) -> None:
        """A wrong command line ends with 2."""
        self.check_error(message, *arguments, status=2)
