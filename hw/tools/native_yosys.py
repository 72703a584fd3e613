"""A `yosys` program for the library in the package `pyosys`, with the few options that are used here.

`-s SCRIPT` names the script to run, and `-l LOG` a file for the log. `-q` keeps the log from being printed. Exits with 1 on an
error.
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
