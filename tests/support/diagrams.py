"""Timing diagrams in text, as in the datasheet: drives a block with the inputs of a diagram, and compares its outputs."""

import re

from amaranth.lib.wiring import In

from amaranth_tpu.sim.rtl.ports import simulate


class Diagram:
    """A timing diagram. The first line has the numbers of the cycles. Each other line has a signal and its value in each cycle.

    A signal is the path of a port with dots, or the path of a stream. A value is a number, or a symbol such as `a0`. In a stream,
    `-` is a cycle without `valid`. In another input `-` is 0, and in another output it is any value. `..` is any value too. A
    column `..` stands for cycles that are left out; inputs keep their values there. Text after the last column is a comment.

    Attributes
    ----------
    cycles : list of int or None
        The numbers of the cycles; None for a column `..`.
    rows : dict
        {signal: values}, as strings.
    """

    def __init__(self, text):
        first, *lines = text.strip("\n").split("\n")
        name, *numbers = first.split()
        assert name == "cycle", f"a diagram begins with its cycles, not with {name}"
        self.cycles = [None if number == ".." else int(number) for number in numbers]
        starts = [match.start() for match in re.finditer(r"\S+", first)][1:]
        ends = [*starts[1:], starts[-1] + 5]
        self.rows = {line.split()[0]: [line[a:b].strip() or ".." for a, b in zip(starts, ends)] for line in lines}

    def play(self, component, values, *, held=None, lanes=None):
        """Drives `component` with the inputs of the diagram, and compares its outputs.

        Parameters
        ----------
        component : wiring.Component
        values : dict
            {symbol: number}, or {(signal, symbol): number} for a symbol that has a different number in some signal.
        held : dict
            {port: number} of the inputs that the diagram does not show.
        lanes : dict
            {signal: (port, lane, count)} of the signals that are one of the `count` lanes of a port.

        Returns
        -------
        dict
            {signal: values} of the outputs, as in `rows`, with the actual number in place of each wrong value.
        """
        lanes, flows = lanes or {}, {}
        for path, member, _ in component.signature.flatten(component):
            flows["__".join(map(str, path))] = member.flow
        ports_of = {signal: lanes.get(signal, (signal.replace(".", "__"), 0, 1)) for signal in self.rows}
        streams = {signal for signal, (port, *_) in ports_of.items() if f"{port}__payload" in flows}
        outputs = [
            signal for signal, (port, *_) in ports_of.items() if flows[f"{port}__valid" if signal in streams else port] is not In
        ]

        def number(signal, symbol):
            if symbol == "-":
                return 0
            return values[signal, symbol] if (signal, symbol) in values else values[symbol] if symbol in values else int(symbol)

        def drive(signal, symbol):
            port = ports_of[signal][0]
            if signal in streams:
                return {f"{port}__valid": symbol != "-", f"{port}__payload": number(signal, symbol)}
            return {port: number(signal, symbol)}

        def compare(ports, signal, symbol):
            port, lane, count = ports_of[signal]
            if signal in streams:
                valid, found = ports.get(f"{port}__valid"), ports.get(f"{port}__payload")
                is_right = valid == (symbol != "-") and (not valid or found == number(signal, symbol))
                return symbol if is_right or symbol == ".." else f"{found:#x}" if valid else "-"
            found = ports.lanes(port, count)[lane]
            return symbol if symbol in ("-", "..") or found == number(signal, symbol) else f"{found:#x}"

        async def bench(ports, _):
            ports.set(**(held or {}))
            await ports.reset()
            await ports.tick()
            start, found = ports.cycle, {signal: [] for signal in outputs}
            for column, cycle in enumerate(self.cycles):
                while ports.cycle - start < (self.cycles[column + 1] if cycle is None else cycle):
                    await ports.tick()
                for signal, symbols in self.rows.items():
                    if signal not in found and symbols[column] != "..":
                        ports.set(**drive(signal, symbols[column]))
                await ports.settle()
                for signal, shown in found.items():
                    symbol = self.rows[signal][column]
                    shown.append(symbol if cycle is None else compare(ports, signal, symbol))
            return found

        return simulate(component, bench, seed=1)


def diagram_of(text, title):
    return Diagram(re.search(rf"^\*{re.escape(title)}\.\*.*?^```\n(.*?)^```", text, re.M | re.S)[1])
