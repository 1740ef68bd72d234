"""A rank of the backend star is killed before, in and after each collective: the others get an error that names it, and go on without it."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not hasattr(torch.distributed, "shrink_group"):
    pytest.skip("PyTorch %s has no shrink_group: 2.10 has" % torch.__version__, allow_module_level=True)

from backend_collectives import CALLS  # noqa: E402
from backend_deaths import SECONDS, VICTIM, case, cases  # noqa: E402


@pytest.mark.parametrize("name", list(CALLS))
def test_survivors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAR_WATCH", "false")
    for _, when, root in cases([name]):
        said = case(name, when, root)
        assert said.pop(VICTIM) == "died"
        for s in said:
            where = "%s, rank %d dies %s it, root %d: %s" % (name, VICTIM, when, root, s)
            assert s[0].isdigit() and "rank %d" % VICTIM in s.lower(), where
            assert float(s.split()[0]) < SECONDS / 4, where  # by itself, not by the timeout
