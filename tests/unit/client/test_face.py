"""`import nearhint`: what it loads, and what it says where an extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import nearhint
from nearhint import errors

FORBIDDEN = "torch numpy triton sympy click rich sqlite_utils nearhint_torch nearhint_daemon"

BLOCKING = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKING + code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_needs_grpc_and_protobuf_alone() -> None:
    run(
        "import nearhint, nearhint.session, nearhint.testing\n"
        "report = nearhint.settle(timeout_s=1)\n"
        "assert report.settled and nearhint.status().ready"
    )


def test_the_launchers_come_without_grpc() -> None:
    run("import nearhint.launchers\nassert 'grpc' not in sys.modules")


def test_kernel_says_which_extra_is_missing() -> None:
    printed = run(
        "import nearhint\n"
        "from nearhint.errors import MissingExtra\n"
        "try: nearhint.kernel(print)\n"
        "except MissingExtra as error: print(error.report())"
    )
    assert "nearhint.kernel needs" in printed
    assert "pip install 'nearhint[torch]'" in printed


def test_the_version_is_a_version() -> None:
    assert nearhint.__version__.count(".") == 2


def test_each_error_has_a_code_of_its_own_and_words() -> None:
    found = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.NearhintError)
    ]
    codes = [each.code for each in found]
    assert len(set(codes)) == len(codes)
    assert all(each.__doc__ for each in found)
