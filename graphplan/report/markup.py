"""Elements of SVG and HTML as text: all names and values are escaped here and nowhere else."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from graphplan.report.units import clean_name

Value = str | int | float


def draw_element(tag: str, *children: str, **attributes: Value) -> str:
    """`<tag …>children</tag>`; underscores become dashes, a trailing one is dropped (`class_`)."""
    named = "".join(
        f" {name.rstrip('_').replace('_', '-')}={quoteattr(_format(value))}"
        for name, value in attributes.items()
    )
    return f"<{tag}{named}>{''.join(children)}</{tag}>"


def write_text(text: str) -> str:
    """Text between two tags."""
    return escape(clean_name(text))


def draw_text(text: str, x: float, y: float, **attributes: Value) -> str:
    """A line of text."""
    return draw_element("text", write_text(text), x=x, y=y, **attributes)


def draw_title(text: str) -> str:
    """What a reader hears or sees on hover."""
    return f"<title>{escape(_clean_lines(text))}</title>"


def join_boxes(boxes: list[tuple[float, float, float, float]]) -> str:
    """The path of many rectangles (x, y, width, height): one element instead of thousands."""
    return "".join(
        f"M{_format(x)} {_format(y)}h{_format(w)}v{_format(h)}h{_format(-w)}z"
        for x, y, w, h in boxes
    )


def _format(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return clean_name(value) if isinstance(value, str) else str(value)


def _clean_lines(text: str) -> str:
    return "\n".join(map(clean_name, text.split("\n")))
