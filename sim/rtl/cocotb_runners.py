"""cocotb's runners of the simulators, with a limit of time."""

import functools

from amaranth_tpu.hw.tools.process import execute

__all__ = ["cocotb_runners"]


@functools.cache
def cocotb_runners():
    """cocotb's runners, with every command bounded in time and Verilator's models kept private."""
    from cocotb_tools import runner

    class Bounded:
        time_limit, log_path, watch = 600, None, None

        def _execute_cmds(self, commands, cwd, stdout=None):
            with open(self.log_path, "a") as log:
                for command in commands:
                    self.status = execute(command, cwd=cwd, env=self.env, log=log, timeout=self.time_limit, watch=self.watch)
                    if self.status:
                        return

    class Icarus(Bounded, runner.Icarus):
        dumped = ()

        def _waves_file(self):
            return None

        def _create_iverilog_dump_file(self):
            super()._create_iverilog_dump_file()
            if self.dumped:  # of the core these alone; of what is around it all
                text = self.iverilog_dump_file.read_text()
                around = f"$dumpvars(1, {self.hdl_toplevel}, {self.hdl_toplevel}.texts);"
                parts = [f"$dumpvars(0, {name});" for name in self.dumped]
                everything = f"$dumpvars(0, {self.hdl_toplevel});"
                self.iverilog_dump_file.write_text(text.replace(everything, "\n    ".join([around, *parts])))

        def _test_command(self):
            [command] = super()._test_command()
            return [[word for word in command if word != "-fst" or self.trace_name.endswith(".fst")]]

    class Verilator(Bounded, runner.Verilator):
        tool, make_arguments = None, ()

        def _simulator_in_path_build_only(self):
            self.executable = self.tool.program

        def _set_env_build(self):
            super()._set_env_build()
            self.env.update(self.tool.environment)

        def _build_command(self):
            verilate, make = super()._build_command()
            # Only what the control file names is public.
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
