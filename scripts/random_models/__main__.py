"""Checks random models: `python -m amaranth_tpu.scripts.random_models --count 3000`.

Each model is read and computed by the golden model, compared with onnxruntime, compiled for several cores, and executed on a
model of the core. The exit status is 0 if no model was wrong.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from .cores import SIZES
from .trial import REFUSED, RIGHT, TRACEBACK, WRONG, trial

_FAULTS = (WRONG, TRACEBACK)


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m amaranth_tpu.scripts.random_models", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, metavar="N", help="number of models (default 300)")
    parser.add_argument("--seed", type=int, help="seed of the first model; the next model has the next seed (default: random)")
    parser.add_argument("--seconds", type=float, metavar="S", help="start no further model after S seconds")
    parser.add_argument(
        "--n", default=",".join(map(str, SIZES)), help="rows of the cores, separated by commas (default %(default)s)"
    )
    parser.add_argument("--blocks", type=int, default=4, metavar="N", help="largest number of blocks of a model (default 4)")
    parser.add_argument("--folder", type=Path, default=Path("build/random_models"), help="folder for models that are wrong")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args()
    try:
        parsed.sizes = tuple(map(int, parsed.n.split(",")))
    except ValueError:
        parser.error(f"--n must be numbers separated by commas, such as 2,4, not {parsed.n}")
    if parsed.count < 1 or parsed.blocks < 1:
        parser.error("--count and --blocks must be at least 1")
    return parsed


def main():
    options = _arguments()
    os.environ.setdefault("TPU_PROGRAMS_MB", "0")  # the cache of programs is for programs that will be needed again
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    started, trials = time.perf_counter(), []
    for seed in range(first, first + options.count):
        if options.seconds is not None and time.perf_counter() - started > options.seconds:
            break
        trials.append(trial(seed, options.sizes, options.blocks))
        if trials[-1].outcome in _FAULTS:
            _report(trials[-1], options)
    found = _summary(first, trials, time.perf_counter() - started)
    print(json.dumps(found) if options.json else _text(found))
    sys.exit(1 if found["wrong"] or found["traceback"] else 0)


def _report(one, options):
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"{one.seed}.onnx"
    path.write_bytes(one.content)
    print(f"seed {one.seed}: {one.outcome}: {one.reason.rstrip()}", file=sys.stderr)
    repeat = f"python -m amaranth_tpu.scripts.random_models --count 1 --seed {one.seed} --n {options.n} --blocks {options.blocks}"
    print(f"    {path} ({', '.join(one.operators)}); repeat it with {repeat}", file=sys.stderr)
    line = f"tests/scripts/test_random_models.py::test_model_of_a_seed_is_right {one.seed}"
    print(f"    after the mend, add to tests/failed_seeds.txt: {line}", file=sys.stderr, flush=True)


def _summary(first, trials, seconds):
    counts = Counter(one.outcome for one in trials)
    return {
        "seed": first,
        "models": len(trials),
        **{outcome: counts[outcome] for outcome in (RIGHT, REFUSED, WRONG, TRACEBACK)},
        "programs": sum(one.programs for one in trials),
        "seconds": round(seconds, 1),
        "refusals": dict(Counter(one.reason for one in trials if one.outcome == REFUSED).most_common()),
        "programs_refused": dict(Counter(reason for one in trials for reason in one.small).most_common()),
        "operators": dict(Counter(name for one in trials if one.outcome != REFUSED for name in one.operators).most_common()),
        "failed_seeds": [one.seed for one in trials if one.outcome in _FAULTS],
    }


def _text(found):
    first = (
        f"{found['models']} models from seed {found['seed']}, {found['programs']} programs, {found['seconds']:.0f} s: "
        f"{found['right']} right, {found['wrong']} wrong, {found['traceback']} tracebacks, "
        f"{found['refused']} refused ({found['refused'] / max(1, found['models']):.1%})"
    )
    lines = [first]
    for title, counts in (("refused", found["refusals"]), ("no program", found["programs_refused"])):
        lines += [f"    {title}, {count} times: {reason}" for reason, count in counts.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
