"""The environment for tests that start Python: this checkout first, whatever was on the path after it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
}
