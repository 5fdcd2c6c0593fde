/* A search's parallel coordinates, whose axes are moved and brushed, and its slices, as SVG. */
"use strict";
(() => {
  const MOST_LINES = 400, MOST_DOTS = 500, LEAST = 84; // pixels between two axes
  const TOP = 44, BOTTOM = 14, SIDE = 52, H = 330, REACH = 12;
  const figure = Search.part("parallel"), box = figure.querySelector(".plot"), said = figure.querySelector("[data-chosen]");
  const brushes = new Map(); // by the name of an axis, the lower and the upper end as places in [0, 1]
  for (const [, name, low, high] of Address.all("brush").map((text) => /^(.+):([\d.]+):([\d.]+)$/.exec(text)).filter(Boolean)) brushes.set(name, [Number(low), Number(high)]);
  let order = Address.all("axis"), seen = null;

  function parallel(found, ranked) {
    seen = [found, ranked];
    const { merit, complete, pruned } = ranked;
    if (!complete.length && !pruned.length) return Charts.say(box, "No trial has ended.");
    const columns = new Map([...Object.entries(found.params), [found.metric, found.value]]);
    if (order.length !== columns.size || order.some((name) => !columns.has(name))) order = [...columns.keys()];
    for (const name of brushes.keys()) if (!columns.has(name)) brushes.delete(name);
    const drawn = complete.slice(-MOST_LINES), all = [...pruned.slice(-MOST_LINES), ...drawn];
    const axes = order.map((name) => ({ name, values: columns.get(name), scale: Svg.scaleOf([...pruned, ...complete].map((i) => columns.get(name)[i]), found.declared[name]) }));
    const W = Math.max(box.clientWidth, 2 * SIDE + LEAST * (axes.length - 1)), apart = (W - 2 * SIDE) / Math.max(1, axes.length - 1);
    const px = (k) => SIDE + k * apart, py = (s) => H - BOTTOM - s * (H - TOP - BOTTOM), place = (y) => Math.max(0, Math.min(1, (H - BOTTOM - y) / (H - TOP - BOTTOM)));
    const svg = Svg.draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Each trial's parameters and value; the data is linked below" });
    svg.style.minWidth = W + "px";
    const heights = new Map(all.map((i) => [i, axes.map(({ values, scale }) => (values[i] == null ? null : py(scale.at(values[i]))))]));
    for (const [i, ys] of heights) {
      const points = ys.map((y, k) => (y === null ? null : `${px(k).toFixed(1)},${y.toFixed(1)}`)).filter(Boolean);
      svg.append(Svg.draw("polyline", { class: "line" + (merit[i] === null ? " out" : merit[i] === 1 ? " top" : ""), points: points.join(" "), opacity: merit[i] === null ? 0.5 : (0.08 + 0.92 * merit[i] ** 2).toFixed(3), "data-trial": i }));
    }
    axes.forEach((axis, k) => svg.append(axisOf(axis, k)));
    Search.follow(svg, nearest);
    if (brushes.size) choose(axes, found);
    box.replaceChildren(svg, ...Search.thinned(drawn.length, complete.length));

    /* The trial whose line passes the pointer closest, between the axes to its left and right. */
    function nearest(x, y) {
      const k = Math.max(0, Math.min(axes.length - 2, Math.floor((x - SIDE) / apart))), t = (x - px(k)) / apart;
      let best = null, least = REACH;
      for (const [i, ys] of heights) {
        if (ys[k] === null || ys[k + 1] == null || !Search.isChosen(i)) continue;
        const far = Math.abs(ys[k] + t * (ys[k + 1] - ys[k]) - y);
        if (far < least) { best = i; least = far; }
      }
      return best;
    }

    function axisOf({ name, scale }, k) {
      const last = k === axes.length - 1, x = px(k), anchor = last ? "end" : k === 0 ? "start" : "middle";
      const group = Svg.draw("g", { class: "axis", tabindex: 0, role: "button", "data-axis": name, "aria-label": `Axis ${name}: arrows left and right move it, up and down narrow what is chosen, Escape chooses all` });
      const title = Svg.draw("text", { class: "name", x: anchor === "middle" ? x : last ? W : 0, y: k % 2 ? 28 : 14, "text-anchor": anchor }, name + (scale.log ? " (log)" : ""));
      const brush = Svg.draw("rect", { class: "brush", x: x - 7, width: 14 }), grip = Svg.draw("rect", { class: "grip", x: x - 13, y: TOP - 8, width: 26, height: H - TOP - BOTTOM + 16 });
      group.append(Svg.draw("line", { class: "tick", x1: x, x2: x, y1: TOP, y2: H - BOTTOM }), title);
      for (const [s, text] of scale.ticks) group.append(Svg.draw("text", { class: "halo", x: last ? x + 5 : x - 5, y: py(s) + 4, "text-anchor": last ? "start" : "end" }, text));
      group.append(brush, grip);
      const show = () => {
        const [low, high] = brushes.get(name) || [0, 0];
        brush.setAttribute("y", py(high));
        brush.setAttribute("height", py(low) - py(high));
      };
      const set = (low, high) => {
        if (high - low < 0.005 || (low <= 0 && high >= 1)) brushes.delete(name);
        else brushes.set(name, [low, high]);
        show();
        choose(axes, found);
      };
      const drag = (node, begin) => node.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        node.setPointerCapture(event.pointerId);
        const box = svg.getBoundingClientRect(), at = (one) => [((one.clientX - box.left) * W) / box.width, ((one.clientY - box.top) * H) / box.height];
        const [move, end] = begin(at(event));
        const moved = (one) => move(at(one));
        node.addEventListener("pointermove", moved);
        node.addEventListener("pointerup", (one) => { node.removeEventListener("pointermove", moved); end?.(at(one)); }, { once: true });
      });
      drag(grip, ([, y]) => { const from = place(y); set(0, 1); return [([, to]) => set(Math.min(from, place(to)), Math.max(from, place(to)))]; });
      drag(title, ([from]) => [([to]) => group.setAttribute("transform", `translate(${to - from} 0)`), ([to]) => move(k, Math.round((px(k) + to - from - SIDE) / apart))]);
      group.addEventListener("keydown", (event) => {
        const [low, high] = brushes.get(name) || [0, 1];
        const act = { ArrowLeft: () => move(k, k - 1), ArrowRight: () => move(k, k + 1), ArrowUp: () => set(Math.min(low + 0.1, high - 0.1), high), ArrowDown: () => set(low, Math.max(high - 0.1, low + 0.1)), Escape: () => set(0, 1) }[event.key];
        if (!act) return;
        event.preventDefault();
        act();
      });
      show();
      return group;
    }
  }

  /* Put the axis at place k to another place. */
  function move(k, to) {
    const [name] = order.splice(k, 1);
    order.splice(Math.max(0, Math.min(order.length, to)), 0, name);
    Address.set("axis", ...order);
    parallel(...seen);
    Search.fade();
    box.querySelector(`[data-axis="${CSS.escape(name)}"]`).focus();
  }

  function choose(axes, found) {
    const inside = ({ name, values, scale }, i) => {
      const brush = brushes.get(name);
      if (!brush) return true;
      const s = values[i] == null ? -1 : scale.at(values[i]);
      return s >= brush[0] - 1e-9 && s <= brush[1] + 1e-9;
    };
    const some = brushes.size ? new Set(found.number.map((_, i) => i).filter((i) => axes.every((axis) => inside(axis, i)))) : null;
    Search.choose(some);
    Address.set("brush", ...[...brushes].map(([axis, [low, high]]) => `${axis}:${low.toFixed(3)}:${high.toFixed(3)}`));
    said.textContent = some ? `${some.size} of ${found.number.length} trials are chosen, by ${[...brushes.keys()].join(", ")}.` : "";
  }

  function slices(found, { merit, complete, pruned }) {
    const box = Search.part("slices").querySelector(".plot");
    if (!complete.length && !pruned.length) return Charts.say(box, "No trial has ended.");
    const drawn = complete.slice(-MOST_DOTS), all = [...pruned.slice(-MOST_DOTS), ...drawn];
    const up = Svg.scaleOf(all.map((i) => found.value[i]));
    const panels = Object.entries(found.params).map(([name, values]) => {
      const width = 270, height = 190, across = Svg.scaleOf(all.map((i) => values[i]), found.declared[name]);
      const svg = Svg.draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${found.metric} by ${name}; the data is linked below` });
      const { px, py } = Svg.axes(svg, { width, height, left: 46, right: 10, top: 8, bottom: 38, across, up, x: name, few: true });
      const points = all.filter((i) => values[i] != null).map((i) => [i, px(across.at(values[i])), py(up.at(found.value[i]))]);
      for (const [i, cx, cy] of points)
        svg.append(Svg.draw("circle", { class: "dot" + (merit[i] === null ? " out" : merit[i] === 1 ? " top" : ""), cx: cx.toFixed(1), cy: cy.toFixed(1), r: merit[i] === 1 ? 5.5 : 3.2, "fill-opacity": merit[i] === null ? 0 : (0.15 + 0.85 * merit[i]).toFixed(2), "data-trial": i }));
      Search.follow(svg, Search.among(points));
      return svg;
    });
    box.replaceChildren(...panels, ...Search.thinned(drawn.length, complete.length));
  }

  Search.onData((found, ranked) => { parallel(found, ranked); slices(found, ranked); });
})();
