"""What the processes of a simulation inherit: this folder's modules, one thread each, no reports to anybody."""

import os
import tempfile
from pathlib import Path

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_HOME"] = tempfile.mkdtemp(prefix="flower-tests-")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
