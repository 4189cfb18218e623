"""How the report looks: one style sheet, light and dark, wide and narrow, without a font or a script to load."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #ffffff; --ink: #1c1d20; --soft: #5d6068; --rule:
  #e4e4df; --accent: #1f5fd6; --c0: #1f5fd6; --c1: #c4480c; --c2: #0b7d5b; --c3: #7a3bd0; --c4: #a3216f;
  --bound: #1c1d20; --code: #f1f1ed; }
@media (prefers-color-scheme: dark) {
  :root { --page: #131417; --card: #1b1d21; --ink: #eceded; --soft: #9ea3ad; --rule: #2d3037; --accent: #82aaff;
    --c0: #82aaff; --c1: #ff9d66; --c2: #4fd0a0; --c3: #bb9bff; --c4: #ff8fc8; --bound: #eceded; --code:
    #24272d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, Roboto, Helvetica, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 26px; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); font-size: 13.5px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 18px 20px;
  margin-top: 18px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 14px 18px; margin:
  18px 0 0; }
.facts div { min-width: 0; }
.facts dt, .facts dd { margin: 0; }
.facts { padding: 0; }
.facts dt { color: var(--soft); font-size: 12.5px; }
.facts dd { font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.answer { border-left: 4px solid var(--accent); }
.answer .big { font-size: 30px; font-weight: 650; letter-spacing: -0.015em; line-height: 1.25; }
pre { background: var(--code); border-radius: 8px; padding: 12px 14px; margin: 12px 0 0; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, Menlo, Consolas, monospace; user-select:
  all; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 10px 0 2px; padding: 0;
  font-size: 13px; }
.legend svg { width: 26px; height: 10px; vertical-align: middle; margin-right: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend svg { display: inline; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 12px; }
.axis { fill: var(--soft); font-size: 12.5px; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.dot { stroke: var(--card); stroke-width: 1; }
.bar { fill: var(--c0); }
.area { opacity: .82; stroke: none; }
.line.c0 { stroke: var(--c0); }
.line.c1 { stroke: var(--c1); }
.line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); }
.line.c4 { stroke: var(--c4); }
.dot.c0, .area.c0 { fill: var(--c0); }
.dot.c1, .area.c1 { fill: var(--c1); }
.dot.c2, .area.c2 { fill: var(--c2); }
.dot.c3, .area.c3 { fill: var(--c3); }
.dot.c4, .area.c4 { fill: var(--c4); }
.line.bound { stroke: var(--bound); stroke-width: 1.6; stroke-dasharray: 6 4; }
.line.infinite { stroke: var(--soft); stroke-width: 1.4; stroke-dasharray: 1.5 4; }
.mark { stroke: var(--accent); stroke-width: 1.2; stroke-dasharray: 3 3; }
.halo { fill: var(--accent); opacity: .25; }
.marked { fill: var(--ink); font-size: 12.5px; font-weight: 600; }
.scroll { overflow-x: auto; margin: 0 -4px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
tr.here td { font-weight: 650; background: color-mix(in srgb, var(--accent) 12%, transparent); }
ul.notes { margin: 10px 0 0; padding-left: 18px; color: var(--soft); font-size: 13.5px; }
.narrow { display: none; }
@media (max-width: 620px) {
  .wide { display: none; }
  .narrow { display: block; }
  main { padding: 20px 12px 40px; }
  section { padding: 14px 12px; }
  h1 { font-size: 21px; }
  .answer .big { font-size: 23px; }
  .facts dd { font-size: 17px; }
  .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media print {
  body { background: none; }
  section { break-inside: avoid; }
}
"""
