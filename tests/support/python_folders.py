"""The folders that a confined program must read to run this Python with its packages."""

import sys
from typing import Final

from tests.support.paths import ROOT

PYTHON_FOLDERS: Final = tuple(dict.fromkeys((sys.prefix, sys.base_prefix, str(ROOT))))
