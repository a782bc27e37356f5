"""Writes the generated code of the protocol, or checks that what is checked in is up to date.

    python proto/generate.py            write proto/nearhint_proto/v1/*_pb2*.py and *.pyi
    python proto/generate.py --check    compare instead, byte for byte; exit 1 on a difference
    python proto/generate.py --descriptors FILE
                                        write the compiled .proto files, for `buf lint`

The generator's version is the oldest grpcio that the generated code runs with, and fixes the oldest
protobuf: both floors in pyproject.toml follow from the pin of grpcio-tools there. Stubs come from
mypy-protobuf, which types the services as well (protoc's own --pyi_out does not).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
PACKAGE = Path("nearhint_proto/v1")
GENERATORS = {"grpcio-tools": "1.78.0", "mypy-protobuf": "5.1.0"}
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def require_pinned_generators() -> None:
    """Exits unless the generators are the pinned versions: others write other bytes."""
    for name, wanted in GENERATORS.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != wanted:
            sys.exit(
                f"{name} {wanted} generates this code, found {found}: "
                f"pip install -c constraints.txt {name}=={wanted}"
            )


def run_protoc(source_root: Path, protos: list[Path], *outputs: str) -> None:
    """Runs the pinned protoc; google/rpc/*.proto come with googleapis-common-protos."""
    # protoc looks for the mypy plugins on PATH; they are installed beside this interpreter.
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{source_root}",
        f"-I{common_protos()}",
        *outputs,
        *(str(proto.relative_to(source_root)) for proto in protos),
    ]
    result = subprocess.run(command, env=environment, cwd=source_root, check=False)
    if result.returncode != 0:
        sys.exit(f"protoc left with {result.returncode}")


def common_protos() -> Path:
    """The folder whose google/rpc/status.proto is the published one."""
    spec = importlib.util.find_spec("google.rpc")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "status.proto").exists():
            return Path(folder).parents[1]
    sys.exit("googleapis-common-protos is not installed: pip install -e '.[daemon,dev]'")


def sources(source_root: Path) -> list[Path]:
    """The hand-written .proto files below `source_root`."""
    return sorted((source_root / PACKAGE).glob("*.proto"))


def generate(source_root: Path, out_root: Path) -> None:
    """Generates the code for every .proto below `source_root` into `out_root`."""
    protos = sources(source_root)
    if not protos:
        return
    run_protoc(
        source_root,
        protos,
        *(f"--{kind}_out={out_root}" for kind in ("python", "grpc_python")),
        *(f"--{kind}_out=quiet:{out_root}" for kind in ("mypy", "mypy_grpc")),
    )
    drop_empty_service_modules(protos, out_root)


def drop_empty_service_modules(protos: list[Path], out_root: Path) -> None:
    """Deletes `x_pb2_grpc.py` and its stub where x.proto has no service."""
    for proto in protos:
        module = out_root / PACKAGE / f"{proto.stem}_pb2_grpc.py"
        if module.exists() and "Servicer" not in module.read_text(encoding="utf-8"):
            module.unlink()
            module.with_suffix(".pyi").unlink(missing_ok=True)


def generated_files(root: Path) -> dict[str, bytes]:
    """Name and bytes of every generated file in the package below `root`."""
    folder = root / PACKAGE
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("*_pb2*"))
        if path.name.endswith(SUFFIXES)
    }


def differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    """One line for each file that is missing, left over, or not what would be generated."""
    lines = [f"missing   {name}" for name in sorted(wanted.keys() - found.keys())]
    lines += [f"left over {name}" for name in sorted(found.keys() - wanted.keys())]
    lines += [
        f"differs   {name}"
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name]
    ]
    return lines


def install(wanted: dict[str, bytes], root: Path) -> None:
    """Makes the generated files below `root` exactly those in `wanted`."""
    folder = root / PACKAGE
    for name in generated_files(root).keys() - wanted.keys():
        (folder / name).unlink()
    for name, content in wanted.items():
        (folder / name).write_bytes(content)


def main() -> None:
    """Parses the arguments and does what the module says."""
    parser = argparse.ArgumentParser(description="Generate the protocol's code.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--descriptors", type=Path, metavar="FILE", help="write for `buf lint`")
    parser.add_argument("--root", type=Path, default=PROTO_ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    root: Path = options.root.resolve()
    require_pinned_generators()
    if options.descriptors:
        # buf takes compiled files and so needs no registry for the google ones.
        target = options.descriptors.resolve()
        flags = ("--include_imports", "--include_source_info")
        run_protoc(root, sources(root), *flags, f"--descriptor_set_out={target}")
        return
    with tempfile.TemporaryDirectory(prefix="nearhint-proto-") as scratch:
        scratch_root = Path(scratch)
        generate(root, scratch_root)
        wanted = generated_files(scratch_root)
    lines = differences(wanted, generated_files(root))
    if options.check:
        if lines:
            print("\n".join(lines))
            sys.exit("the generated code is not what the .proto files say: run `make proto`")
        print(f"generated code is up to date: {len(wanted)} files")
        return
    install(wanted, root)
    print(f"{len(wanted)} files generated, {len(lines)} changed")


if __name__ == "__main__":
    main()
