"""A program that decides an SMT-LIB script with Bitwuzla. :mod:`sim.proofs.smt` starts it as a separate process.

It reads JSON, `{"script": text, "values": [terms], "seconds": limit}`, and writes JSON, `{"result": "sat" | "unsat" | "unknown",
"values": [bits], "seconds": processor time}`.
"""

import json
import sys
import time

from bitwuzla import Option, Options, Parser, Result, TermManager


def _bits(value):
    if value.sort().is_bool():
        return int(value.value())
    text = value.value()
    return int("".join(text) if isinstance(text, list) else text, 2)


def main():
    """Decides the script that is read from standard input."""
    job = json.load(sys.stdin)
    options = Options()
    options.set(Option.PRODUCE_MODELS, True)
    options.set(Option.TIME_LIMIT_PER, int(1000 * job["seconds"]))
    parser = Parser(TermManager(), options)
    parser.parse(job["script"], True, False)
    solver = parser.bitwuzla()
    result = solver.check_sat()
    values = [_bits(solver.get_value(parser.parse_term(term))) for term in job["values"]] if result == Result.SAT else []
    json.dump({"result": str(result), "values": values, "seconds": time.process_time()}, sys.stdout)


if __name__ == "__main__":
    main()
