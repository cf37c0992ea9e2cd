"""Capture runs beside frameworks that want other versions of what the rest of privbench needs: it imports none of that."""

import os
import subprocess
import sys

# Of privbench's dependencies those that torch does not need itself, as it does filelock.
HEAVY = (
    "typer", "rich", "pydantic", "pandas", "platformdirs", "scipy", "skimage", "sklearn", "matplotlib", "jinja2",
    "h5py", "PIL", "torchvision", "dp_accounting",
)  # fmt: skip
PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import privbench
assert "torch" not in sys.modules
import torch
model = torch.nn.Linear(3, 2)
with privbench.capture(model, {folder!r}, truth=True) as seen:
    x, y = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
    torch.nn.functional.cross_entropy(model(x), y).backward()
    seen.gradient(truth=(x, y))
(round_,) = privbench.capture.read({folder!r})
assert torch.equal(round_.messages[0].parameters["weight"], model.weight.grad)
assert round_.messages[0].examples == 4
assert not {heavy!r} & {{name.partition(".")[0] for name in sys.modules}}
print(*sorted(name for name in sys.modules if name.startswith("privbench.")))
try:
    privbench.attack
except ModuleNotFoundError as error:
    print(error.name)
"""
# And what they import.
BELOW = {"errors", "tensors", "version", "system", "capture"}


def test_a_loop_is_captured_and_read_with_torch_and_safetensors_alone(repository, tmp_path):
    program = PROGRAM.format(heavy={*HEAVY}, folder=str(tmp_path / "run"))
    environment = os.environ | {"PYTHONPATH": str(repository)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    loaded, absent = ran.stdout.splitlines()
    assert {name.split(".")[1] for name in loaded.split()} == BELOW
    # The rest does need what is absent, so that its absence is real.
    assert absent in HEAVY
