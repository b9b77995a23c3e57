"""A trained system as a web service, from the file that `l2d export` wrote: onnxruntime, Pillow and the standard library.

    l2d export outputs/.../RUN --out model.onnx
    python examples/serve.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000        # an image
    curl --data '[0.1, 2.5, -3]' http://127.0.0.1:8000         # a vector, or an image of floats [C, H, W], as JSON

The answer is JSON: what to do, the predicted class and its probability, and how likely each expert is right. Names, costs and how an
input is prepared come from the metadata of the file; neither torch nor l2d is imported.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime
from PIL import Image, ImageOps, UnidentifiedImageError

MOST_BYTES = 2**25  # of a request


class System:
    """An exported system, and what its metadata say."""

    def __init__(self, path: str):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # every request has a thread
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.facts = {name: json.loads(value) for name, value in metadata.items()}
        if "class_names" not in self.facts:
            raise SystemExit(f"{path} was not written by l2d export.")
        self.classes, self.experts = self.facts["class_names"], self.facts["expert_names"]
        self.input, self.outside = (self.facts["preprocessing"][key] for key in ("input", "outside"))

    def decide(self, content: bytes) -> dict:
        """What to do with one input; ValueError if it is none."""
        array = self.pixels(content) if self.input["dtype"] == "uint8" else self.numbers(content)
        batch = self.facts["batch"]
        inputs = np.repeat(array[None], 1 if batch == "dynamic" else batch, axis=0)  # a fixed batch is filled
        _, beliefs, decision = (output[0] for output in self.session.run(None, {"inputs": inputs}))  # [K+J], []
        classes, experts = beliefs[: len(self.classes)].tolist(), beliefs[len(self.classes) :].tolist()
        asked = bool(decision >= len(classes))
        predicted = int(np.argmax(classes) if asked else decision)
        return {
            "decision": [*self.classes, *self.experts][decision],
            "asked": asked,
            "predicted": self.classes[predicted],
            "probability": classes[predicted],
            "expert_accuracies": dict(zip(self.experts, experts, strict=True)),
        }

    def pixels(self, content: bytes) -> np.ndarray:
        """[3, H, W] bytes of an image file: upright, in RGB, on white where it is transparent, resized, its centre."""
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        if image.mode.startswith(("I", "F")):
            raise ValueError("it has more than 8 bits per channel; scale it")
        if image.has_transparency_data:
            colours, image = image.convert("RGBA"), Image.new("RGB", image.size, "white")
            image.paste(colours, mask=colours)
        image = image.convert("RGB")
        if self.outside:
            size = [int(self.outside["resize"] * side / min(image.size)) for side in image.size]
            image = image.resize(size, Image.Resampling.BILINEAR)
            for height, width in self.outside["crop"]:
                left, top = round((image.width - width) / 2), round((image.height - height) / 2)
                image = image.crop((left, top, left + width, top + height))
        return self.fitting(np.asarray(image).transpose(2, 0, 1))

    def numbers(self, content: bytes) -> np.ndarray:
        """An array of floats from JSON."""
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            array = self.fitting(np.array(json.loads(content), dtype=np.float32))
        if not np.isfinite(array).all():
            raise ValueError("a number is not finite in float32")
        return array

    def fitting(self, array: np.ndarray) -> np.ndarray:
        if list(array.shape) != self.input["shape"]:
            raise ValueError(f"its shape is {list(array.shape)}, and the system takes {self.input['shape']}")
        return array


class Handler(BaseHTTPRequestHandler):
    """POST an input, get its decision; GET what is known about the system."""

    system: System

    def do_GET(self) -> None:
        self.answer(200, self.system.facts)

    def do_POST(self) -> None:
        given = self.headers.get("Content-Length", "")
        length = int(given) if given.isdecimal() else 0
        if not 0 < length <= MOST_BYTES:
            self.close_connection = True  # what follows is not read
            return self.answer(413, {"error": f"give an input of 1 to {MOST_BYTES} bytes, with its Content-Length"})
        try:
            self.answer(200, self.system.decide(self.rfile.read(length)))
        except UnidentifiedImageError:
            self.answer(400, {"error": "This is no input of the system: no image format is recognised."})
        except (ValueError, TypeError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            self.answer(400, {"error": f"This is no input of the system: {error}."})

    def answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an .onnx file of l2d export")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: also from other machines")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    options = parser.parse_args()
    Handler.system = System(options.model)
    with ThreadingHTTPServer((options.host, options.port), Handler) as server:
        print(f"http://{options.host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
