"""Captions as the text encoders of the DeepFloyd-IF, PixArt and LlamaGen recipes were trained on.

The recipe lower-cases, drops addresses, mark-up, file names, shop phrases, camera-style codes and
East Asian ideographs, evens out dashes, quotes and blanks, and does all that twice. The order of
the rules matters. One step of the recipe is missing: the repair of text in a wrong encoding (ftfy);
of that step, only control characters are dropped and Unicode's canonical form (NFC) is taken.
"""

import html
import re
import unicodedata
from html.entities import html5
from html.parser import HTMLParser
from urllib.parse import unquote_plus

from models.files.tensors import renamed

_ENDS = "com|co|ru|net|org|edu|gov|it"
_SUFFIXES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_IDEOGRAPHS = (
    "\u31c0-\u31ef\u31f0-\u31ff\u3200-\u32ff\u3300-\u33ff\u3400-\u4dbf\u4dc0-\u4dff\u4e00-\u9fff"
)
_DASHES = (
    "\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d-"
)
_CONTROLS = "[\x00-\x08\x0b\x0e-\x1f\x7f]"
_PUNCTUATION = re.escape("#®•©™&@·º½¾¿¡§~)(][}{|\\/*")


def _address(scheme: str) -> str:
    """Return the pattern of a web address: `scheme:`, or a host name with a common ending."""
    return rf"\b(?:{scheme}:(?:/{{1,3}}|[a-z0-9%])|[a-z0-9.\-]+[.](?:{_ENDS})[\w/-]*\b/?(?!@))"


# Pattern and replacement, applied in this order: before mark-up is removed, after it, and after
# entities are resolved.
_BEFORE = (("<person>", "person"), (_address("https?"), ""), (_address("www"), ""))
_AFTER = (
    (r"@[\w\d]+\b", ""),  # names of users
    (f"[{_IDEOGRAPHS}]+", ""),
    (f"[{_DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # network addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_SUFFIXES})", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (f"[{_PUNCTUATION}]+", " "),
    (r"\s+\.\s+", " "),
)
_LAST = (
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # codes such as jc6640
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_SUFFIXES})(\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes; the second of the three letters is Cyrillic
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"'](.+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


class _Text(HTMLParser):
    """Collects the text between tags, scripts and style sheets left out.

    Names of characters are resolved as the recipe's own parser (Beautiful Soup) does: unknown ones
    stay without their semicolon, and those that end the caption lose their `&`, so that
    `a sign for h&m` becomes `a sign for hm`.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []

    def handle_entityref(self, name: str) -> None:
        self.handle_data(html5.get(f"{name};", f"&{name}"))

    def handle_charref(self, name: str) -> None:
        self.handle_data(html.unescape(f"&#{name};"))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.parts.append(data)


def clean_caption(text: str) -> str:
    """Return a caption as the recipe gives it to the text encoder."""
    return _cleaned(_cleaned(text))


def _cleaned(text: str) -> str:
    text = renamed(unquote_plus(text).strip().lower(), _BEFORE)
    parser = _Text()
    parser.feed(text.replace("<![", "&lt;!["))  # the parser fails at most marked sections
    parser.close()
    text = renamed("".join(parser.parts), _AFTER)
    if len(re.findall("[-_]", text)) > 3:  # this-is-my-cat
        text = re.sub("[-_]", " ", text)
    text = unicodedata.normalize("NFC", re.sub(_CONTROLS, "", text))
    # Twice, as in the recipe: `&amp;lt;` is a `<`.
    text = html.unescape(html.unescape(text)).strip()
    return renamed(text, _LAST).strip()
