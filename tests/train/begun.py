"""A process that begins to write a file, says so, and waits to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from optree.train.files import replacing

if __name__ == "__main__":
    with replacing(Path(sys.argv[1])) as file:
        file.write(b"half")
        print("begun", flush=True)
        time.sleep(600)
