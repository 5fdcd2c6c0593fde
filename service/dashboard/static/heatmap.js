/* Two parameters of a search: how good the trials around each place are (smoothed by the server), and the trials. */
"use strict";
(() => {
  const MOST_DOTS = 1500, H = 320, MARGINS = { left: 62, right: 12, top: 10, bottom: 44 };
  const figure = Search.part("scatter"), box = figure.querySelector(".plot"), form = figure.querySelector(".controls");
  const links = [...figure.querySelectorAll("[data-heatmap]")];
  let found = null, ranked = null, asked = 0;

  function choose() {
    const names = Object.keys(found.params);
    return ["x", "y"].map((name, i) => {
      const select = form.elements[name], kept = select.options.length ? select.value : null;
      if (select.options.length !== names.length + 1) {
        select.replaceChildren(...names.map((one) => new Option(one)), new Option("value of " + found.metric, ""));
        select.value = [...names, ""].includes(kept) ? kept : names[i] ?? "";
      }
      return select.value;
    });
  }

  async function heatmapOf(x, y) {
    const chosen = new URLSearchParams({ x, y });
    for (const link of links) link.href = `${link.dataset.heatmap}?${chosen}`;
    if (!x || !y || x === y) return null;
    const answer = await fetch(`${links[0].dataset.heatmap}?${chosen}`);
    return answer.ok ? answer.json() : null;
  }

  async function draw() {
    const [x, y] = choose(), turn = ++asked;
    if (!found.number.length) return Charts.say(box, "No trial has started.");
    const heat = await heatmapOf(x, y).catch(() => null);
    if (turn === asked) plot(x, y, heat && heat.share.length ? heat : null);
  }

  function plot(x, y, heat) {
    const column = (name) => found.params[name] || found.value, { merit } = ranked;
    const scale = (name, end) => (heat ? Svg.scaleBetween(heat[end].low, heat[end].high, heat[end].log, heat[end].integer) : Svg.scaleOf(column(name), found.declared[name]));
    const across = scale(x, "x"), up = scale(y, "y"), W = Math.max(300, box.clientWidth);
    const svg = Svg.draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `${x || found.metric} against ${y || found.metric}, a dot a trial` });
    const cells = Svg.draw("g", { class: "heatmap" });
    svg.append(cells);
    const { px, py } = Svg.axes(svg, { width: W, height: H, ...MARGINS, across, up, x: x || found.metric, y: y || found.metric });
    if (heat) drawCells(cells, heat, px, py);
    let order = found.number.map((_, i) => i).filter((i) => column(x)[i] != null && column(y)[i] != null);
    order.sort((a, b) => (merit[a] ?? -1) - (merit[b] ?? -1));
    const all = order.length;
    order = order.slice(-MOST_DOTS);
    const points = order.map((i) => [i, px(across.at(column(x)[i])), py(up.at(column(y)[i]))]);
    for (const point of points) svg.append(dot(...point, all));
    Search.follow(svg, Search.among(points));
    box.replaceChildren(svg, ...Search.thinned(order.length, all));
    Search.fade();
  }

  function drawCells(group, heat, px, py) {
    const rows = heat.share.length, columns = heat.share[0].length;
    heat.share.forEach((row, j) => row.forEach((share, i) => {
      if (share === null) return;
      group.append(Svg.draw("rect", { x: px(i / columns).toFixed(2), y: py((j + 1) / rows).toFixed(2), width: (px(1 / columns) - px(0)).toFixed(2), height: (py(0) - py(1 / rows)).toFixed(2), opacity: (0.04 + 0.6 * share ** 2).toFixed(3) }));
    }));
  }

  function dot(i, cx, cy, all) {
    const merit = ranked.merit[i], best = merit === 1, title = Search.told(i);
    const circle = Svg.draw("circle", { class: "dot" + (merit === null ? " out" : "") + (best ? " top" : ""), cx: cx.toFixed(1), cy: cy.toFixed(1), r: best ? 7 : 4.5, "fill-opacity": merit === null ? 0 : 0.15 + 0.85 * merit, "data-trial": i });
    return Svg.draw("a", { href: Search.root.dataset.trials + found.number[i], "aria-label": title, tabindex: all > 60 ? -1 : 0 }, circle);
  }

  form.addEventListener("change", () => found && draw());
  Search.onData((data, ranks) => { found = data; ranked = ranks; draw(); });
})();
