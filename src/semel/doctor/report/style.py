"""The look of the HTML report: light and dark, wide and narrow, on screen and on paper.

Colours are of Okabe and Ito's palette, which people with any kind of colour vision can tell apart; each also has a
word, a dash or a place of its own. Text has a contrast of at least 4.5 to 1.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_COLOURS_LIGHT: Final = """
  --page: #f5f6f8; --card: #ffffff; --ink: #1c2530; --muted: #566270; --line: #dde2e8; --code: #f0f2f5;
  --blue: #0072b2; --red: #b54400; --green: #00765a; --amber: #855600; --soft: #9db4c8; --purple: #8a4b75;
  --red-wash: #fdf1ea; --amber-wash: #fdf6e3; --blue-wash: #eaf3fa; --green-wash: #e8f5f0; --on-bar: #ffffff;
"""
_COLOURS_DARK: Final = """
  --page: #11161c; --card: #1a2129; --ink: #e5eaf0; --muted: #a0adbb; --line: #303b47; --code: #11171d;
  --blue: #56b4e9; --red: #ff8f57; --green: #3fc79a; --amber: #eab54a; --soft: #5d7488; --purple: #dd95c1;
  --red-wash: #34231b; --amber-wash: #302819; --blue-wash: #1a2a38; --green-wash: #17302a; --on-bar: #11161c;
"""
_PAGE: Final = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 1080px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; } header p { max-width: none; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 21px; margin: 44px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 16px; margin: 0 0 6px; overflow-wrap: anywhere; }
p { margin: 0 0 8px; max-width: 75ch; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 20px; } li { overflow-wrap: anywhere; }
a { color: var(--blue); }
.muted, footer { color: var(--muted); }
.small { font-size: 14px; }
.verdict { margin: 20px 0 0; padding: 14px 18px; border-radius: 10px; border-left: 6px solid var(--green);
  background: var(--green-wash); font-size: 18px; }
.verdict strong { font-weight: 650; } .verdict p { margin: 2px 0 0; font-size: 16px; }
.verdict.critical { border-color: var(--red); background: var(--red-wash); }
.verdict.warning { border-color: var(--amber); background: var(--amber-wash); }
.verdict.info { border-color: var(--blue); background: var(--blue-wash); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px; margin: 0 0 16px;
  min-width: 0; }
.finding { border-left: 6px solid var(--blue); }
.finding.critical { border-left-color: var(--red); } .finding.warning { border-left-color: var(--amber); }
.chip { display: inline-block; font-size: 13px; font-weight: 650; padding: 1px 9px; border-radius: 99px;
  margin-right: 8px; color: var(--green); background: var(--green-wash); white-space: nowrap; vertical-align: 2px; }
.chip.critical { color: var(--red); background: var(--red-wash); }
.chip.warning { color: var(--amber); background: var(--amber-wash); }
.chip.info { color: var(--blue); background: var(--blue-wash); }
p code { font: 0.9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--code); padding: 1px 4px;
  border-radius: 4px; }
.rule { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, monospace; color: var(--muted); overflow-wrap: anywhere; }
.observed { font-size: 17px; }
.cure { margin-top: 12px; padding-top: 12px; border-top: 1px solid var(--line); }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 7px; padding: 10px 12px; margin: 8px 0;
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  -webkit-user-select: all; user-select: all; }
details { margin-top: 10px; } summary + * { margin-top: 10px; }
details > div + div { margin-top: 22px; } summary { cursor: pointer; color: var(--blue); }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 15px; }
caption { text-align: left; font-weight: 650; padding: 0 0 8px; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr > :last-child { padding-right: 0; } tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 550; font-size: 14px; }
tbody th { font-weight: 550; } tbody th.words, tbody th.n { font-weight: 400; }
th .muted { display: block; font-weight: 400; }
.words { overflow-wrap: anywhere; min-width: 12ch; } .n { text-align: right; } .n, .time { white-space: nowrap; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 0 0 16px; }
.tile { flex: 1 1 auto; padding: 12px 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.tile dt { font-size: 14px; color: var(--muted); } .tile dd { margin: 0; font-size: 21px; font-weight: 600; }
.tile dd small { font-size: 14px; font-weight: 400; color: var(--muted); display: block; }
.tile.alarm dd { color: var(--red); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 16px;
  align-items: stretch; margin-bottom: 16px; }
figure { margin: 0; display: flex; flex-direction: column; } .grid .card { margin: 0; }
figcaption { font-weight: 650; margin-bottom: 2px; }
figure .says { color: var(--muted); font-size: 14.5px; margin-bottom: 10px; }
svg { display: block; width: 100%; height: auto; max-width: 620px; overflow: hidden; }
svg text { font-size: 12.5px; fill: var(--muted); paint-order: stroke; stroke: var(--card); stroke-width: 4px;
  stroke-linejoin: round; } svg .name { fill: var(--ink); font-size: 13px; }
svg .marked { fill: var(--red); font-weight: 650; } svg .hinted { fill: var(--green); font-weight: 650; }
svg .onbar { fill: var(--on-bar); stroke: none; }
.grid line, svg .grid { stroke: var(--line); stroke-width: 1; } svg .axis { stroke: var(--muted); stroke-width: 1; }
svg .good { fill: var(--blue); } svg .bad { fill: var(--red); } svg .soft { fill: var(--soft); }
svg .better { fill: var(--green); }
svg line.mark { stroke: var(--red); stroke-width: 2; }
svg line.hint { stroke: var(--green); stroke-width: 2; stroke-dasharray: 5 4; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .sent { stroke: var(--blue); } svg .received { stroke: var(--red); }
svg .deleted { stroke: var(--green); stroke-dasharray: 2 5; stroke-width: 2.5; }
svg .oldest { stroke: var(--purple); }
footer { padding-top: 28px; padding-bottom: 40px; font-size: 14px; }
@media (max-width: 640px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; } .card { padding: 14px; }
  h1 { font-size: 23px; } .verdict { font-size: 17px; } .spare { display: none; } table { font-size: 14px; }
  th, td { padding-right: 10px; } .tile { min-width: 46%; }
}
@media print {
  body { background: #fff; font-size: 12px; } main, header, footer { max-width: none; padding: 0; }
  .card, .tile, figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; block-size: auto; } nav { display: none; }
}
"""
CSS: Final = (
    f":root {{ color-scheme: light dark;{_COLOURS_LIGHT}}}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{{_COLOURS_DARK}}} }}{_PAGE}"
)
# The page may load nothing, run nothing and send nothing; only this very style is let in, by its digest.
POLICY: Final = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()}'"
)
