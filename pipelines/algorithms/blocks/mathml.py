"""Converts Presentation MathML to LaTeX: the elements that pages have."""

from __future__ import annotations

import re
import unicodedata

from selectolax.lexbor import LexborNode

# Deeper formulas are not converted: each level is a call.
_MAX_DEPTH = 100
_COMMANDS = (
    "∑sum ∏prod ∐coprod ∫int ∬iint ∭iiint ∮oint ⋃bigcup ⋂bigcap ⨁bigoplus ⨂bigotimes ⋁bigvee ⋀bigwedge ±pm ∓mp ×times "
    "÷div ·cdot ⋅cdot ∗ast ⋆star ∘circ ∙bullet ∩cap ∪cup ∧wedge ∨vee ⊕oplus ⊗otimes ⊙odot ≤le ≥ge ≠ne ≡equiv ∼sim "
    "≃simeq ≈approx ≅cong ∝propto ≺prec ≻succ ≪ll ≫gg ⊂subset ⊃supset ⊆subseteq ⊇supseteq ∈in ∋ni ∉notin ∀forall "
    "∃exists ∅emptyset ∇nabla ∂partial ∞infty ℵaleph ℏhbar ℓell ℜRe ℑIm ∠angle ¬neg →to ←leftarrow ↔leftrightarrow "
    "⇒Rightarrow ⇐Leftarrow ⇔Leftrightarrow ↦mapsto ↪hookrightarrow ⟶longrightarrow ⟵longleftarrow ⟹Longrightarrow "
    "⟺Longleftrightarrow ⟼longmapsto ↑uparrow ↓downarrow ⊤top ⊥bot ⊢vdash ∥| ⟨langle ⟩rangle ⌊lfloor ⌋rfloor ⌈lceil "
    "⌉rceil …ldots ⋯cdots ⋮vdots ⋱ddots ∖setminus △triangle □square ⋄diamond †dagger ‡ddagger ∴therefore ⩽leqslant "
    "⩾geqslant ‖| {{ }} %% ## && __ $$ ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΥUpsilon ΦPhi ΨPsi ΩOmega αalpha "
    "βbeta γgamma δdelta εvarepsilon ζzeta ηeta θtheta ιiota κkappa λlambda μmu νnu ξxi πpi ρrho ςvarsigma σsigma τtau "
    "υupsilon φvarphi χchi ψpsi ωomega ϕphi ϵepsilon ϑvartheta ϱvarrho ϖvarpi ∣mid"
)
_LATEX = {pair[0]: "\\" + pair[1:] for pair in _COMMANDS.split()}
_LATEX |= {"−": "-", "′": "'", "″": "''", "\xa0": " "} | dict.fromkeys("\u200b\u2061\u2062\u2063\u2064", "")
_FUNCTIONS = "arccos arcsin arctan arg cos cosh det exp gcd inf ker lim ln log max min sin sinh sup tan tanh".split()
_FONTS = dict(pair.split("=") for pair in (
    "double-struck=mathbb bold-italic=boldsymbol bold=mathbf script=mathcal fraktur=mathfrak black-letter=mathfrak "
    "sans-serif=mathsf monospace=mathtt normal=mathrm italic=mathit"
).split())  # fmt: skip
_ACCENTS = "^hat ˆhat ~tilde ˜tilde ¯bar ˉbar ‾overline ―overline ⃗vec ˙dot ¨ddot ⏞overbrace ⏟underbrace".split()
_ACCENT = {pair[0]: pair[1:] for pair in _ACCENTS} | {r"\sim": "tilde", r"\to": "vec"}
_WIDE = {"hat": "widehat", "tilde": "widetilde", "bar": "overline", "vec": "overrightarrow"}
_TEMPLATES = {
    "mfrac": r"\frac{{{0}}}{{{1}}}", "atop": r"{{{0} \atop {1}}}", "mroot": r"\sqrt[{1}]{{{0}}}",
    "msqrt": r"\sqrt{{{row}}}", "mphantom": r"\phantom{{{row}}}", "semantics": "{0}", "msub": "{base}_{{{1}}}",
    "msup": "{base}^{{{1}}}", "msubsup": "{base}_{{{1}}}^{{{2}}}", "mtr": "{cells}",
    "mtable": r"\begin{{matrix}}{rows}\end{{matrix}}",
}  # fmt: skip
# Their indices are written below and above them.
_LIMITS = re.compile(r"\\(sum|prod|coprod|i*int|oint|big\w+|lim\w*|max|min|sup|inf|det|gcd|Pr|operatorname|\w+brace)\b")
_TALL = re.compile(r"\\(frac|begin|sqrt|sum|int|prod)\b")
_OPENING, _CLOSING = re.compile(r"[(\[|]|\\[{|]|\\l\w+"), re.compile(r"[)\]|]|\\[}|]|\\r\w+")
_SINGLE = re.compile(r"\w|\\[a-zA-Z]+|\\math\w+\{\w\}|[\])|]|\\\||\\left(?:(?!\\left|\\right).)+\\right\\?.|")
_INDEX, _PRIMES = re.compile(r"([_^])\{(\w)\}"), re.compile(r"\^\{('+)\}")
# Binomials and matrices are built with their parentheses.
_BINOMIAL = re.compile(r"(?:\\left)?\(\{([^{}]*) \\atop ([^{}]*)\}(?:\\right)?\)")
_MATRIX = re.compile(
    r"\\left(\(|\[|\||\\\|)(\\begin\{)(matrix\}(?:(?!\\begin).)+\\end\{)(matrix\})\\right(?:[)\]|]|\\\|)"
)
_MATRICES = {"(": "p", "[": "b", "|": "v", r"\|": "V"}
_BORDER = re.compile(r"(\\[a-zA-Z]+)\0(?=[^\W_])")


def latex_of(node: LexborNode, depth: int = 0) -> str:
    """Return the LaTeX of an element of MathML; empty if there is none."""
    tag, attributes, children = (node.tag or "").rpartition(":")[2], node.attributes, [*node.iter()]
    if tag in ("mi", "mn", "mo", "mtext", "ms") and not children:
        return _token(tag, re.sub(r"\s+", " ", node.text()), attributes.get("mathvariant") or "")
    parts = [latex_of(child, depth + 1) for child in children] if depth < _MAX_DEPTH else []
    (first, second, third), row = (*parts, "", "", "")[:3], _join(parts)
    if tag in ("munder", "mover", "munderover"):
        return _over(first, "" if tag == "mover" else second, second if tag == "mover" else third)
    if tag == "mfenced":
        return (attributes.get("open") or "(") + ", ".join(parts) + (attributes.get("close") or ")")
    if template := _TEMPLATES.get("atop" if (attributes.get("linethickness") or "")[:1] == "0" else tag):
        base = first if _SINGLE.fullmatch(first) or _LIMITS.match(first) else f"{{{first}}}"
        rows = r" \\ ".join(parts)
        if tag == "mtable" and (attributes.get("columnalign") or "").startswith("right left"):
            template = template.replace("matrix", "aligned")
        return template.format(first, second, third, base=base, row=row, rows=rows, cells=" & ".join(parts))
    if len(parts) > 1 and _OPENING.fullmatch(parts[0]) and any(map(_TALL.search, parts)):
        if parts[0] == r"\{" and parts[-1].endswith(r"\end{matrix}"):
            return _join(parts[1:]).replace("{matrix}", "{cases}")
        if _CLOSING.fullmatch(parts[-1]):
            return _join([r"\left", *parts[:-1], r"\right", parts[-1]])
    if tag != "math":
        return row
    row = _BINOMIAL.sub(r"\\binom{\1}{\2}", _INDEX.sub(r"\1\2", _PRIMES.sub(r"\1", row)))
    return _MATRIX.sub(lambda matrix: "{1}{0}{2}{0}{3}".format(_MATRICES[matrix[1]], *matrix.groups()[1:]), row)


def _token(tag: str, text: str, variant: str) -> str:
    """Return a name, number, operator or text, in the font of its variant or of its characters."""
    if tag == "mtext":
        return rf"\text{{{text}}}" if text.strip() else "~"
    text = text.strip()
    plain = unicodedata.normalize("NFKC", text)
    if plain in _FUNCTIONS:
        return "\\" + plain
    if len(text) == 1 and text not in _LATEX and plain.isalnum() and plain != text:
        name = unicodedata.name(text, "").replace(" ", "-")
        text, variant = plain, next((font for font in _FONTS if font.upper() in name), "")
    latex = _join([_LATEX.get(character, character) for character in text])
    is_name = tag == "mi" and len(text) > 1 and variant in ("", "normal")
    font = "operatorname" if is_name else _FONTS.get(variant) if text.isascii() or variant[:4] == "bold" else None
    return rf"\{font}{{{latex}}}" if font and text.isalpha() else latex


def _join(parts: list[str]) -> str:
    """Return parts next to each other, with a space where a command would end in a letter of the next one."""
    return _BORDER.sub(r"\1 ", "\0".join(filter(None, parts))).replace("\0", "")


def _over(base: str, under: str, over: str) -> str:
    """Return a base with what is below and above it: limits, an accent, an arrow with a text, or else stacked."""
    accent = _ACCENT.get(over or under)
    if accent and not (over and under) and not _LIMITS.match(base):
        accent = accent if _SINGLE.fullmatch(base) else _WIDE.get(accent, accent)
        return rf"\{accent if over or accent == 'underbrace' else 'underline'}{{{base}}}"
    if _LIMITS.match(base):
        return base + (f"_{{{under}}}" if under else "") + (f"^{{{over}}}" if over else "")
    if over:
        base = rf"\xrightarrow{{{over}}}" if base == r"\to" and not under else rf"\overset{{{over}}}{{{base}}}"
    return rf"\underset{{{under}}}{{{base}}}" if under else base
