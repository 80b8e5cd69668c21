"""How the page looks: one style sheet, light and dark, on a screen, a phone and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fcfcfb; --ink: #1c2127; --soft: #5d6772; --rule: #dde1e5; --panel: #f2f4f5;
  --plan: #0b62a4; --default: #8a939c; --bad: #b3261e;
  --prefill: #0b62a4; --decode: #14806f; --bar: #cfe2f1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --ink: #e4e8eb; --soft: #9aa5af; --rule: #313940; --panel: #1d2329;
    --plan: #6db5ee; --default: #87919b; --bad: #ff8a80;
    --prefill: #6db5ee; --decode: #52c3ae; --bar: #23455f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 68rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  -webkit-text-size-adjust: 100%;
}
header p { max-width: 46rem; margin: .4rem 0; }
h1 { font-size: 1.1rem; font-weight: 600; margin: 0; color: var(--soft); overflow-wrap: anywhere; }
header .verdict { font-size: 1.6rem; line-height: 1.25; font-weight: 600; margin: .5rem 0 .8rem; }
.soft { color: var(--soft); }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
section { border-top: 1px solid var(--rule); margin-top: 2rem; padding-top: 1.2rem; }
.words p { max-width: 46rem; margin: 0 0 .6rem; }
section.warnings { border: 0; border-left: 3px solid var(--bad); padding: .1rem 0 .1rem 1rem; }
dl { display: grid; grid-template-columns: repeat(8, 1fr); gap: 1px;
  margin: 1.4rem 0 0; background: var(--rule); border: 1px solid var(--rule); }
dl div { background: var(--page); padding: .6rem .8rem; }
dt { color: var(--soft); font-size: .82rem; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.words { min-width: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1.2rem 2.5rem; margin: 1rem 0; align-items: start; }
figure { margin: 0; max-width: 33rem; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--soft); }
svg text.note { paint-order: stroke; stroke: var(--page); stroke-width: 5px; fill: var(--ink); }
svg text.strong { font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); }
.limit { stroke: var(--soft); stroke-dasharray: 3 3; }
path.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.plan.line, line.plan, .stem { stroke: var(--plan); stroke-width: 2; }
.default.line, line.default { stroke: var(--default); stroke-width: 2; stroke-dasharray: 5 3; }
rect.plan, circle.plan { fill: var(--plan); } rect.default { fill: var(--default); }
rect.prefill { fill: var(--prefill); } rect.prefill-pad { fill: var(--prefill); opacity: .35; }
rect.decode, circle.decode { fill: var(--decode); }
rect.decode-pad { fill: var(--decode); opacity: .35; }
.bubble { fill: var(--decode); fill-opacity: .22; stroke: var(--decode); stroke-opacity: .6; }
.chosen { fill: var(--page); stroke: var(--plan); stroke-width: 2.5; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; white-space: normal;
  max-width: 8rem; }
th:first-child, td:first-child { text-align: left; padding-left: .2rem; }
tr.marked td { background: var(--panel); font-weight: 600; }
td.bar { min-width: 8rem; background: linear-gradient(to left, var(--bar) var(--share),
  transparent var(--share)); -webkit-print-color-adjust: exact; print-color-adjust: exact; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .8rem; overflow-wrap: anywhere; }
@media (max-width: 60rem) { dl { grid-template-columns: repeat(4, 1fr); } }
@media (max-width: 40rem) {
  dl { grid-template-columns: repeat(2, 1fr); } svg text { font-size: 13.5px; }
  body { padding: 1.2rem .9rem 3rem; } header .verdict { font-size: 1.3rem; }
  th, td { padding: .22rem .45rem; }
}
@media print {
  :root { --page: #fff; --ink: #000; --soft: #444; --rule: #ccc; --panel: #eee;
    --plan: #0b62a4; --default: #8a939c; --prefill: #0b62a4; --decode: #14806f; --bar: #cfe2f1; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  .scroll { overflow: visible; } table { font-size: 8pt; } th, td { padding: .15rem .35rem; }
  figure, tr, dl { break-inside: avoid; } h2, figcaption { break-after: avoid; }
  svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .figures { grid-template-columns: 1fr 1fr; }
}
"""
