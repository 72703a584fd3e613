"""Time of 784-128-10 in bfloat16 on this machine's CPU, by PyTorch in any Python interpreter."""

import json
import subprocess

__all__ = ["torch_speed"]

#: The program that the interpreter executes. Its arguments are the seconds of a measurement and the batch sizes.
_PROGRAM = """
import json, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
network = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(torch.bfloat16).eval()
best = {}
with torch.inference_mode():
    for batch in sys.argv[2:]:
        x, times, end = torch.rand(int(batch), 784).to(torch.bfloat16), [], time.perf_counter() + float(sys.argv[1])
        while time.perf_counter() < end:
            started = time.process_time()
            network(x)
            times.append(time.process_time() - started)
        best[batch] = min(times)
print(json.dumps({"version": torch.__version__, "seconds": best}))
"""


def torch_speed(python, batches, seconds):
    """Returns `(version of PyTorch, {batch: shortest CPU time in seconds})` for one thread, or None if `python` has no PyTorch.

    Parameters
    ----------
    python : str
        Path of a Python interpreter.
    batches : sequence of int
    seconds : float
        Measurement time per batch size.
    """
    try:
        done = subprocess.run([python, "-c", _PROGRAM, str(seconds), *map(str, batches)], capture_output=True, text=True)
    except OSError:
        return None
    if done.returncode:
        if "No module named 'torch'" in done.stderr:
            return None
        raise SystemExit(f"PyTorch in {python} failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    return found["version"], {int(batch): time for batch, time in found["seconds"].items()}
