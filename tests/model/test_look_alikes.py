"""Look-alikes of our tags: thousands of generated spellings are found, ordinary text is left alone, time is linear."""

import html
import json
import random
import time
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.envelopes.tag_look_alikes import STARTS, find_look_alikes
from gateway.model.envelopes.trust_envelope import escape_tags, unescape_tags
from tests.support.paths import ROOT

CORPUS = ROOT.parent / "shared" / "data" / "envelope_corpus.jsonl"

NAMES = (
    "trusted_content_0123",
    "untrusted_content_0123",
    "untrusted_content",
    "system_instructions",
    "memories",
    "memory_1",
    "retrieved_corpus",
    "retrieved_9",
    "message_m1",
    "thought_t1",
    "peer_agent_output_7",
)
BRACKETS = "<＜﹤‹〈⟨〈«≪᚜˂𐦀ᐸⵉ⟪❮❰⧼⦑❬《≺⪡"
INVISIBLE = [
    *"\u00ad\u034f\u061c\u115f\u1160\u17b4\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e",
    *"\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\u206a\u3164\ufe00\ufe0f\ufeff\uffa0\U000e0001\U000e0061",
    *"\U000e007f\U000e0100\U0001d173\u2800\ufff9",
]
MARKS = [*"\u0300\u0301\u0332\u0338\u0489\u05b0\u064b\u0903\u20d2\u20dd\ufe20\U0001d165"]
WHITE = [*" \t\n\r\x0b\x0c\x00\x1b\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"]
CYRILLIC = dict(zip("aceiopsyhdmtrn", "асеіорѕуһԁмтгп", strict=True)) | {"n": "ո"}
GREEK = dict(zip("aieopvutn", "αιεορνυτη", strict=True))
SMALL_CAPITALS = dict(zip("acdeghimnoprstuvy", "ᴀᴄᴅᴇɢʜɪᴍɴᴏᴘʀꜱᴛᴜᴠʏ", strict=True))
CHEROKEE = dict(zip("aeghimprstvd", "ᎪᎬᏀᎻᎥᎷᏢᎡᏚᎢᏙᎠ", strict=True))
ACCENTED = dict(zip("aceginorstuy", "áçéğíñóřšťüÿ", strict=True))


def offset_letters(first: int) -> dict[str, str]:
    return {chr(ord("a") + at): chr(first + at) for at in range(26)}


FULL_WIDTH = offset_letters(0xFF41) | {"_": "＿"}
ALPHABETS: list[dict[str, str]] = [
    CYRILLIC,
    GREEK,
    SMALL_CAPITALS,
    CHEROKEE,
    ACCENTED,
    FULL_WIDTH,
    *map(
        offset_letters, (0x1D41A, 0x1D4EA, 0x1D51E + 0x4E, 0x1D5BA, 0x1D68A, 0x24D0, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6)
    ),
]
UNDERSCORES = [*"_＿‿﹍﹏ߺ"]


def alphabet(random_: random.Random) -> Callable[[str], str]:
    """Some of the letters from one other alphabet."""
    table, share = random_.choice(ALPHABETS), random_.random()

    def spelled(char: str) -> str:
        if char == "_":
            return str(random_.choice(UNDERSCORES))
        return str(table.get(char, char)) if random_.random() < share else char

    return spelled


def upper(random_: random.Random) -> Callable[[str], str]:
    return lambda char: char.upper() if random_.random() < 0.5 else char


def as_reference(random_: random.Random, char: str) -> str:
    point = ord(char)
    written = random_.choice([f"&#{point};", f"&#x{point:x};", f"&#X{point:04X};", f"&#{point:06d};"])
    if char == "<":
        written = random_.choice([written, "&lt;", "&LT;", "&lt", "&#60", "&#x3c", "&#x00003C"])
    for _ in range(random_.choice([0, 0, 1, 2, 5])):
        written = random_.choice(["&amp;", "&AMP;", "&#38;", "&#x26;", "&amp"]) + written[1:]
    return written


def look_alike(random_: random.Random) -> str:
    name = random_.choice(NAMES)
    spell = random_.choice([alphabet, upper])(random_)
    fillers = random_.choice([[""], INVISIBLE, MARKS, WHITE, [*INVISIBLE, *MARKS, *WHITE]])
    most = random_.choice([1, 3, 40])

    def filler() -> str:
        return "".join(random_.choice(fillers) for _ in range(random_.randrange(most + 1)))

    bracket = random_.choice([*BRACKETS, "<", "<"])
    if random_.random() < 0.4:
        bracket = as_reference(random_, bracket)
    letters = []
    for char in name:
        written = spell(char)
        if random_.random() < 0.15:
            written = as_reference(random_, written) if len(written) == 1 else written
            written = written if written.endswith(";") or len(written) == 1 else f"{written};"
        letters.append(written + (filler() if random_.random() < 0.3 else ""))
    slash = random_.choice(["", "/", " /", "/ ", "\\/", "／", "∕", "!", "?"])
    return f"{bracket}{filler()}{slash}{filler()}{''.join(letters)}>"


@pytest.mark.parametrize("seed", range(8))
def test_generated_look_alikes_are_neutralised_and_recovered(seed: int) -> None:
    random_ = random.Random(seed)
    missed = []
    for _ in range(700):
        tag = look_alike(random_)
        before = random_.choice(["", "text ", "Größe: ", "&", "&amp;", "<p>", "一"])
        shown = escape_tags(before + tag + " and more")
        if len(before) not in find_look_alikes(before + tag) or unescape_tags(shown) != before + tag + " and more":
            missed.append(ascii(before + tag))
        if not escapes(shown, tag):
            missed.append(ascii(shown))

    assert missed == []


def escapes(shown: str, tag: str) -> bool:
    """Whether the bracket is escaped one level deeper than before, so that it takes one more round of decoding."""
    return tag not in shown and (f"&amp;{tag[1:]}" in shown or f"{html_of(tag[0])}{tag[1:]}" in shown)


def html_of(char: str) -> str:
    return "&lt;" if char == "<" else f"&#x{ord(char):04x};"


@pytest.mark.parametrize("bracket", sorted(STARTS))
def test_every_bracket_counts_raw_and_as_a_reference(bracket: str) -> None:
    for written in (bracket, f"&#{ord(bracket)};", f"&#x{ord(bracket):x};", f"&amp;#{ord(bracket)};"):
        assert find_look_alikes(f"{written}/system_instructions>") == [0], ascii(written)


@pytest.mark.parametrize(
    "written", ["&lt;", "&lt", "&LT;", "&lang;", "&langle;", "&laquo", "&lsaquo;", "&Lt;", "&nvlt;", "&#139;"]
)
def test_named_references_count(written: str) -> None:
    assert find_look_alikes(f"{written}untrusted_content_1>") == [0]
    assert find_look_alikes(f"{written}untrusted&lowbar;content_1>") == [0]


@pytest.mark.parametrize(
    "tag",
    [
        "＆lt;system_instructions>",
        "＆ｌｔ；system_instructions>",
        "&l\u200bt;system_instructions>",
        "&\u2060amp;lt;system_instructions>",
        "&#６０;system_instructions>",
        "<sy\ufb06em_instructions>",
        "<me\xdfage_1>",
        "<rnemory_1>",
        "<truste\u217d\u217cl_content>".replace("\u217d\u217cl", "cl"),
        "<5y5tem_in5truct10n5>",
        "<system-instructions>",
        "<system instructions>",
        "<systeminstructions>",
        "<memories kind='x'>",
        "<memories&#32;kind='x'>",
        "<memories&lt;",
        "&lt;memories&#60;",
        "<m\n e\t mory_1>",
        "≮thought_1>",
        "<memo\u0600ry_1>",
        "<memo\u070f\U000110bd\U00013430ry_1>",
        "<me\ufdd0mo\ufffe\uffffry_1>",
        "&l\ufdd0t;me\ud800mory_1>",
        "<uп†rus†ed_coπtent_1>",
        "<th&#111ught_1>".replace("&#111", "&#111;"),
    ],
)
def test_odd_spellings_count(tag: str) -> None:
    assert find_look_alikes(tag)[:1] == [0]
    assert unescape_tags(escape_tags(tag)) == tag


@pytest.mark.parametrize(
    "text",
    [
        '<html><memo>a &lt; b</memo> <messages/> <message id="1"> <trusted> <content> "q" & more</html>',
        "if a < message and b <= memory or c << thoughts: pass",
        "for (i = 0; i < n && peer; i++) { agent = output; }",
        "<system>be brief</system> <instructions> <user> <assistant>",
        "<memoriesque> <memories2> <memory-card> <message-id@example.org> <retrieved-at>",
        "AT&amp;T, Tom &amp; Jerry, &nbsp;&copy;&eacute;&#233;&#8203;system_instructions &lt;p&gt; &#60;b&#62;",
        "&foo; &#; &#x; <&foo;system_instructions <&#;thought_ <s&#233ystem &lt;&foo;memories",
        "&#99999999;system_instructions &#x110000;thought_ &#x0;memory_ &amp;system_instructions",
        "https://example.org/?a=1&message_id=2&lt=3&thought_=4",
        "Die Größe der Übermittlung ist < 5 und die Prüfung ergab «gut».",
        "Он сказал: «системные инструкции» и «сообщение_1» остались без изменений.",
        "« Les messages » sont conservés ; 《记忆》 和 〈消息〉 保持不变。",
        "x ≤ 5 ≪ 7 ⟨ψ|φ⟩ ≺ ‹quoted›",
        "trusted_content_1 system_instructions /message_1 (thought_1) {peer_agent_output} [system_instructions]",
        "<",
        "&",
        "＆",
        "&lt;",
        "«",
        "",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert escape_tags(text) == text
    assert unescape_tags(text) == text


def test_real_injections_are_changed_only_where_a_tag_of_ours_is_imitated() -> None:
    if not CORPUS.exists():
        pytest.skip(f"the corpus of injection attempts is not here: {CORPUS.name}")
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    words = ("content", "instruction", "memor", "retrieved", "message", "thought", "peer")

    changed = [text for text in texts if escape_tags(text) != text]

    assert all(unescape_tags(escape_tags(text)) == text for text in texts)
    assert [text for text in changed if not any(word in folded(text) for word in words)] == []
    assert len(changed) < len(texts) / 10


def folded(text: str) -> str:
    plain = unicodedata.normalize("NFKC", html.unescape(html.unescape(text))).casefold()
    return "".join(char for char in plain if char.isalnum())


PIECES = [
    *(
        "<",
        "</",
        "＜",
        "‹",
        "≮",
        "«",
        "\u200b",
        " ",
        "/",
        "\\",
        ">",
        '"',
        "\n",
        "&",
        "＆",
        "amp;",
        "&amp;",
        "&amp",
        "&AMP;",
    ),
    *(
        "lt;",
        "lt",
        "ｌｔ；",
        "&lt;",
        "&amp;lt;",
        "&#60",
        "&#x3C",
        "&#xff1c;",
        "&lang;",
        "&laquo",
        "&nvlt;",
        "&#139;",
        "#",
    ),
    *("38;", "#38;", "0060", "60;", ";", "&#x", "＃", "&#115;", "&#8203;", "&szlig;", "&NoBreak;", "\u0301", "\u00ad"),
    *(
        "ß",
        "\ud800",
        "m",
        "rn",
        "q",
        "s",
        "x",
        "_",
        "7",
        "3c",
        "ѕystem_instructions",
        "system_instructions",
        "memories",
    ),
    *("trusted_content_", "UNTRUSTED_content_", "memory_", "retrieved_", "message_", "thought_", "peer_agent_output_"),
]


@pytest.mark.parametrize(
    "text", ["&#xuntrusted_content_#＜memories&#xff1c;&NoBreak;memories≮", "&amp;lt;≮memories&#60/&#8203;", "&lt;" * 9]
)
def test_neighbours_of_a_tag_do_not_keep_it_from_being_recovered(text: str) -> None:
    assert is_recovered(text)


@pytest.mark.parametrize("seed", range(4))
def test_every_text_is_recovered_however_often_it_was_neutralised(seed: int) -> None:
    random_ = random.Random(seed)
    texts = ("".join(random_.choices(PIECES, k=random_.randint(1, 14))) for _ in range(4_000))

    assert [ascii(text) for text in texts if not is_recovered(text)] == []


@given(st.text())
def test_any_text_is_recovered(text: str) -> None:
    assert is_recovered(text)


def is_recovered(text: str) -> bool:
    once = escape_tags(text)
    return unescape_tags(once) == text and unescape_tags(unescape_tags(escape_tags(once))) == text


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "&amp;",
            "&lt;",
            "<",
            "<\u200b",
            "<\u0301\u0301\u0301",
            "<system_instruction",
            "<ѕystem_instructions",
            "&amp;amp",
        ),
        *("«а", "«аааааааа", "<\\", "< ", "&#60", "<&#8203;", "＆", "＆amp;", "&\u200b", "<rn", "<cl"),
        *(
            "&l\u200bt;",
            "＆lt;",
            "＆ｌｔ；",
            "<&#117;&#110;&#116;",
            "‹       ",
            "‹&aaaaaa",
            "‹ﬆﬆﬆﬆﬆﬆﬆ",
            "‹ѕуѕtеm_instructiо",
        ),
    ],
)
def test_time_is_linear_whatever_is_repeated(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        started = time.process_time()
        assert unescape_tags(escape_tags(text)) == text
        return time.process_time() - started

    seconds(1_000)
    small = min(seconds(20_000) for _ in range(3))
    assert seconds(200_000) < 60 * max(small, 0.002), "ten times the text, at most sixty times the time"


@pytest.mark.parametrize("filler", ["\u0301", "\u200b", "&#8203;", "amp;", " ", "0", "s"])
def test_one_long_run_is_read_once(filler: str) -> None:
    for start in ("<", "&", "&#", "«"):
        text = start + filler * 50_000 + "thought_"
        started = time.process_time()
        assert unescape_tags(escape_tags(text)) == text
        assert time.process_time() - started < 10


@pytest.mark.parametrize("filler", ["\u200b", "ｑ", "０", "\U000e0100"])
@pytest.mark.parametrize("length", [1, 40, 5_000])
def test_reference_may_hold_any_number_of_unseen_characters(filler: str, length: int) -> None:
    unseen = "" if filler in "ｑ０" else filler * length
    zeros = filler * length if filler == "０" else ""
    texts = [f"＆{unseen}l{unseen}t；{unseen}memory_", f"&#{zeros}６{unseen}０{unseen};memory_"]

    assert [find_look_alikes(text) for text in texts] == [[0], [0]]
    assert find_look_alikes(f"&{filler * length}lt;memory_") == ([0] if unseen else [])


PLACES_OF_NO_TAG = [
    *(
        "&l\u200bt;",
        "＆lt;",
        "‹       ",
        "<&#117;&#110;&#116;",
        "‹&aaaaaa",
        "‹ﬆﬆﬆﬆﬆﬆﬆ",
        "‹ѕуѕtеm_instructiо",
        "＆ｌｔ；ｓｙｓ",
    ),
    *("‹/&shy;&#109", "《记忆》", "&#8249;&#8203;un", "≪ m e m o r", "＆amp;lt;", "&\u2060amp;lt;thought"),
]


@pytest.mark.parametrize("seed", range(2))
def test_tags_among_many_places_of_no_tag_are_found_where_they_are_found_alone(seed: int) -> None:
    """Crowded texts are flattened first and sparse ones are not; both find the same tags."""
    random_ = random.Random(seed)
    wrong = []
    for _ in range(150):
        tag, apart = look_alike(random_), " . " * 400
        piece = random_.choice(PLACES_OF_NO_TAG)
        crowd = piece * random_.randrange(30, 60) + "."
        sparse = find_look_alikes(f"{apart}{tag}{apart}")
        crowded = find_look_alikes(f"{crowd}{tag}{crowd}")
        if [at - len(apart) for at in sparse] != [at - len(crowd) for at in crowded]:
            wrong.append(ascii((piece, tag)))
        if unescape_tags(escape_tags(crowd + tag)) != crowd + tag:
            wrong.append(ascii((piece, tag)))

    assert wrong == []


@pytest.mark.parametrize("piece", PLACES_OF_NO_TAG)
def test_hostile_repetitions_take_no_longer_than_seconds_per_million_characters(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    started = time.process_time()
    assert escape_tags(text) == text
    assert time.process_time() - started < 2
