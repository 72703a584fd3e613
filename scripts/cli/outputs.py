"""Checks of a command's output paths before its work starts: permissions and suffixes are right, and no output overwrites an
input."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import typer

from .command_line import usable_file, usable_folder

__all__ = ["Output", "check_outputs"]


@dataclass(frozen=True)
class Output:
    """An option that names an output file or folder."""

    option: str  # name of the option, such as `--output`
    path: Path | None  # value of the option; None if it was not given
    suffixes: tuple[str, ...] = ()  # Suffixes that the file may have. Default: any.
    #: folder, replaced: `folder` is True if the output is a folder; `replaced` is True if this folder is replaced as a whole.
    folder: bool = False
    replaced: bool = False


def check_outputs(inputs: dict[str, Iterable], *outputs: Output):
    """Raises typer.BadParameter, with a message of one line, if an output cannot be written, has a wrong suffix, or would
    overwrite an input.

    Parameters
    ----------
    inputs : dict of str to iterable of path or None
        Input files by option. Files with external weights of an ONNX model count as inputs too.
    """
    files = [(option, Path(path)) for option, paths in inputs.items() for path in paths if path]
    for output in outputs:
        if output.path is None:
            continue
        if output.folder:
            usable_folder(output.path, output.option)
            if output.replaced:
                _refuse(output, [found for found in files if _is_below(found[1], output.path)], "contains the file of")
            continue
        usable_file(output.path, output.option, f"new{(*output.suffixes, '')[0]}")
        is_device = output.path.exists() and not output.path.is_file()
        if output.suffixes and not is_device and output.path.suffix.lower() not in output.suffixes:
            wanted = " or ".join(output.suffixes)
            raise typer.BadParameter(f"{output.path}: name a file that ends in {wanted}", param_hint=output.option)
        if output.path.is_file():  # only an existing file can be overwritten
            same = [(option, one) for option, path in files for one in _with_weights(path) if _is_same(one, output.path)]
            _refuse(output, same, "is a file of")


def _refuse(output, found, relation):
    if found:
        text = f"{output.path} {relation} {found[0][0]}, which would be overwritten; name another path"
        raise typer.BadParameter(text, param_hint=output.option)


def _is_below(path, folder):
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def _is_same(one, two):
    try:
        return os.path.samefile(one, two)
    except OSError:
        return False


def _with_weights(path):
    """Returns a list: the file, and the files with external weights if it is an ONNX model."""
    if path.suffix != ".onnx" or not path.is_file():
        return [path]
    import onnx  # slow
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError):
        return [path]  # the reader reports the error
    tensors = [*model.graph.initializer, *(one.t for node in model.graph.node for one in node.attribute if one.HasField("t"))]
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return [path, *(path.parent / place for place in sorted(places))]
