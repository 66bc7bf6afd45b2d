"""The faults of `python -m tests.planted_faults` fit the code of today."""

import pytest

from tests.planted_faults import FAULTS, plant
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_changes_its_module_and_names_existing_tests(name: str) -> None:
    fault = FAULTS[name]
    sound = (ROOT / "src/postroad" / fault.file).read_text()
    broken = plant(fault, sound)
    assert broken != sound
    compile(broken, fault.file, "exec")
    assert all((ROOT / test).exists() for test in fault.tests)
