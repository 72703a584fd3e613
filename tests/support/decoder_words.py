"""The bench of the decoder, which draws random words and computes their expected decoding independently of the model."""

from amaranth_tpu.hw.control.decoder import decode_cycles
from amaranth_tpu.hw.control.description import decoded_layout, footprint_layout
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import (
    Condition,
    Fault,
    Format,
    FunctionCode,
    Half,
    Opcode,
    Region,
    RingMode,
    Task,
    records,
    spaces_of,
)
from amaranth_tpu.hw.spec.operations import activate_layout, instruction_layout, matmul_layout, ring_layout, transfer_layout
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from amaranth_tpu.sim.rtl.ports import pack, unpack

BASES = [0x1000, 0x2_0000, 0x40_0000, 0x1000_0000]
#: Units by the upper digit of their opcodes. Transfers have one digit, and the units of their lower digits.
UNITS = {0: Unit.CONTROL, 2: Unit.MATMUL, 3: Unit.ACTIVATE, 4: Unit.RING}
TRANSFERS = [Unit.LOAD, Unit.LOAD, Unit.WEIGHTS, Unit.STORE, Unit.STORE]


def unit_of(opcode):
    upper, lower = divmod(opcode.value, 16)
    return TRANSFERS[lower] if upper == 1 else UNITS[upper]


def touched(opcode, fields, config, cores):
    """Returns {space: ('r' or 'w', first row, last row)} of the rows that an instruction reads or writes."""
    rows, spans = fields.get("rows", 0), {}
    if "region" in fields:
        size = rows * {Opcode.LOAD_BIAS: 4, Opcode.LOAD_WEIGHTS: 2 * config.n}.get(opcode, 2) * config.n
        size //= 1 if fields.get("half") in (None, Half.WHOLE, 0) else 2
        if code := getattr(fields.get("weight_format"), "value", 0):  # codes, and one vector of scales for each two tiles
            size = rows * config.n**2 * (8, 6, 4, 8)[code - 1] // 8 + (rows + 1) // 2 * 2 * config.n
        spans["host"] = (
            "w" if opcode in (Opcode.STORE, Opcode.STORE_UPDATE) else "r",
            fields["offset"],
            fields["offset"] + size - 1,
        )
    if opcode is Opcode.MATMUL:

        def last(start, **loops):
            return start + sum((fields[count] - 1) * fields[stride] for count, stride in loops.items())

        spans["buffer"] = (
            "r",
            fields["buffer"],
            last(fields["buffer"], rows0="rows0_stride", rows1="rows1_stride", tiles0="tiles0_stride", tiles1="tiles1_stride"),
        )
        spans["acc"] = (
            "w",
            fields["acc"],
            last(fields["acc"], tiles0="tiles0_acc_stride", tiles1="tiles1_acc_stride") + fields["rows0"] * fields["rows1"] - 1,
        )
        if fields["start"]:
            last_row = fields["rows0"] * fields["rows1"] - 1 if fields["bias_rows"] else 0
            spans["bias"] = ("r", fields["bias"], fields["bias"] + fields["tiles0"] - 1 + last_row)
    elif opcode is Opcode.SELECT:
        corners = [(r1, r0) for r1 in (0, fields["rows1"] - 1) for r0 in (0, fields["rows0"] - 1)]
        places = [fields["operand"] + r1 * fields["operand_stride"] + r0 for r1, r0 in corners]
        places += [fields["buffer"] + r1 * fields["buffer_stride"] + r0 * (fields["buffer_step"] or 1) for r1, r0 in corners]
        spans["buffer"] = ("rw", min(places), max(places))
        places = [fields["acc"] + r1 * fields["rows1_stride"] + r0 * fields["rows0_stride"] for r1, r0 in corners]
        spans["acc"] = ("r", min(places), max(places))
    elif opcode is Opcode.POOL:
        wide = int(fields["format"] is Format.BINARY32)
        places = [
            row
            for r1 in (0, fields["rows1"] - 1)
            for r0 in (0, fields["rows0"] - 1)
            for row in [fields["buffer"] + r1 * fields["buffer_stride"] + r0 * (fields["buffer_step"] or 1 + wide)]
        ]
        spans["buffer"] = ("w", min(places), max(places) + wide)
        places = [
            fields["acc"]
            + r1 * fields["rows1_stride"]
            + r0 * fields["rows0_stride"]
            + w1 * fields["window1_stride"]
            + w0 * fields["window0_stride"]
            for r1 in (0, fields["rows1"] - 1)
            for r0 in (0, fields["rows0"] - 1)
            for w1 in (0, fields["window1"] - 1)
            for w0 in (0, fields["window0"] - 1)
        ]
        spans["acc"] = ("r", min(places), max(places))
    elif opcode in (Opcode.SOFTMAX, Opcode.NORMALIZE):
        height, last = 1 + fields["format"].value, fields["tiles"] - 1
        spans["buffer"] = ("w", fields["buffer"], fields["buffer"] + last * fields["buffer_stride"] + rows * height - 1)
        spans["acc"] = ("r", fields["acc"], fields["acc"] + last * fields["acc_stride"] + rows - 1)
    elif opcode is Opcode.RING:
        together, around = fields["rounds"] * fields["segment"] - 1, (cores - 1) * fields["stride"]
        read = fields["buffer"] + together + (around if fields["mode"] is not RingMode.ALL_GATHER else 0)
        written = fields["result"] + together + (around if fields["mode"] is not RingMode.REDUCE_SCATTER else 0)
        spans["buffer"] = ("rw", min(fields["buffer"], fields["result"]), max(read, written))
    elif opcode is Opcode.UPDATE:
        spans["update"] = ("w", fields["update"], fields["update"] + rows - 1)
        spans["acc"] = ("r", fields["acc"], fields["acc"] + rows - 1)
        spans["bias"] = ("r", fields["bias"], fields["bias"] + 2 * rows - 1)
    elif opcode is Opcode.STORE_UPDATE:
        spans["update"] = ("r", fields["update"], fields["update"] + rows - 1)
    elif opcode is Opcode.MULTIPLY:
        spans["buffer"] = ("rw", min(fields["buffer"], fields["operand"]), max(fields["buffer"], fields["operand"]) + rows - 1)
        spans["acc"] = ("r", fields["acc"], fields["acc"] + rows - 1)
    else:
        if opcode is Opcode.LOAD_TABLE:
            spans["table"] = ("w", fields["word"] // config.n, fields["word"] // config.n + rows - 1)
        for space, use in (("buffer", "r" if opcode in (Opcode.STORE, Opcode.LOAD_TABLE) else "w"), ("acc", "r"), ("bias", "w")):
            if space in fields:
                two = space == "buffer" and fields.get("format") in (Format.BINARY32, Format.PLANES)
                count = rows * (2 if two else 1)
                spans[space] = (use, fields[space], fields[space] + count - 1)
    return spans


def operation(opcode, fields, config):
    if opcode is Opcode.MATMUL:
        fields = {name: value for name, value in fields.items() if name in records(config)[opcode].widths}
        return "matmul", {"tag": 0, **fields, "rows": fields["rows0"] * fields["rows1"]}
    if unit_of(opcode) is Unit.ACTIVATE:
        rows = fields.get("rows", fields.get("rows0"))
        found = {"tag": 0, "rows": rows}
        found |= {"row": fields["buffer"]} if opcode is not Opcode.UPDATE else {"update_row": fields["update"]}
        found |= {name: fields[name] for name in ("lanes", "acc") if name in fields}
        found["format"] = fields.get("format", Format.BFLOAT16).value
        if opcode is not Opcode.LOAD_TABLE:
            found["function"] = fields.get("function", FunctionCode.NONE).value
        if config.pooling:
            counts = (rows, *(fields.get(name, 1) for name in ("rows1", "window0", "window1")))
            found |= {
                "rows1": counts[1],
                "window0": counts[2],
                "window1": counts[3],
                "single": sum((count == 1) << bit for bit, count in enumerate(counts)),
            }
            strides = {
                "rows0_stride": rows,
                "rows1_stride": counts[1],
                "buffer_stride": counts[1],
                "window0_stride": counts[2],
                "window1_stride": counts[3],
            }
            found |= {name: fields.get(name, 1) for name, count in strides.items() if count > 1}
        if config.training:
            found |= {"select": int(opcode is Opcode.SELECT)}
            operands = opcode in (Opcode.SELECT, Opcode.MULTIPLY, Opcode.LOAD_TABLE)
            found |= {"twice": int(operands or fields.get("format") in (Format.BINARY32, Format.PLANES))}
            if rows > 1 or not fields.get("buffer_step"):
                found["buffer_step"] = fields.get("buffer_step") or 1 + (fields.get("format") is Format.BINARY32)
        if opcode is Opcode.SELECT:
            found |= {"lanes": config.n, "number": fields["number"], "equal": int(fields["condition"] is Condition.EQUAL)}
            found |= {"operand": fields["operand"]}
            if fields["rows1"] > 1:
                found |= {"operand_stride": fields["operand_stride"]}
        if config.update_lanes:
            found |= {"update": int(opcode is Opcode.UPDATE)}
            found |= {name: fields[name] for name in ("bias", "momentum", "rate") if opcode is Opcode.UPDATE}
        if config.softmax:
            found |= {"softmax": int(opcode in (Opcode.SOFTMAX, Opcode.NORMALIZE))}
        if config.normalize:
            found |= {"normalize": int(opcode is Opcode.NORMALIZE)}
            found |= {name: fields[name] for name in ("centred", "root", "factor", "epsilon") if name in fields}
        if opcode in (Opcode.SOFTMAX, Opcode.NORMALIZE):
            found |= {"rows1": fields["tiles"]}
            if fields["tiles"] > 1:
                found |= {"rows1_stride": fields["acc_stride"], "buffer_stride": fields["buffer_stride"]}
        if config.table_lanes:
            tasks = {Opcode.MULTIPLY: Task.MULTIPLY, Opcode.LOAD_TABLE: Task.LOAD_TABLE}
            found |= {"task": tasks.get(opcode, Task.RESULTS).value}
            found |= {
                name: fields[name] for name in ("first", "linear_low", "linear_high", "scale", "base", "spare") if name in fields
            }
            if opcode is Opcode.LOAD_TABLE:
                found |= {"operand": fields["buffer"], "word": fields["word"] // config.n}
            elif opcode is Opcode.MULTIPLY:
                found |= {"operand": fields["operand"]}
        return "activate", found
    if opcode is Opcode.RING:
        used = {name: value for name, value in fields.items() if name != "stride" or value < config.unified_buffer_depth}
        return "ring", {"tag": 0, **used, "mode": fields["mode"].value}
    if "region" not in fields:
        return None, {}
    bias = opcode is Opcode.LOAD_BIAS
    found = {
        "tag": 0,
        "address": BASES[fields["region"].value] + fields["offset"],
        "bias": int(bias),
        "vectors": fields["rows"] * {Opcode.LOAD_BIAS: 2, Opcode.LOAD_WEIGHTS: config.n}.get(opcode, 1),
    }
    if config.weight_formats:
        found["weight_format"] = code = fields["weight_format"].value if opcode is Opcode.LOAD_WEIGHTS else 0
        if code:
            _, first, last = touched(opcode, fields, config, 1)["host"]
            found["vectors"] = (last + 1 - first) // (2 * config.n)
    if config.training and bias:
        found |= {"half": fields["half"].value, "vectors": fields["rows"] * (2 if fields["half"] is Half.WHOLE else 1)}
    if config.transpose and opcode in (Opcode.LOAD, Opcode.LOAD_BIAS) or config.attention and opcode is Opcode.LOAD_WEIGHTS:
        found["transpose"] = fields.get("transpose", 0)
    if config.update_lanes:
        found["part"] = fields["part"].value if opcode is Opcode.STORE_UPDATE else 0
    if opcode is not Opcode.LOAD_WEIGHTS:
        found["row"] = 2 * fields["bias"] if bias else fields["update" if opcode is Opcode.STORE_UPDATE else "buffer"]
    return "transfer", found


async def words(ports, rng, *, config, count, kinds, make, calm=False):
    """Checks the decoding of at least `count` words of `make(rng, config, sizes, cores)`, and up to ten times as many until all
    `kinds` of outcomes have occurred. If `calm` is False, some words have read errors, or the core is not in a ring.

    Returns
    -------
    dict
        {opcode or fault: number of words with this outcome}.
    """
    sizes = [rng.randrange(1, 200) * 16 * config.n for _ in Region]
    machine = Machine(config, {region: bytes(size) for region, size in zip(Region, sizes)})
    for index, (base, size) in enumerate(zip(BASES, sizes)):
        ports.set(**{f"regions__{index}__base_low": base, f"regions__{index}__size": size})
    layouts = {"transfer": transfer_layout(config), "matmul": matmul_layout(config), "activate": activate_layout(config)}
    layouts |= {"ring": ring_layout(config)} if config.ring else {}
    seen, taken = {}, 0
    for index in range(10 * count):
        if index >= count and len(seen) >= kinds:
            break
        if config.ring:
            machine.rank = rng.randrange(8) if not calm and rng.random() < 0.1 else 0
            machine.size = rng.choice((1, 2, 3, 8, rng.randrange(1, 9)))
            ports.set(ring__size=machine.size, ring__ready=machine.rank < machine.size)
        word, pc = make(rng, config, sizes, machine.size), rng.getrandbits(32)
        overrun, failed = (not calm and rng.random() < 0.02 for _ in range(2))
        try:
            opcode, fields = machine.check(word, pc)
            cause = Fault.NONE
        except MachineFault as fault:
            cause = fault.cause
        if failed:
            cause = Fault.BUS_READ
        if overrun:
            cause = Fault.ADDRESS
        name = cause.name if cause is not Fault.NONE else opcode.name
        seen[name] = seen.get(name, 0) + 1
        ports.set(
            i__valid=1,
            i__payload=pack(instruction_layout(), word=word, pc=pc, overrun=int(overrun), failed=int(failed)),
            o__ready=taken,
        )
        await ports.settle()
        while not ports.get("i__ready"):
            await ports.tick()
            await ports.settle()
        await ports.tick()
        ports.set(i__valid=0, i__payload=rng.getrandbits(290), o__ready=0)
        taken = 0
        started = ports.cycle
        await ports.settle()
        while not (ports.get("o__valid") or ports.get("fault__valid")):
            assert ports.cycle < started + 20, f"no end: {word:#x}"
            await ports.tick()
            await ports.settle()
        if cause is not Fault.NONE:
            for _ in range(3):
                assert (ports.get("fault__valid"), ports.get("fault__cause"), ports.get("fault__pc"), ports.get("o__valid")) == (
                    1,
                    cause.value,
                    pc,
                    0,
                ), f"{word:#x}: {cause}"
                ports.set(o__ready=rng.getrandbits(1), i__valid=1)
                await ports.tick()
                await ports.settle()
            await ports.reset()
            continue
        assert not ports.get("fault__valid"), f"{opcode.name} {fields}: fault {ports.get('fault__cause')}"
        assert ports.cycle - started + 1 == decode_cycles(config)[opcode], f"{opcode.name}: {ports.cycle - started + 1} cycles"
        found = unpack(decoded_layout(config), ports.get("o__payload"))
        assert found["halt"] == (opcode is Opcode.HALT) and found["pc"] == pc
        footprint = unpack(footprint_layout(config), found["footprint"])
        assert footprint["unit"] == unit_of(opcode).value
        spans = touched(opcode, fields, config, machine.size)
        for space in ("host", *spaces_of(config)):
            span = unpack(footprint_layout(config)[space].shape, footprint[space])
            use = ("r" if span["reads"] else "") + ("w" if span["writes"] else "")
            assert use == (spans[space][0] if space in spans else ""), f"{opcode.name}: {space} {use!r}"
            if space in spans:
                assert (span["first"], span["last"]) == spans[space][1:], f"{opcode.name} {fields}: {space} {span}"
        if "host" in spans:
            assert footprint["region"] == fields["region"].value
        kind, right = operation(opcode, fields, config)
        if kind:
            got = unpack(layouts[kind], found[kind])
            widths = {field: layouts[kind][field].width for field, _ in layouts[kind]}
            # A stride that exceeds the memory belongs to a loop of one pass, so it is not used.
            always = {
                field: value for field, value in right.items() if kind != "matmul" or "stride" not in field and field != "bias"
            }
            assert {field: got[field] for field in always} == always
            for count_, stride in (
                ("rows0", "rows0_stride"),
                ("rows1", "rows1_stride"),
                ("tiles0", "tiles0_stride"),
                ("tiles1", "tiles1_stride"),
                ("tiles0", "tiles0_acc_stride"),
                ("tiles1", "tiles1_acc_stride"),
            ):
                if kind == "matmul" and right[count_] > 1:
                    assert got[stride] == right[stride] < 1 << widths[stride]
            if kind == "matmul" and right["start"]:
                assert got["bias"] == right["bias"]
        # The next word arrives in the cycle in which this one leaves, or some cycles later.
        if opcode is not Opcode.HALT and rng.getrandbits(1):
            taken = 1
            continue
        ports.set(o__ready=1)
        await ports.tick()
        ports.set(o__ready=0)
        for _ in range(rng.randrange(4)):
            await ports.tick()
        if opcode is Opcode.HALT:
            for _ in range(3):
                await ports.settle()
                assert not ports.get("i__ready") and not ports.get("o__valid"), "something was taken after HALT"
                await ports.tick()
            await ports.reset()
    return seen
