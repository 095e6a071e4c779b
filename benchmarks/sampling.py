"""A sampling profile of all threads: where the time of a run goes.

Looks at every thread's stack many times a second. Threads that wait are left out, so shares are of
the moments in which a thread did something.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType

_PAUSE = 0.002
_IDLE = frozenset(
    {
        ("threading.py", "wait"),
        ("threading.py", "_wait_for_tstate_lock"),
        ("selectors.py", "select"),
        ("thread.py", "_worker"),
        ("queue.py", "get"),
        ("subprocess.py", "_try_wait"),
    }
)


class Sampler:
    """Profiles the block it is around and writes a text file."""

    def __init__(self, report: Path, *, lines: int = 40) -> None:
        self._report = report
        self._lines = lines
        self._own: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        self._samples = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self._done.set()
        self._thread.join()
        self._report.parent.mkdir(parents=True, exist_ok=True)
        self._report.write_text(self.text())

    def text(self) -> str:
        """Functions by their share of the samples: with what they call, and alone."""
        total = max(self._samples, 1)
        parts = [f"{self._samples} samples of busy threads"]
        for title, counts in (("with callees", self._within), ("alone", self._own)):
            parts.append(f"\n{title}")
            parts += [
                f"{100 * count / total:6.1f} %  {name}"
                for name, count in counts.most_common(self._lines)
            ]
        return "\n".join(parts) + "\n"

    def _watch(self) -> None:
        me = threading.get_ident()
        while not self._done.wait(_PAUSE):
            for thread, frame in sys._current_frames().items():
                if thread != me:
                    self._count(frame)

    def _count(self, top: FrameType) -> None:
        code = top.f_code
        if (Path(code.co_filename).name, code.co_name) in _IDLE:
            return
        self._samples += 1
        self._own[_name(top)] += 1
        names = set()
        frame: FrameType | None = top
        while frame is not None:
            names.add(_name(frame))
            frame = frame.f_back
        self._within.update(names)


def _name(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{'/'.join(path.parts[-3:])}:{frame.f_code.co_qualname}"
