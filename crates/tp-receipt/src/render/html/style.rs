//! The page's look.

/// Colours are variables, so that a dark room changes them and nothing else.
pub const CSS: &str = r#"
:root { --bg:#f7f7f5; --card:#fff; --text:#1c1e21; --dim:#5b6068; --line:#d9dadd; --ok:#17703a; --okbg:#e2f3e7;
  --bad:#b3202a; --badbg:#fbe4e4; --odd:#8a5a00; --oddbg:#fdf0d4; --part:#4a5568; --partbg:#e8ebf0; --pre:#f0f0ee;
  --s0:#1f6fb5; --s1:#c2550a; --s2:#2a8052; --s3:#8a3fa0; --s4:#a8243b; --s5:#4b6a00; --s6:#00747a; --s7:#6a4c2c; }
@media (prefers-color-scheme: dark) {
  :root { --bg:#14161a; --card:#1d2026; --text:#e4e6ea; --dim:#9aa1ac; --line:#353a43; --ok:#74d391; --okbg:#17301f;
    --bad:#ff8a8a; --badbg:#3c1b1e; --odd:#f2c265; --oddbg:#38290f; --part:#b9c2d0; --partbg:#2a2f38; --pre:#14161a;
    --s0:#6fb3ef; --s1:#f0995a; --s2:#73cf9b; --s3:#cf92e2; --s4:#f08296; --s5:#b5d45e; --s6:#5fd0d6; --s7:#d1ad85; }
}
* { box-sizing:border-box; }
body { margin:0; background:var(--bg); color:var(--text); font:15px/1.5 system-ui,sans-serif; overflow-wrap:anywhere; }
header, main { max-width:72rem; margin:0 auto; padding:1rem; }
header { border-bottom:4px solid currentColor; }
header.ok { border-color:var(--ok); } header.bad { border-color:var(--bad); }
header.odd { border-color:var(--odd); } header.part { border-color:var(--part); }
header h1 { margin:0; font-size:2rem; letter-spacing:.02em; }
header.ok h1 { color:var(--ok); } header.bad h1 { color:var(--bad); }
header.odd h1 { color:var(--odd); } header.part h1 { color:var(--part); }
header p { margin:.25rem 0; } header ul { margin:.5rem 0; padding-left:1.2rem; }
.chip { display:inline-block; border:1px solid var(--line); border-radius:1rem; padding:0 .6rem; color:var(--dim); }
section { background:var(--card); border:1px solid var(--line); border-radius:.5rem; padding:.25rem 1rem 1rem;
  margin:1rem 0; content-visibility:auto; contain-intrinsic-size:auto 24rem; }
h2 { font-size:1.15rem; margin:.75rem 0 .5rem; } h3 { font-size:1rem; margin:1rem 0 .25rem; }
p.note, .dim { color:var(--dim); margin:.25rem 0; }
.wide { overflow-x:auto; background:linear-gradient(90deg,var(--card) 40%,transparent) 0 0/2rem 100% no-repeat local,
  linear-gradient(270deg,var(--card) 40%,transparent) 100% 0/2rem 100% no-repeat local,
  linear-gradient(90deg,var(--line),transparent) 0 0/.8rem 100% no-repeat scroll,
  linear-gradient(270deg,var(--line),transparent) 100% 0/.8rem 100% no-repeat scroll; }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; overflow-wrap:normal; }
th, td { text-align:left; padding:.3rem .6rem; border-bottom:1px solid var(--line); vertical-align:top; }
th { color:var(--dim); font-weight:600; white-space:nowrap; }
code, pre { font-family:ui-monospace,monospace; font-size:.87em; }
td code { overflow-wrap:break-word; }
pre { background:var(--pre); border:1px solid var(--line); border-radius:.35rem; padding:.6rem; overflow-x:auto;
  margin:.35rem 0; }
.grid td { border:2px solid var(--card); border-radius:.3rem; min-width:8rem; }
.grid td.name { min-width:0; white-space:nowrap; }
td.ok { background:var(--okbg); } td.bad { background:var(--badbg); }
td.odd { background:var(--oddbg); } td.part { background:var(--partbg); } td.none { color:var(--dim); }
td.ok b { color:var(--ok); } td.bad b { color:var(--bad); } td.odd b { color:var(--odd); } td.part b { color:var(--part); }
td a { color:inherit; }
td small { display:block; color:var(--dim); }
details { margin:.5rem 0; } summary { cursor:pointer; }
.fail { border-left:4px solid var(--bad); padding-left:.8rem; margin:1rem 0; }
.fail.part { border-color:var(--part); } .fail.odd { border-color:var(--odd); }
.cause { background:var(--oddbg); border-radius:.35rem; padding:.5rem .8rem; margin:.5rem 0; }
.cause p { margin:.15rem 0; }
.plots { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr)); gap:1rem; }
figure { margin:0; } figcaption { font-weight:600; }
svg { width:100%; height:auto; display:block; max-width:46rem; }
svg text { fill:var(--dim); font:11px system-ui,sans-serif; }
svg .strong { fill:var(--text); font-weight:600; }
svg .axis { stroke:var(--line); } svg .floor { stroke:var(--dim); stroke-dasharray:2 4; }
svg .box { fill:var(--bg); stroke:var(--line); }
svg .port { fill:var(--partbg); stroke:var(--line); } svg .port.on { fill:var(--okbg); stroke:var(--ok); }
svg .rail { fill:none; stroke:var(--ok); stroke-width:2; }
svg polyline { fill:none; stroke-width:2; } svg .range { stroke-width:1; opacity:.55; }
.legend { list-style:none; padding:0; margin:.35rem 0; display:grid;
  grid-template-columns:repeat(auto-fill,minmax(min(100%,13rem),1fr)); gap:.25rem .75rem; font-size:.87em; }
svg .mark { fill:var(--card); stroke-width:1.5; }
.legend svg { width:2rem; display:inline-block; vertical-align:middle; margin-right:.3rem; }
.c0 { stroke:var(--s0); } .c1 { stroke:var(--s1); } .c2 { stroke:var(--s2); } .c3 { stroke:var(--s3); }
.c4 { stroke:var(--s4); } .c5 { stroke:var(--s5); } .c6 { stroke:var(--s6); } .c7 { stroke:var(--s7); }
.dash { stroke-dasharray:6 3; }
.bar { display:inline-block; height:.6rem; background:var(--s0); border-radius:.2rem; vertical-align:middle;
  min-width:2px; margin-right:.4rem; }
@media (max-width: 40rem) {
  header, main { padding:.6rem; } section { padding:.1rem .7rem .7rem; }
  .many::before { content:"scrolls sideways \2192"; position:sticky; left:0; display:inline-block; color:var(--dim);
    font-size:.85em; }
  .grid td { min-width:6.5rem; } th, td { padding:.25rem .4rem; }
}
@media print { section { break-inside:avoid; content-visibility:visible; } }
"#;
