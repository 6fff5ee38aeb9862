"""New results of the golden cases, from the Python at hand, agree with C++.

    python verify_again.py PROGRAM GENERATE LIBTORCH

PROGRAM is torch-attention, GENERATE the package that makes golden files,
LIBTORCH the folder of the LibTorch that PROGRAM was built with. The committed
results under dropout hold for the random stream of one version; these hold for
the stream of any version.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile

program, generate, libtorch = (os.path.abspath(path) for path in sys.argv[1:])


def output_of(*arguments):
    result = subprocess.run(arguments, capture_output=True, text=True)
    output = result.stdout + result.stderr
    if result.returncode != 0:
        sys.exit(f"{arguments} ended with {result.returncode}:\n{output}")
    return output


with tempfile.TemporaryDirectory() as folder:
    packs, cases = os.path.join(folder, "packs"), os.path.join(folder, "cases")
    reference = ("reference", "--folder", packs)
    output_of(sys.executable, generate, "write", *reference)
    output_of(sys.executable, generate, "unpack", cases, *reference)
    table = output_of(program, "verify", cases)

print(table)
if " 0 failed." not in table:
    sys.exit("expected all cases to pass")
torch = importlib.util.find_spec("torch").submodule_search_locations[0]
same = os.path.realpath(torch) == os.path.realpath(libtorch)
if same and "-p0.5 " not in table:
    sys.exit("expected the cases under dropout: both draw the same")
