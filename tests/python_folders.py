"""What a confined program has to read to run our Python with our packages."""

import sys
from pathlib import Path
from typing import Final

PYTHON_FOLDERS: Final = tuple(dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))))
