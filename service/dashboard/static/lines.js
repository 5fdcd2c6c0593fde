/* A search's parallel coordinates and slices, as SVG. */
"use strict";
(() => {
  const MOST_LINES = 400, MOST_DOTS = 500;

  function parallel(found, { merit, complete, pruned }) {
    const box = Search.part("parallel").querySelector(".plot");
    if (!complete.length && !pruned.length) return Charts.say(box, "No trial has ended yet.");
    const columns = [...Object.entries(found.params), [found.metric, found.value]];
    const W = 560, H = 320, top = 30, bottom = 14, side = 52;
    const all = [...pruned.slice(-MOST_LINES), ...complete];
    const scales = columns.map(([name, values]) => Svg.scaleOf(all.map((i) => values[i]), found.declared[name]));
    const px = (k) => side + (k * (W - 2 * side)) / Math.max(1, columns.length - 1), py = (s) => H - bottom - s * (H - top - bottom);
    const svg = Svg.draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Each trial's parameters and value; the data is linked below" });
    const drawn = complete.slice(-MOST_LINES);
    for (const i of [...pruned.slice(-MOST_LINES), ...drawn]) {
      const points = columns.map(([, values], k) => (values[i] == null ? null : `${px(k).toFixed(1)},${py(scales[k].at(values[i])).toFixed(1)}`)).filter(Boolean);
      const line = Svg.draw("polyline", { class: "line" + (merit[i] === null ? " out" : merit[i] === 1 ? " top" : ""), points: points.join(" "), opacity: merit[i] === null ? 0.5 : (0.08 + 0.92 * merit[i] ** 2).toFixed(3) });
      line.append(Svg.draw("title", {}, Search.told(i)));
      svg.append(line);
    }
    columns.forEach(([name], k) => {
      svg.append(Svg.draw("line", { class: "tick", x1: px(k), x2: px(k), y1: top, y2: H - bottom }));
      const last = k === columns.length - 1, anchor = last ? "end" : k === 0 ? "start" : "middle";
      svg.append(Svg.draw("text", { class: "name", x: anchor === "middle" ? px(k) : last ? W : 0, y: 14, "text-anchor": anchor }, name + (scales[k].log ? " (log)" : "")));
      for (const [s, text] of scales[k].ticks) svg.append(Svg.draw("text", { class: "halo", x: last ? px(k) + 5 : px(k) - 5, y: py(s) + 4, "text-anchor": last ? "start" : "end" }, text));
    });
    box.replaceChildren(svg, ...Search.thinned(drawn.length, complete.length));
  }

  function slices(found, { merit, complete, pruned }) {
    const box = Search.part("slices").querySelector(".plot");
    if (!complete.length && !pruned.length) return Charts.say(box, "No trial has ended yet.");
    const drawn = complete.slice(-MOST_DOTS), all = [...pruned.slice(-MOST_DOTS), ...drawn];
    const up = Svg.scaleOf(all.map((i) => found.value[i]));
    const panels = Object.entries(found.params).map(([name, values]) => {
      const width = 270, height = 190, across = Svg.scaleOf(all.map((i) => values[i]), found.declared[name]);
      const svg = Svg.draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${found.metric} by ${name}; the data is linked below` });
      const { px, py } = Svg.axes(svg, { width, height, left: 46, right: 10, top: 8, bottom: 38, across, up, x: name, few: true });
      for (const i of all) {
        if (values[i] == null) continue;
        const dot = Svg.draw("circle", { class: "dot" + (merit[i] === null ? " out" : merit[i] === 1 ? " top" : ""), cx: px(across.at(values[i])).toFixed(1), cy: py(up.at(found.value[i])).toFixed(1), r: merit[i] === 1 ? 5.5 : 3.2, "fill-opacity": merit[i] === null ? 0 : (0.15 + 0.85 * merit[i]).toFixed(2) });
        dot.append(Svg.draw("title", {}, Search.told(i)));
        svg.append(dot);
      }
      return svg;
    });
    box.replaceChildren(...panels, ...Search.thinned(drawn.length, complete.length));
  }

  Search.onData((found, ranked) => { parallel(found, ranked); slices(found, ranked); });
})();
