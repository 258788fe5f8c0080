"""Templates: what Hugging Face templates count on, bounds, and every failure typed."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat_template import ChatTemplate, PromptTooLargeError, TemplateRenderError

USER = [{"role": "user", "content": "Hi"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, max_chars: int = 10_000) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(USER if messages is None else messages, max_chars)


def test_messages_tokens_and_the_generation_prompt() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }}{{ eos_token }}{% endfor %}"
    )
    assert render(source + "{% if add_generation_prompt %}A:{% endif %}") == "<s>user:Hi</s>A:"


def test_blocks_are_trimmed_as_hugging_face_does() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert render(source) == "Hi\n"


def test_loop_controls_generation_blocks_and_namespaces() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{% generation %}x{% endgeneration %}"
    )
    assert render(source) == "3x"


def test_tojson_is_plain_json() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_strftime_now_gives_today() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


@pytest.mark.case("D3")
def test_the_message_of_the_template_is_kept() -> None:
    with pytest.raises(TemplateRenderError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.case("D3")
@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + none }}",
        "{{ messages[0].nothing.more }}",
        "{{ messages[5].content }}",
        "{{ 1 / 0 }}",
        "{{ range(10000000) | list | length }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_any_failure_inside_is_typed_and_short(source: str) -> None:
    with pytest.raises(TemplateRenderError) as caught:
        render(source)
    assert len(str(caught.value)) < 300


def test_a_template_that_does_not_parse() -> None:
    with pytest.raises(TemplateRenderError, match="cannot be read"):
        ChatTemplate("{% for %}", bos_token=None, eos_token=None)


def test_rendering_stops_at_its_bound() -> None:
    with pytest.raises(PromptTooLargeError):
        render("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", max_chars=100)


def test_rendering_stops_at_its_deadline() -> None:
    template = ChatTemplate(
        "{% for i in range(9) %}{{ i }}{% endfor %}", bos_token=None, eos_token=None, time_limit_s=-1
    )
    with pytest.raises(TemplateRenderError, match="too long"):
        template.render(USER, 1000)


def test_whether_developer_is_known() -> None:
    assert ChatTemplate(
        "{% if m == 'developer' %}{% endif %}", bos_token=None, eos_token=None
    ).knows_developer
    assert not ChatTemplate("x", bos_token=None, eos_token=None).knows_developer
