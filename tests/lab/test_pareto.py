"""The Pareto plane holds every figure of a result, a line for each policy."""

import json

import pytest
from recguide.lab.pareto import main, pareto
from recguide.lab.robot_server import chromium

from recguide.errors import RecGuideError


def row(policy, concurrency, each, together):
    return {"policy": policy, "concurrency": concurrency, "per_request_tok_s": each, "aggregate_tok_s": together}


RESULT = {
    "provenance": {"device": "a processor", "threads": 2, "torch": "2.13.0", "created": "2026-01-02T03:04:05+00:00"},
    "summary": [row("ar", 4, 12.0, 40.0), row("ar", 1, 20.0, 18.0), row("recguide", 1, 30.0, 27.0)],
}


def test_a_line_for_each_policy_a_point_for_each_load():
    ar, learned = pareto(RESULT).data
    assert (ar.name, list(ar.x), list(ar.y), list(ar.text)) == ("ar", [20.0, 12.0], [18.0, 40.0], ["1", "4"])
    assert (learned.name, list(learned.x), list(learned.y)) == ("recguide", [30.0], [27.0])
    assert learned.line.width > ar.line.width


def test_a_dozen_policies_have_a_colour_each():
    many = pareto(RESULT | {"summary": [row(f"linear:{n}", 1, n, n) for n in range(2, 14)]})
    assert len(set(many.layout.colorway)) >= len(many.data) == 12


def test_the_device_or_its_simulation_is_named():
    assert "a processor, 2 threads" in pareto(RESULT).layout.title.text
    table = {"device": "another processor", "created": "2025-05-06T00:00:00+00:00"}
    title = pareto(RESULT | {"simulated": table}).layout.title.text
    assert "simulated, as measured on another processor (2025-05-06)" in title


def test_a_page_is_written(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    main(tmp_path / "result.json", tmp_path / "plane.html")
    page = (tmp_path / "plane.html").read_text()
    assert "What each gets" in page and 'src="http' not in page


@pytest.mark.slow
def test_a_picture_is_drawn_with_chromium(tmp_path):
    pytest.importorskip("playwright", reason="playwright is not installed; pip install -e '.[dev]'")
    if chromium() is None:
        pytest.skip("no chromium on this machine; apt-get install chromium")
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    main(tmp_path / "result.json", tmp_path / "plane.png")
    picture = (tmp_path / "plane.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 2e4


@pytest.mark.parametrize("content", [None, "{", "[]", '{"summary": 3}'])
def test_what_is_no_result_is_named(tmp_path, content):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecGuideError, match=r"result\.json: not a result"):
        main(path, tmp_path / "plane.html")
