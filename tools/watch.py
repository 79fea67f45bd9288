"""Run a command and show that it is alive: ``watch.py LABEL -- COMMAND...``; standard library only."""

import subprocess
import sys
import time


def main(argv: list[str]) -> int:
    """The exit status of the command."""
    label, command = argv[0], argv[argv.index("--") + 1 :]
    process = subprocess.Popen(command)
    start, shown = time.monotonic(), 0
    live = sys.stderr.isatty()
    while True:
        try:
            status = process.wait(timeout=1)
            break
        except subprocess.TimeoutExpired:
            seconds = int(time.monotonic() - start)
            if live or seconds - shown >= 30:
                shown = seconds
                print(
                    f"\r      {label}: {seconds // 60}:{seconds % 60:02}",
                    end="" if live else "\n",
                    file=sys.stderr,
                    flush=True,
                )
        except KeyboardInterrupt:
            process.wait()
            return 130
    if live and shown:
        print(file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
