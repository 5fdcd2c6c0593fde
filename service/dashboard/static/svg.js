/* What the SVG drawings share: elements, and a frame with scales and ticks. */
"use strict";
const Svg = (() => {
  const NS = "http://www.w3.org/2000/svg";

  function draw(tag, properties, ...children) {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  /* A closed form of contour lines: marching squares with linear interpolation, one path for all levels. */
  function contours(xs, ys, height, levels, px, py) {
    const parts = [];
    for (const level of levels)
      for (let j = 0; j + 1 < ys.length; j++)
        for (let i = 0; i + 1 < xs.length; i++) {
          const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
          const cuts = [];
          corners.forEach(([a, b], k) => {
            const [c, d] = corners[(k + 1) % 4], u = height[b][a] - level, v = height[d][c] - level;
            if (u < 0 === v < 0) return;
            const t = u / (u - v);
            cuts.push(px(xs[a] + t * (xs[c] - xs[a])).toFixed(1) + " " + py(ys[b] + t * (ys[d] - ys[b])).toFixed(1));
          });
          for (let k = 0; k + 1 < cuts.length; k += 2) parts.push("M" + cuts[k] + "L" + cuts[k + 1]);
        }
    return parts.join("");
  }

  /* A scale of numbers between two ends: `at` gives the place in [0, 1]. Integers have ticks at integers alone. */
  function scaleBetween(low, high, log, integer = false) {
    const f = log ? Math.log10 : (value) => value;
    const at = (value) => (high === low ? 0.5 : (f(value) - f(low)) / (f(high) - f(low)));
    const inner = [0, 0.25, 0.5, 0.75, 1].map((s) => (log ? 10 ** (f(low) + s * (f(high) - f(low))) : low + s * (high - low)));
    if (integer && high > low) {
      const step = Math.ceil((high - low) / 5), every = Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, i) => low + i * step);
      const whole = log ? [...new Set(inner.map(Math.round))] : every;
      return { at, log, ticks: whole.map((value) => [at(value), String(value)]) };
    }
    // Two digits, or on a linear scale as many more as tell two ticks apart.
    const apart = log || high === low ? 0 : Math.log10(Math.max(Math.abs(low), Math.abs(high)) / ((high - low) / 4));
    const digits = Math.min(8, Math.max(2, Math.ceil(apart) + 1));
    return { at, log, ticks: high === low ? [[0.5, Charts.number(low)]] : inner.map((value) => [at(value), Charts.number(Math.abs(value) < 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? 0 : Number(value.toPrecision(digits)))]) };
  }

  /* A scale of one column: numbers, logarithmic and integer as the search space declares them, otherwise categories.
     What is not declared is logarithmic where it spans a factor of ten. */
  function scaleOf(values, declared = null) {
    const known = values.filter((value) => value !== null && value !== undefined);
    if (known.every((value) => typeof value === "number")) {
      const low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
      const log = low > 0 && (declared ? declared.log : high / low >= 10);
      return scaleBetween(low, high, log, declared ? declared.integer : false);
    }
    const names = [...new Set(known.map((value) => JSON.stringify(value)))].sort();
    const at = (value) => (names.length < 2 ? 0.5 : names.indexOf(JSON.stringify(value)) / (names.length - 1));
    return { at, log: false, ticks: names.map((name) => [at(JSON.parse(name)), name.replaceAll('"', "")]) };
  }

  /* Axes around a plot of these margins: a frame, ticks and names. */
  function axes(svg, { width, height, left, right, top, bottom, across, up, x, y, few = false }) {
    const px = (s) => left + s * (width - left - right), py = (s) => height - bottom - s * (height - top - bottom);
    const some = (ticks) => (few && ticks.length > 3 ? ticks.filter((_, i) => i % 2 === 0) : ticks);
    svg.append(draw("rect", { class: "frame", x: left, y: top, width: width - left - right, height: height - top - bottom }));
    const anchor = (s, text) => (text.length < 7 || (s > 0.05 && s < 0.95) ? "middle" : s < 0.5 ? "start" : "end"); // long names stay inside
    for (const [s, text] of some(across.ticks)) svg.append(draw("text", { x: px(s), y: height - bottom + 15, "text-anchor": anchor(s, text) }, text));
    for (const [s, text] of some(up.ticks)) svg.append(draw("text", { x: left - 6, y: py(s) + 4, "text-anchor": "end" }, text));
    svg.append(draw("text", { class: "name", x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, x + (across.log ? " (log)" : "")));
    if (y) svg.append(draw("text", { class: "name", transform: `translate(12 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle" }, y + (up.log ? " (log)" : "")));
    return { px, py };
  }

  return { draw, contours, scaleBetween, scaleOf, axes };
})();
