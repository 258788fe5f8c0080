"""What doctor says of an engine."""

from __future__ import annotations

import pytest

from gateway import doctor
from gateway.doctor import _describe
from tests.gateway.house import engine_info

LINK = "batched copies as of CUDA 12.8, 51.2 GB/s out, 52.9 GB/s in"


@pytest.mark.parametrize(
    ("link", "topics"),
    [("", ["device KV", "host KV", "disk KV"]), (LINK, ["device KV", "host KV", "host link", "disk KV"])],
)
def test_the_link_to_host_memory_is_told_where_a_gpu_has_one(link: str, topics: list[str]) -> None:
    findings = _describe(engine_info("", host_blocks=10, host_kv_bytes=2**30, host_link=link))
    told = {finding.topic: finding.text for finding in findings}
    assert [topic for topic in told if topic in {*topics, "host link"}] == topics
    assert told.get("host link", "") == link


def test_only_packages_that_are_there_have_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "none-such"))
    assert list(doctor._versions()) == ["torch"]
