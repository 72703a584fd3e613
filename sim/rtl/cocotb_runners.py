"""cocotb's runners of simulators, with time limits added."""

import contextlib
import functools
import os
import re
import threading

from amaranth_tpu.hw.tools.process import execute

__all__ = ["cocotb_runners", "own_environment"]

#: Environment variables of cocotb and its runners that would change a simulation or override its settings.
_READ_BY_COCOTB = re.compile(
    r"(COCOTB|GPI|PYGPI)_\w+|WAVES|GUI|SIM_CMD_(PREFIX|SUFFIX)|LIBPYTHON_LOC|TOPLEVEL\w*|PYTEST_CURRENT_TEST|TPU_RUN"
)
_ONE_AT_A_TIME = threading.Lock()
#: Verilog module that makes Icarus write waveforms.
_DUMP = """module cocotb_iverilog_dump();
string path;
initial begin
    if ($value$plusargs("dumpfile_path=%s", path)) $dumpfile(path);
{calls}end
endmodule
"""


@contextlib.contextmanager
def own_environment():
    """Removes the user's cocotb variables from the environment while a runner prepares its commands."""
    with _ONE_AT_A_TIME:
        hidden = {name: os.environ.pop(name) for name in [*os.environ] if _READ_BY_COCOTB.fullmatch(name)}
        try:
            yield
        finally:
            os.environ.update(hidden)


class _Bounded:
    """A runner that stops each of its commands after a time limit."""

    time_limit, log_path, watch = 600, None, None

    def _execute_cmds(self, commands, cwd, stdout=None):
        self.prepared = commands, cwd

    def perform(self):
        """Runs the prepared commands up to the first that fails, and returns its exit status, or 0. Raises TimeoutError at the
        time limit of a command."""
        commands, cwd = self.prepared
        with open(self.log_path, "a") as log:
            for command in commands:
                if status := execute(command, cwd=cwd, env=self.env, log=log, timeout=self.time_limit, watch=self.watch):
                    return status
        return 0


@functools.cache
def cocotb_runners():
    """Returns cocotb's runners, by the simulator's name.

    `build` and `test` only prepare commands; `perform` runs the commands, each with a time limit. Verilator makes only the
    signals in the control file public.
    """
    from cocotb_tools import runner

    class Icarus(_Bounded, runner.Icarus):
        dumped = ()

        def _waves_file(self):
            return None

        def _create_iverilog_dump_file(self):
            """Writes the module that dumps waveforms: all signals outside the core, and the signals in `dumped` inside it.

            cocotb's own version of this module contains the path of the build folder, and fails if the path is not in ASCII.
            """
            top = self.hdl_toplevel
            parts = [(1, top), (1, f"{top}.texts"), *((0, name) for name in self.dumped)] if self.dumped else [(0, top)]
            calls = "".join(f"    $dumpvars({depth}, {name});\n" for depth, name in parts)
            self.iverilog_dump_file.write_text(_DUMP.format(calls=calls))

        def _test_command(self):
            [command] = super()._test_command()
            return [[word for word in command if word != "-fst" or self.trace_name.endswith(".fst")]]

    class Verilator(_Bounded, runner.Verilator):
        tool, make_arguments = None, ()

        def _simulator_in_path_build_only(self):
            self.executable = self.tool.program

        def _set_env_build(self):
            super()._set_env_build()
            self.env.update(self.tool.environment)

        def _build_command(self):
            verilate, make = super()._build_command()
            # Only signals that the control file names are public.
            return [
                [word for word in verilate if word not in ("--public-flat-rw", "--trace")],
                [*make, *self.tool.make_variables, *self.make_arguments],
            ]

        def _waves_file(self):
            return None

        def _test_command(self):
            [command] = super()._test_command()
            if self.waves:
                command[2:2] = ["--trace-file", str(self.test_dir / self.trace_name)]
            return [command]

    return {"icarus": Icarus, "verilator": Verilator}
