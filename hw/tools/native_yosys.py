"""Yosys as the library of the package `pyosys`, a program with the few options that are used here.

`-s SCRIPT` is run; `-l LOG` names a file for the log, which `-q` keeps from being printed too. An error ends it with status 1.
"""

import argparse

from pyosys import libyosys

parser = argparse.ArgumentParser(prog="yosys")
parser.add_argument("-s", dest="script", required=True)
parser.add_argument("-l", dest="log")
parser.add_argument("-q", dest="quiet", action="store_true")
options = parser.parse_args()

command = f"script {options.script}"
if options.log:
    command = f"tee {'-q ' if options.quiet else ''}-o {options.log} {command}"
libyosys.run_pass(command)
