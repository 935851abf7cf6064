"""Other engines to measure against: install them into a folder outside the repository, and convert models.

    python benchmarks/peers.py install                     # llama.cpp, transformers, mlx-vlm
    python benchmarks/peers.py install --only mlx-vlm --jobs 1
    python benchmarks/peers.py convert m2                  # a random model, for us and for each peer installed

Nothing here is needed to use or to test the library. The exact recipe is in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass, replace
from pathlib import Path

from machine import clean_environment
from random_model import GEOMETRIES, Geometry, write_model

from cherenkov import prepare

__all__ = ["NAMES", "ModelFiles", "Peers", "default_folder", "gguf_of", "model_files"]

NAMES = ("llama.cpp", "transformers", "mlx-vlm")
LLAMA_CPP_PYTHON = "0.3.36"
TRANSFORMERS = "5.24.0"
MLX_VLM = "0.7.10"
_CHILDREN = Path(__file__).resolve().parent / "children"
_CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def default_folder() -> Path:
    """Where peers and models are kept unless `--peers-dir` says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "cherenkov-benchmarks"


@dataclass(frozen=True, slots=True)
class Peers:
    """Where each peer is, whether it has been installed or not."""

    folder: Path

    @property
    def llama_source(self) -> Path:
        """The llama.cpp that the sdist vendors."""
        return self.folder / f"src/llama_cpp_python-{LLAMA_CPP_PYTHON}/vendor/llama.cpp"

    @property
    def llama_build(self) -> Path:
        return self.folder / "llama.cpp"

    @property
    def llama_bench(self) -> Path:
        return self.llama_build / "bin/llama-bench"

    @property
    def llama_quantize(self) -> Path:
        return self.llama_build / "bin/llama-quantize"

    @property
    def transformers(self) -> Path:
        """An interpreter with torch and transformers."""
        return self.folder / "transformers/bin/python"

    @property
    def mlx(self) -> Path:
        """An interpreter with mlx-vlm."""
        return self.folder / "mlx/bin/python"

    @property
    def programs(self) -> Path:
        """Small programs that the benchmarks compile."""
        return self.folder / "programs"

    def installed(self) -> list[str]:
        """Names of the peers that are there."""
        places = (self.llama_bench, self.transformers, self.mlx)
        return [name for name, place in zip(NAMES, places, strict=True) if place.exists()]

    def versions(self) -> dict[str, str]:
        """What each installed peer says it is."""
        found: dict[str, str] = {}
        for python, names in (
            (self.transformers, ("transformers", "torch")),
            (self.mlx, ("mlx-vlm", "mlx")),
        ):
            if python.exists():
                code = f"import importlib.metadata as m; print(*map(m.version, {names}))"
                done = subprocess.run(
                    [python, "-c", code], capture_output=True, text=True, check=True
                )
                found |= dict(zip(names, done.stdout.split(), strict=True))
        if self.llama_bench.exists():
            found["llama.cpp"] = f"of llama-cpp-python {LLAMA_CPP_PYTHON}"
        return found


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One random model, in the form each engine wants. A form that no installed peer needs may be absent."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def gguf(self) -> Path:
        return self.folder / "q4_0.gguf"

    @property
    def mlx(self) -> Path:
        return self.folder / "mlx-4bit"


def model_files(
    peers: Peers, name: str, geometry: Geometry, *, engines: list[str], keep: bool = True
) -> ModelFiles:
    """Make a random model and convert it for us and for `engines`, doing only what is not done yet.

    `keep` false removes the BF16 checkpoint afterwards unless transformers needs it.
    """
    files = ModelFiles(peers.folder / "models" / name)
    wanted = {"cherenkov": files.store}
    wanted |= {"llama.cpp": files.gguf} if "llama.cpp" in engines else {}
    wanted |= {"mlx-vlm": files.mlx} if "mlx-vlm" in engines else {}
    missing = [engine for engine, place in wanted.items() if not place.exists()]
    if missing or "transformers" in engines:
        write_model(files.checkpoint, geometry)
    for engine in missing:
        print(f"{name}: converting for {engine}", file=sys.stderr, flush=True)
        _CONVERTERS[engine](peers, files)
    if not keep and "transformers" not in engines and files.checkpoint.exists():
        for file in files.checkpoint.iterdir():
            file.unlink()
        files.checkpoint.rmdir()
    return files


def _convert_store(_peers: Peers, files: ModelFiles) -> None:
    prepare(files.checkpoint, files.store, bits=4)


def _convert_gguf(peers: Peers, files: ModelFiles) -> None:
    gguf_of(peers, files, "Q4_0")


def gguf_of(peers: Peers, files: ModelFiles, quantisation: str) -> Path:
    """A model for llama.cpp in a quantisation of its own, made from the checkpoint if it is not there."""
    made = files.folder / f"{quantisation.lower()}.gguf"
    if made.exists():
        return made
    whole, half = files.folder / "bf16.gguf", made.with_suffix(".part")
    script = _CHILDREN / "convert_gguf.py"
    _run(peers.transformers, script, peers.llama_source, files.checkpoint, whole)
    _run(peers.llama_quantize, whole, half, quantisation)
    whole.unlink()
    return half.rename(made)


def _convert_mlx(peers: Peers, files: ModelFiles) -> None:
    half = files.mlx.with_suffix(".part")
    places = ("--hf-path", files.checkpoint, "--mlx-path", half)
    bits = ("-q", "--q-bits", "4", "--q-group-size", "64")
    _run(peers.mlx, "-m", "mlx_vlm", "convert", *places, *bits)
    half.rename(files.mlx)


_CONVERTERS = {
    "cherenkov": _convert_store,
    "llama.cpp": _convert_gguf,
    "mlx-vlm": _convert_mlx,
}


def _install_llama(peers: Peers, jobs: int) -> None:
    """Build llama.cpp from the sdist of llama-cpp-python, for this very processor."""
    if not peers.llama_source.is_dir():
        source = peers.folder / "src"
        name = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        only = ("--no-deps", "--no-binary", "llama-cpp-python")
        _run(sys.executable, "-m", "pip", "download", *only, "-d", source, name)
        with tarfile.open(source / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz") as archive:
            archive.extractall(source, filter="data")
    _run("cmake", "-G", "Ninja", "-S", peers.llama_source, "-B", peers.llama_build, *_CMAKE)
    targets = ("llama-bench", "llama-quantize")
    _run("cmake", "--build", peers.llama_build, "-j", jobs, "--target", *targets)


def _install_transformers(peers: Peers, _jobs: int) -> None:
    # The last four are what llama.cpp's converter asks for besides.
    names = ("torch", f"transformers=={TRANSFORMERS}", "numpy", "pyyaml", "tqdm", "sentencepiece")
    _install_venv(peers.transformers, *names)


def _install_mlx(peers: Peers, _jobs: int) -> None:
    _install_venv(peers.mlx, "mlx[cpu]", f"mlx-vlm=={MLX_VLM}")


_INSTALLERS = dict(zip(NAMES, (_install_llama, _install_transformers, _install_mlx), strict=True))


def _install_venv(python: Path, *packages: str) -> None:
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    _run(python, "-m", "pip", "install", "--quiet", *packages)


def _run(*words: object) -> None:
    command = [str(w) for w in words]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise SystemExit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers-dir", type=Path, default=default_folder())
    parser.set_defaults(action="")
    actions = parser.add_subparsers(required=True, dest="action")
    install = actions.add_parser("install", help="build or download the peers")
    install.add_argument("--only", choices=NAMES, action="append")
    install.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    convert = actions.add_parser("convert", help="make a random model in every engine's form")
    convert.add_argument("geometry", choices=GEOMETRIES)
    convert.add_argument("--experts", type=int)
    convert.add_argument("--layers", type=int)
    args = parser.parse_args()
    peers = Peers(args.peers_dir.expanduser().resolve())
    if args.action == "install":
        for name in args.only or NAMES:
            print(f"installing {name}", file=sys.stderr, flush=True)
            _INSTALLERS[name](peers, args.jobs)
        print(json.dumps(peers.versions(), indent=1))
        return
    geometry, name = GEOMETRIES[args.geometry], args.geometry
    for key in ("experts", "layers"):
        if getattr(args, key) is not None:
            geometry = replace(geometry, **{key: getattr(args, key)})
            name += f"-{key}{getattr(args, key)}"
    print(model_files(peers, name, geometry, engines=peers.installed()).folder)


if __name__ == "__main__":
    main()
