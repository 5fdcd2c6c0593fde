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

  return { draw, contours };
})();
