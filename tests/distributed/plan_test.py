"""scripts/plan_processes.py says what processes send, and docs/distributed.md has
its table.

    python plan_test.py path/to/launch path/to/traffic_of_schemes
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from plan_processes import Layer, plans  # noqa: E402


def check_sent(launch, program, processes, layer, tokens):
    numbers = [tokens, layer.size, layer.heads, layer.key_heads, layer.head_dim]
    arguments = [launch, str(processes), program, *map(str, numbers)]
    output = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True)
    counted = dict(line.split(" ", 1) for line in output.stdout.splitlines())
    forward = plans(layer, processes, tokens)
    both = plans(layer, processes, tokens, backward=True)
    assert counted.keys() == {plan.name for plan in forward}, counted
    for plan, with_backward in zip(forward, both):
        planned = [each.sent + each.sent_meanwhile for each in (plan, with_backward)]
        one, other = map(float, counted[plan.name].split())
        # Counts are whole bytes.
        assert abs(planned[0] - one) <= 4, (processes, plan, one)
        assert abs(planned[1] - one - other) <= 8, (processes, with_backward, other)


def check_table():
    script = ROOT / "scripts" / "plan_processes.py"
    output = subprocess.run(
        [sys.executable, script], check=True, stdout=subprocess.PIPE, text=True
    )
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert output.stdout in page, "docs/distributed.md lacks:\n" + output.stdout


check_table()
for processes in (2, 4):
    check_sent(*sys.argv[1:], processes, Layer(12, 8, 8, 4, 4), 32)
check_sent(*sys.argv[1:], 4, Layer(12, 8, 2, 4, 4), 32)
